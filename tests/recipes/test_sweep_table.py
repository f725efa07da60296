"""The table and the live lines of a sweep, from run folders written by hand."""

import math
import re

import numpy as np
import pytest

from uncork.recipes import watch as watch_module
from uncork.recipes.outcome import read_outcome
from uncork.recipes.plan import plan
from uncork.recipes.table import _add_ratios, write_table
from uncork.recipes.watch import Watch, Watched, describe
from uncork.results import append_jsonl, read_json, write_json


SECONDS = {"embedded_softmax": (2.0, 4.0, 3.0), "embedded_plif": (6.0, 8.0, 7.5)}


@pytest.fixture
def runs(tmp_path):
    """Two recipes, three seeds; the last PLIF seed is not finished."""
    watched = [Watched(run, "finished") for run in plan(list(SECONDS), [1, 2, 3], ["epochs=9"], tmp_path)]
    for item in watched:
        run, recipe = item.run, item.run.variant.recipe
        seconds = SECONDS[recipe][run.seed - 1]
        for epoch in range(1, 4):
            append_jsonl(run.folder / "metrics.jsonl", record(epoch, 90.0 / epoch, seconds))
        if recipe == "embedded_plif" and run.seed == 3:
            item.status = "stopped"
            continue
        write_json(run.folder / "result.json", {
            "valid_perplexity": 50.0 + run.seed, "test_perplexity": 40.0 + run.seed**2, "parameters": 1234,
            "seconds_per_epoch": seconds, "peak_memory_bytes": run.seed * 2**20, "packed": [],
            "steps": 30, "epochs": 3,
        })  # fmt: skip
    return watched


def record(epoch, perplexity, seconds):
    return {
        "epoch": epoch, "valid_perplexity": perplexity, "train_seconds": seconds, "seconds": seconds + 1.0,
        "step": 10 * epoch, "averaging": False, "valid_nll": math.log(perplexity),
    }  # fmt: skip


def test_means_are_over_finished_seeds_alone(runs, tmp_path):
    softmax, plif = write_table(tmp_path, runs)["rows"]
    test = np.array([41.0, 44.0, 49.0], dtype=np.float64)
    assert softmax["finished"] == 3 and plif["finished"] == 2
    assert softmax["test_perplexity"]["mean"] == pytest.approx(test.mean(), rel=1e-14)
    assert softmax["test_perplexity"]["deviation"] == pytest.approx(test.std(ddof=1), rel=1e-14)
    assert plif["test_perplexity"]["mean"] == pytest.approx(test[:2].mean(), rel=1e-14)
    assert softmax["seconds_per_epoch"] == 3.0 and plif["seconds_per_epoch"] == 7.0
    assert softmax["time_ratio_to_softmax"] == 1.0
    assert plif["time_ratio_to_softmax"] == pytest.approx(7.0 / 3.0)
    assert softmax["peak_memory_bytes"] == 3 * 2**20 and softmax["parameters"] == 1234


def test_the_unfinished_are_listed_apart(runs, tmp_path):
    write_table(tmp_path, runs)
    (run,) = read_json(tmp_path / "table.json")["unfinished"]
    assert run == {
        "name": "embedded_plif-3", "status": "stopped", "message": "", "damaged": False,
        "epochs": 3, "of_epochs": 9, "valid_perplexity": 30.0, "seconds_per_epoch": 7.5,
    }  # fmt: skip
    text = (tmp_path / "table.md").read_text()
    assert "| embedded_plif-3 | stopped | 3 of 9 | 30.00 |" in text
    row = "| embedded_softmax | 1,234 | 3 of 3 | 52.00 ± 1.00 | 44.67 ± 4.04 | 3.0 | 1.00 | 3 MiB |"
    assert row in text and "| 2 of 2 |" not in text and "| 2 of 3 |" in text
    assert "\nNot finished, and in no mean above:\n" in text and "Failed" not in text


def test_the_failed_are_not_called_unfinished(runs, tmp_path):
    runs[-1].status, runs[-1].message = "failed", "uncork: out of memory"
    table = write_table(tmp_path, runs)
    assert [run["name"] for run in table["failed"]] == ["embedded_plif-3"] and table["unfinished"] == []
    text = (tmp_path / "table.md").read_text()
    assert "\nFailed, and in no mean above:\n" in text and "Not finished" not in text
    assert "| embedded_plif-3 | failed | 3 of 9 | 30.00 | uncork: out of memory |" in text


def test_ratios_are_to_the_first_softmax():
    rows = [{"head": "softmax", "corpus": "penn", "seconds_per_epoch": s} for s in (10.0, 20.0)]
    _add_ratios(rows)
    assert [row["time_ratio_to_softmax"] for row in rows] == [1.0, 2.0]


def test_without_a_softmax_there_is_no_ratio_and_carried_runs_are_told(runs, tmp_path):
    plif = [item for item in runs if item.run.variant.recipe == "embedded_plif"]
    path = plif[0].run.folder / "result.json"
    write_json(path, read_json(path) | {"packed": [{"step": 3}], "peak_memory_bytes": None})
    (row,) = write_table(tmp_path, plif)["rows"]
    assert row["time_ratio_to_softmax"] is None and row["carried_with_loss"] == 1
    assert row["peak_memory_bytes"] == 2 * 2**20
    assert "1 of these runs were carried" in (tmp_path / "table.md").read_text()


def test_a_run_that_has_not_begun_has_a_row_of_nothing(tmp_path):
    runs = [Watched(run) for run in plan(["embedded_mos"], [1], [], tmp_path)]
    (row,) = write_table(tmp_path, runs)["rows"]
    assert row["finished"] == 0 and row["test_perplexity"] is None and row["parameters"] is None
    assert re.search(r"embedded_mos \| - \| 0 of 1 \| - \| - \|", (tmp_path / "table.md").read_text())


def test_runs_of_another_sweep_in_the_folder_are_named(runs, tmp_path):
    for item in runs:
        write_json(item.run.folder / "config.json", {})
    assert write_table(tmp_path, runs)["others"] == []
    assert "not of this sweep" not in (tmp_path / "table.md").read_text()
    table = write_table(tmp_path, [item for item in runs if item.run.seed == 1])
    assert table["others"] == [f"embedded_{head}-{seed}" for head in ("plif", "softmax") for seed in (2, 3)]
    assert "not of this sweep: embedded_plif-2, embedded_plif-3," in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"valid_perplexity": "3"}'])
def test_a_damaged_result_is_told_and_in_no_mean(text, runs, tmp_path):
    path = runs[0].run.folder / "result.json"
    path.write_text(text)
    table = write_table(tmp_path, runs)
    assert table["rows"][0]["finished"] == 2
    assert table["failed"][0]["message"].startswith(f"`{path}` must")


def test_a_line_says_epoch_perplexity_pace_and_time_left(runs):
    last = runs[-1].run
    assert describe(read_outcome(last.folder), 9) == "epoch 3/9  valid 30.00  8.5 s/epoch  left 0:00:51"
    assert describe(read_outcome(runs[0].run.folder), 9) == "valid 51.00  test 41.00"
    assert describe(read_outcome(last.folder / "nothing"), 9) == "epoch 0/9"


def test_no_digits_are_told_of_runs_that_diverged(runs, tmp_path):
    ended, begun = runs[0].run, runs[-1].run
    huge = {"valid_perplexity": 1e304, "test_perplexity": 1e303, "parameters": 1234, "steps": 30, "epochs": 3}
    write_json(ended.folder / "result.json", huge)
    append_jsonl(begun.folder / "metrics.jsonl", record(4, 1e304, 7.5))
    assert describe(read_outcome(ended.folder), 9) == "valid over 1e6  test over 1e6"
    assert describe(read_outcome(begun.folder), 9).startswith("epoch 4/9  valid over 1e6  ")
    write_table(tmp_path, runs)
    text = (tmp_path / "table.md").read_text()
    assert "| 3 of 3 | over 1e6 | over 1e6 |" in text and "| 4 of 9 | over 1e6 |" in text


def test_plain_lines_come_with_changes_and_not_too_often(runs, capsys, monkeypatch):
    item = runs[-1]
    item.status = "running"
    with Watch([item]) as watch:
        watch.update()
        watch.update()
        append_jsonl(item.run.folder / "metrics.jsonl", record(4, 20.0, 7.5))
        watch.update()
        assert capsys.readouterr().err.count("\n") == 1
        monkeypatch.setattr(watch_module, "PLAIN_SECONDS", 0.0)
        watch.update()
        assert capsys.readouterr().err == (
            "embedded_plif-3  running   epoch 4/9  valid 20.00  8.5 s/epoch  left 0:00:42\n"
        )
        item.status, item.message = "failed", "uncork: out of memory"
    assert capsys.readouterr().err == "embedded_plif-3  failed    uncork: out of memory\n"


def test_a_terminal_gets_a_live_block(runs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Watch(runs) as watch:
        assert watch.live is not None
        watch.update()
    assert "embedded_plif-3" in capsys.readouterr().err
