"""Language-model runs on the page: folders and bundles alike, each once, in HTML and in Markdown."""

import json
import re

import pytest
from language_records import run, story, write_folder
from records import record, write_runs

from uncork import cli
from uncork.report import build, load, write_markdown, write_report


@pytest.fixture
def folders(tmp_path):
    """Two levels of run folders, one of them unfinished."""
    records = [*story(), run("penn_plif", 9, 58.0, done=2)]
    for i, values in enumerate(records):
        write_folder(tmp_path / "sweep" / values["config"]["name"] / str(i), values)
    return tmp_path / "sweep"


def test_a_report_of_run_folders(folders, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert cli.main(["report", str(folders), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "19 language-model runs." in text and "60.00 ± 0.10" in text and "60.83/58.37" in text
    assert "Not finished, and in no mean: penn_plif seed 9, 2 of 6 epochs" in text
    assert "uncork train penn_mos seed=2 epochs=6" in text
    assert "Not shown" not in text  # words and states belong to their runs
    alternatives = re.findall(r'<img [^>]*alt="([^"]*)"', text)
    assert len(alternatives) == 4 and all(len(alternative) > 80 for alternative in alternatives)
    figures = tmp_path / "report_figures"
    assert len(list(figures.glob("lm-penn-6-*.svg"))) == len(list(figures.glob("lm-penn-6-*.png"))) == 4


def test_a_bundle_makes_the_same_page_and_runs_count_once(folders, tmp_path):
    bundle = tmp_path / "all.jsonl"
    assert cli.main(["bundle", str(folders), "-o", str(bundle)]) == 0
    of_folders, of_bundle, of_both = (
        load(runs) for runs in ([folders], [bundle], [bundle, folders, folders])
    )
    assert len(of_folders.runs) == len(of_bundle.runs) == len(of_both.runs) == 19
    written = [tmp_path / f"{name}.md" for name in ("folders", "bundle", "both")]
    for results, path in zip((of_folders, of_bundle, of_both), written, strict=True):
        write_markdown(build(results), path)
    assert len({path.read_text(encoding="utf-8") for path in written}) == 1


def test_one_run_folder_alone_makes_a_page(tmp_path):
    folder = write_folder(tmp_path / "run", run("embedded_softmax", 1, 50.0))
    text = write_report([folder], tmp_path / "r.html")[0].read_text(encoding="utf-8")
    assert "1 language-model run." in text and "no difference can be judged" in text


def test_runs_stand_beside_the_synthetic_experiment(folders, tmp_path):
    synthetic = write_runs(tmp_path / "synthetic", [record("plif", 2)])
    anchors = [section.anchor for section in build(load([synthetic, folders]))]
    assert anchors.index("claim") < anchors.index("penn-6") < anchors.index("theory")


def test_markdown_has_the_curves_beside_it(folders, tmp_path):
    path = tmp_path / "texts" / "penn.md"
    write_markdown(build(load([folders])), path)
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"!\[[^\]]{80,}\]\(\.\./texts/([\w.-]+)\)", text)
    assert sorted(links) == sorted(file.name for file in path.parent.glob("*.svg")) and len(links) == 4
    assert "| `uncork train penn_plif seed=1 epochs=6` |" in text


def test_a_damaged_run_is_named(folders, tmp_path):
    (next(folders.rglob("result.json"))).write_text("{")
    with pytest.raises(ValueError, match="result.json"):
        load([folders])
    (tmp_path / "bad.jsonl").write_text(json.dumps({"kind": "something"}) + "\n")
    with pytest.raises(ValueError, match="found none"):
        load([tmp_path / "bad.jsonl"])


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("config.json", "{}", "lacks 'data'"),
        ("config.json", "[]", "lacks"),
        ("provenance.json", "{}", "its provenance lacks uncork, commit, torch, hardware"),
        ("result.json", "{}", "its result lacks parameters"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path, name, text, reason):
    folder = write_folder(tmp_path / "run", run("penn_softmax", 1, 60.0))
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=f"whole records of runs; of `.*run` .*{reason}.*Leave it out"):
        load([tmp_path])


def test_so_is_a_line_of_a_bundle(tmp_path):
    record = run("penn_softmax", 1, 60.0)
    del record["provenance"]
    (tmp_path / "all.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match="of `.*all.jsonl` its provenance lacks"):
        load([tmp_path / "all.jsonl"])
