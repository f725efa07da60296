"""A bundle holds what a report needs of each run, and nothing that must stay where it is."""

import json
import math
from itertools import permutations

import pytest

from tests.documented import ROOT
from uncork.cli import main
from uncork.lm import train
from uncork.lm.config import Config
from uncork.lm.config_io import from_dict, to_dict
from uncork.recipes import build
from uncork.recipes.bundle import bundle, deciding, each_once, main as bundle_main
from uncork.results import ORIGIN, RUN_KIND, find_runs, read_json, read_jsonl, run_record, write_json


SHORT = ("data.limit_tokens=1500", "epochs=1", "data.batch_size=8", "model.hidden=8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, one that was stopped, and a folder of another experiment."""
    folder = tmp_path_factory.mktemp("runs")
    train(build("embedded_softmax", (*SHORT, "data.root=/a/place")), folder / "a" / "ended")
    write_json(folder / "stopped" / "config.json", read_json(folder / "a" / "ended" / "config.json"))
    write_json(folder / "stopped" / "provenance.json", dict.fromkeys(ORIGIN) | {"started": "then"})
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


def test_runs_of_unknown_origin_are_told_by_what_they_measured(runs, tmp_path):
    """Two of one seed, whose provenance.json was lost; and one of them once more, from before that."""
    known = run_record(runs / "a" / "ended")
    later = [line | {"seconds": line["seconds"] + 1.0} for line in known["metrics"]]
    lost = {**known, "provenance": dict.fromkeys(known["provenance"])}
    file = tmp_path / "some.jsonl"
    for some in ([lost, lost | {"metrics": later}], [lost, lost | {"metrics": later}, known]):
        file.write_text("".join(json.dumps(record) + "\n" for record in some))
        assert bundle([file], tmp_path / "all.jsonl") == (2, 2)
        origins = [record["provenance"]["started"] for record in read_jsonl(tmp_path / "all.jsonl")]
        assert set(origins) == ({None, known["provenance"]["started"]} if known in some else {None})


@pytest.mark.parametrize("kept", ["metrics.jsonl", "state/lock", "words.json", "provenance.json"])
def test_a_run_is_found_by_any_file_it_has_left(tmp_path, kept):
    write_json(tmp_path / "run" / "config.json", {"kind": "any"})
    assert find_runs(tmp_path) == []
    write_json(tmp_path / "run" / kept, {})
    assert find_runs(tmp_path) == [tmp_path / "run"]


def test_configurations_of_any_time_say_the_same(runs):
    """A new field must be filled in where it lacks, or old runs are compared with none and not resumed."""
    for path in sorted((ROOT / "results").rglob("*.jsonl")):
        for record in read_jsonl(path):
            if record.get("kind") == RUN_KIND:
                today = to_dict(from_dict(Config, record["config"]))
                today["data"].pop("root")
                assert deciding(record["config"]) == deciding(today), path


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
        ("config.json", "[]", "`config.json` holds no configuration"),
        ("config.json", "null", "`config.json` holds no configuration"),
        ("config.json", '{"data": {}}', "config lacks name, seed, epochs, model, optim"),
        ("provenance.json", "[]", "its provenance lacks uncork, commit"),
        ("result.json", "[]", "its result lacks parameters"),
        ("result.json", "null", "its result lacks parameters"),
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
    with pytest.raises(ValueError, match="of `.*cut.jsonl` its provenance lacks uncork"):
        bundle([tmp_path / "cut.jsonl"], tmp_path / "all.jsonl")


CURVE = {
    "x": [1, 2],
    "f": [1],
    "slope": [1, 2],
    "slopes": {"over_knots": None, "at_logits": None},
    "moved": None,
}


@pytest.mark.parametrize(
    "part, values, reason",
    [
        ("config", {"epochs": "3"}, "`config.epochs` must be a whole number and is '3'"),
        ("config", {"seed": 1.5}, "`config.seed` must be a whole number"),
        ("config", {"name": 5}, "`config.name` must be a text"),
        ("provenance", {"commit": 5}, "`provenance.commit` must be a text or null and is '5'"),
        ("provenance", {"resumed": 5}, "`provenance.resumed` must be a list of tables"),
        ("provenance", {"resumed": [{}]}, "its provenance lacks uncork"),
        ("result", {"valid_perplexity": "x"}, "its result lacks valid_perplexity as a number"),
        ("result", {"test_perplexity": None}, "its result lacks test_perplexity as a number"),
        ("result", {"test_perplexity": math.nan}, "its result lacks test_perplexity as a number"),
        ("result", {"peak_memory_bytes": "x"}, "`result.peak_memory_bytes` must be a number or null"),
        ("result", {"test_nll_parts": [None]}, "`result.test_nll_parts` must be a list of numbers or null"),
        ("result", {"learned_function": CURVE}, "x, f and slope of its learned_function differ in length"),
        ("overrides", 5, "`overrides` must be a list of texts or null and is '5'"),
    ],
)
def test_a_value_of_another_kind_is_named(part, values, reason, runs, tmp_path, capsys):
    record = {"overrides": []} | run_record(runs / "a" / "ended")
    record[part] = record[part] | values if isinstance(values, dict) else values
    file = tmp_path / "odd.jsonl"
    file.write_text(json.dumps(record) + "\n")
    for command in (["bundle", "-o", f"{tmp_path}/all.jsonl"], ["report", "-o", f"{tmp_path}/page.html"]):
        assert main([command[0], str(file), *command[1:]]) == 2
        assert f"of `{file}` {reason}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


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


def test_runs_that_have_nothing_in_common_are_not_one(runs, tmp_path):
    """Of unknown origin, and without a line of metrics: nothing says that they are."""
    known = run_record(runs / "a" / "ended")
    lost = known | {"provenance": dict.fromkeys(ORIGIN)}
    bare = lost | {"metrics": [], "result": known["result"] | {"test_perplexity": 1.0}}
    begun = known | {"metrics": [], "result": None, "provenance": known["provenance"] | {"started": "later"}}
    for pair in ([known, bare], [lost, begun], [lost, lost | {"result": bare["result"]}]):
        file = tmp_path / "pair.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in pair))
        assert bundle([file], tmp_path / "all.jsonl")[0] == 2
        (tmp_path / "all.jsonl").unlink()


def test_the_same_runs_give_the_same_file_whatever_they_were_read_from(runs, tmp_path):
    one, other = run_record(runs / "a" / "ended"), tmp_path / "other"
    for name in ("config.json", "provenance.json", "result.json"):
        write_json(other / name, read_json(runs / "a" / "ended" / name))
    write_json(other / "provenance.json", one["provenance"] | {"started": "before"})
    bundle([runs / "a"], tmp_path / "first.jsonl")
    bundle([runs / "a", other], tmp_path / "folders.jsonl")
    bundle([tmp_path / "first.jsonl", other], tmp_path / "both.jsonl")
    assert (tmp_path / "folders.jsonl").read_bytes() == (tmp_path / "both.jsonl").read_bytes()


@pytest.mark.parametrize("text", ["", "[1]\n", '{"epoch": 1}\n'])
def test_a_file_of_another_kind_is_not_written_over(text, runs, tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(text)
    with pytest.raises(
        ValueError, match="`output` must be a new file or a bundle; `.*metrics.jsonl` is neither"
    ):
        bundle([runs], file)
    assert file.read_text() == text


def test_nor_is_one_put_into_a_run_or_over_a_folder(runs, tmp_path):
    with pytest.raises(ValueError, match="`output` must lie outside of runs, .*e.g. into `.*/a`"):
        bundle([runs], runs / "a" / "ended" / "all.jsonl")
    (tmp_path / "all.jsonl").mkdir()
    with pytest.raises(ValueError, match="`output` must be a file, but `.*all.jsonl` is a folder"):
        bundle([runs], tmp_path / "all.jsonl")


def test_runs_in_a_bundle_are_not_lost_by_writing_it_anew(runs, tmp_path):
    file = tmp_path / "all.jsonl"
    bundle([runs], file)
    before = file.read_bytes()
    with pytest.raises(
        ValueError, match="`output` must not lose runs: 1 of `.*` are not among `runs`, or got"
    ):
        bundle([runs / "stopped"], file)
    assert file.read_bytes() == before and bundle([runs / "stopped", file], file) == (2, 1)


def test_nor_is_what_a_run_of_it_got_to(runs, tmp_path):
    """By a copy of the same run from before it ended, or one whose origin was lost."""
    file, whole = tmp_path / "all.jsonl", run_record(runs / "a" / "ended")
    bundle([runs / "a"], file)
    before = file.read_bytes()
    copy = tmp_path / "copy.jsonl"
    for less in (
        whole | {"result": None},
        whole | {"result": None, "metrics": []},
        whole | {"provenance": dict.fromkeys(ORIGIN)},
    ):
        copy.write_text(json.dumps(less) + "\n")
        with pytest.raises(ValueError, match="must not lose runs: 1 of .*, or got further there"):
            bundle([copy], file)
        assert file.read_bytes() == before
        bundle([copy, file], file)
        assert file.read_bytes() == before


def test_an_output_whose_lines_are_no_whole_runs_is_named(runs, tmp_path):
    file = tmp_path / "all.jsonl"
    file.write_text(json.dumps({"kind": RUN_KIND}) + "\n")
    with pytest.raises(ValueError, match="of `.*all.jsonl` its config lacks name"):
        bundle([runs], file)


def test_a_run_that_went_on_in_two_ways_is_two(runs, tmp_path):
    """Carried by a file that loses digits it begins at the same time, and comes to other numbers."""
    exact = run_record(runs / "a" / "ended")
    result, line = exact["result"], exact["metrics"][0]
    slower = exact | {"metrics": [line | {"seconds": 99.0}], "result": result | {"seconds_per_epoch": 99.0}}
    carried = exact | {"result": result | {"packed": [{"step": 3}]}}
    other_end = carried | {"result": carried["result"] | {"test_perplexity": 1.0}}
    other_line = exact | {"metrics": [line | {"valid_nll": 1.0}]}
    begun = exact | {"metrics": [], "result": None}
    assert {len(each_once(order)) for order in permutations([exact, slower, begun])} == {1}
    for order in permutations([exact, carried, begun]):
        assert each_once(order) == [exact]
    for other in (other_end, other_line):
        for order in permutations([exact, other, begun]):
            both = each_once(order)
            assert len(both) == 2 and exact in both and other in both


def test_a_run_that_lost_its_configuration_is_named(runs, tmp_path):
    folder = tmp_path / "runs" / "a"
    for name in ("metrics.jsonl", "words.json"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((runs / "a" / "ended" / name).read_bytes())
    with pytest.raises(ValueError, match="`.*a` must have the config.json of its run.*Put config.json back"):
        bundle([runs, tmp_path / "runs"], tmp_path / "all.jsonl")
