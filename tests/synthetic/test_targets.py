"""Neither a grid nor its bundle replaces what is not theirs, and cells that are there stay as they are."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.folders import files, like_a_run
from tests.synthetic.test_grid import ARGUMENTS, QUICK, TINY, names
from uncork.results import read_json, write_json
from uncork.synthetic import bundle, run_grid, unbundle
from uncork.synthetic.__main__ import main


@pytest.fixture
def run(tmp_path) -> Path:
    return like_a_run(tmp_path / "run")


def test_a_grid_is_not_run_in_a_run(run):
    before = files(run)
    for folder in (run, run / "deeper"):
        with pytest.raises(ValueError, match="`folder` must lie outside of runs"):
            run_grid(TINY, folder, QUICK)
        with pytest.raises(ValueError, match="`folder` must lie outside of runs"):
            unbundle(run / "any.jsonl", folder)
    assert files(run) == before


@pytest.mark.parametrize("name", ["runs.jsonl", "notes.txt", "run/metrics.jsonl"])
def test_a_bundle_replaces_no_other_file(name, run, tmp_path, capsys):
    other = tmp_path / name
    other.write_text(json.dumps({"kind": "language_model_run"}) + "\n")
    before = other.read_bytes()
    # Before the grid is run, which may take hours.
    assert main([*ARGUMENTS, "--out", str(tmp_path / "grid"), "--bundle", str(other)]) == 2
    assert "`bundle` must" in capsys.readouterr().err and not (tmp_path / "grid").exists()
    run_grid(replace(TINY, heads=("softmax",)), tmp_path / "grid", QUICK)
    with pytest.raises(ValueError, match="`bundle` must"):
        bundle(tmp_path / "grid", other)
    assert other.read_bytes() == before


def test_a_bundle_is_replaced_by_a_later_one_but_not_by_nothing(tmp_path):
    file = tmp_path / "cells.jsonl"
    run_grid(replace(TINY, heads=("softmax",)), tmp_path / "grid", QUICK)
    assert bundle(tmp_path / "grid", file) == 2 and bundle(tmp_path / "grid", file) == 2
    before = file.read_bytes()
    with pytest.raises(ValueError, match="`bundle` must not lose cells"):
        bundle(tmp_path / "empty", file)
    with pytest.raises(ValueError, match="`folder` must have finished cells"):
        bundle(tmp_path / "empty", tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()
    assert file.read_bytes() == before


def test_a_bundle_loses_no_cell(tmp_path, capsys):
    file = tmp_path / "cells.jsonl"
    assert main([*ARGUMENTS, "--out", str(tmp_path / "a"), "--bundle", str(file)]) == 0
    before = file.read_bytes()
    other = [*ARGUMENTS, "--seeds", "5", "--out", str(tmp_path / "b"), "--bundle", str(file)]
    assert main(other) == 2
    assert "`bundle` must not lose cells" in capsys.readouterr().err and not (tmp_path / "b").exists()
    assert file.read_bytes() == before
    assert main([*other, "--resume", str(file)]) == 0
    assert len(file.read_text().splitlines()) == 2


def test_cells_that_are_there_stay_as_they_are(tmp_path):
    run_grid(TINY, tmp_path / "a", QUICK)
    bundle(tmp_path / "a", tmp_path / "cells.jsonl")
    run_grid(TINY, tmp_path / "b", QUICK)  # the same but for seconds
    before = files(tmp_path / "b")
    assert unbundle(tmp_path / "cells.jsonl", tmp_path / "b", QUICK) == 4
    assert files(tmp_path / "b") == before


def test_cells_of_other_settings_are_refused_before_any_is_written(tmp_path):
    run_grid(TINY, tmp_path / "a", QUICK)
    path = tmp_path / "a" / "cells" / names(tmp_path / "a")[-1]
    record = read_json(path)
    write_json(path, record | {"settings": record["settings"] | {"max_passes": 3}})
    bundle(tmp_path / "a", tmp_path / "cells.jsonl")
    with pytest.raises(ValueError, match="must hold cells of the settings asked for"):
        unbundle(tmp_path / "cells.jsonl", tmp_path / "b", QUICK)
    assert not (tmp_path / "b").exists()
