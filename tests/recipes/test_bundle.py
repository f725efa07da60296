"""A bundle holds what a report needs of each run, and nothing that must stay where it is."""

import json

import pytest

from uncork.cli import main
from uncork.lm import train
from uncork.recipes import build
from uncork.recipes.bundle import bundle, main as bundle_main
from uncork.results import find_runs, read_json, read_jsonl, run_record, write_json


SHORT = ("data.limit_tokens=1500", "epochs=1", "data.batch_size=8", "model.hidden=8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, one that was stopped, and a folder of another experiment."""
    folder = tmp_path_factory.mktemp("runs")
    train(build("embedded_softmax", (*SHORT, "data.root=/a/place")), folder / "a" / "ended")
    write_json(folder / "stopped" / "config.json", read_json(folder / "a" / "ended" / "config.json"))
    write_json(folder / "stopped" / "provenance.json", {"started": "then"})
    write_json(folder / "synthetic" / "config.json", {"kind": "synthetic"})
    return folder


def test_runs_are_found_at_any_depth_and_nothing_else(runs):
    assert find_runs(runs) == [runs / "a" / "ended", runs / "stopped"]
    assert find_runs(runs / "stopped") == [runs / "stopped"]


def test_a_bundle_holds_the_records_of_the_runs(runs, tmp_path):
    assert bundle([runs, runs / "stopped"], tmp_path / "all.jsonl") == (2, 1)  # each run once
    records = list(read_jsonl(tmp_path / "all.jsonl"))
    ended = next(record for record in records if record["result"])
    # In the order of the fields; where the corpora lie is left out.
    changes = ["model.hidden=8", "data.batch_size=8", "data.limit_tokens=1500", "epochs=1"]
    assert ended == {"overrides": changes} | run_record(runs / "a" / "ended")
    assert ended["result"] == read_json(runs / "a" / "ended" / "result.json")
    assert [line["epoch"] for line in ended["metrics"]] == [1]
    text = (tmp_path / "all.jsonl").read_text()
    assert "/a/place" not in text and "w001" not in text


def test_runs_are_added_to_a_bundle_and_each_counts_once_as_far_as_it_got(runs, tmp_path):
    file = tmp_path / "all.jsonl"
    early = run_record(runs / "a" / "ended") | {"metrics": [], "result": None}
    file.write_text(json.dumps(early) + "\n")
    assert bundle([file, runs / "stopped"], file) == (2, 0)
    assert bundle([runs, file], file) == (2, 1)
    whole = file.read_bytes()
    assert bundle([file, runs / "stopped"], file) == (2, 1) and file.read_bytes() == whole
    bundle([runs], tmp_path / "folders.jsonl")
    assert (tmp_path / "folders.jsonl").read_bytes() == whole


@pytest.mark.parametrize("name", ["all.json", "all"])
def test_a_file_that_nothing_would_read_is_refused(name, runs, tmp_path):
    with pytest.raises(ValueError, match=r"`output` must end in .jsonl.*Write to `.*/all\.jsonl`"):
        bundle([runs], tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("text", ["", '{"kind": "synthetic-cell"}\n', "[1]\n"])
def test_another_file_is_no_bundle(text, runs, tmp_path):
    file = tmp_path / "other.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"`runs` must name run folders or bundles.*is neither"):
        bundle([runs, file], tmp_path / "all.jsonl")
    assert not (tmp_path / "all.jsonl").exists()


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("config.json", "{}", "lacks 'data'"),
        ("config.json", "[]", "lacks"),
        ("config.json", '{"data": {}}', "config lacks name, seed"),
        ("provenance.json", "[]", "provenance is missing or of another kind"),
        ("result.json", "[]", "result is missing or of another kind"),
    ],
)
def test_a_run_that_is_not_whole_is_named(name, text, reason, runs, tmp_path):
    folder = tmp_path / "cut"
    for file in ("config.json", "provenance.json", "result.json"):
        write_json(folder / file, read_json(runs / "a" / "ended" / file))
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=f"whole records of runs; of `.*cut` .*{reason}.*Leave it out"):
        bundle([folder], tmp_path / "all.jsonl")


def test_so_is_a_line_of_another_bundle(runs, tmp_path):
    record = run_record(runs / "a" / "ended")
    del record["provenance"]
    (tmp_path / "cut.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match="of `.*cut.jsonl` provenance is missing"):
        bundle([tmp_path / "cut.jsonl"], tmp_path / "all.jsonl")


def test_the_commands_say_what_they_wrote(runs, tmp_path, capsys):
    file = tmp_path / "all.jsonl"
    assert main(["bundle", str(runs), "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 2 runs, 1 of them ended\n"
    first = file.read_bytes()
    assert bundle_main([str(runs), "-o", str(file)]) == 0 and file.read_bytes() == first
    assert main(["bundle", str(tmp_path / "nowhere"), "-o", str(file)]) == 2
    assert bundle_main([str(runs / "synthetic"), "-o", str(file)]) == 2
    error = capsys.readouterr().err
    assert "`runs` must name existing folders" in error and "found none" in error
    assert file.read_bytes() == first
