"""Language-model runs on the page: folders and bundles alike, each once, in HTML and in Markdown."""

import json
import os
import re

import pytest
from language_records import run, story, write_folder
from records import record, write_runs

from uncork import cli
from uncork.report import build, load, write_markdown, write_report
from uncork.report.language import figures


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
    assert "Not finished, and in no mean: PLIF from the identity seed 9, 2 of 6 epochs" in text
    assert "uncork train penn_mos seed=2 epochs=6" in text
    assert "Not shown" not in text  # words and states belong to their runs
    alternatives = re.findall(r'<img [^>]*alt="([^"]*)"', text)
    assert len(alternatives) == 4 and all(len(alternative) > 80 for alternative in alternatives)
    pictures = tmp_path / "report_figures"
    assert len(list(pictures.glob("lm-penn-6-*.svg"))) == len(list(pictures.glob("lm-penn-6-*.png"))) == 4


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


def test_page_and_markdown_are_of_one_drawing(folders, tmp_path, monkeypatch):
    draw, drawn = figures.curve_figure, []
    monkeypatch.setattr(figures, "curve_figure", lambda trial: drawn.append(trial) or draw(trial))
    page, texts = tmp_path / "r.html", tmp_path / "texts" / "r.md"
    assert cli.main(["report", str(folders), "-o", str(page), "--markdown", str(texts)]) == 0
    assert len(drawn) == 1 and texts.exists()
    name = "lm-penn-6-curves.svg"
    assert (texts.parent / name).read_bytes() == (tmp_path / "r_figures" / name).read_bytes()


def test_a_damaged_run_is_named(folders, tmp_path):
    (next(folders.rglob("result.json"))).write_text("{")
    with pytest.raises(ValueError, match="result.json"):
        load([folders])
    (tmp_path / "bad.jsonl").write_text(json.dumps({"kind": "something"}) + "\n")
    with pytest.raises(ValueError, match="found none"):
        load([tmp_path / "bad.jsonl"])


@pytest.mark.parametrize("lost", [("provenance.json",), ("provenance.json", "words.json")])
def test_a_run_that_lost_its_origin_is_shown_without_it(tmp_path, lost, capsys):
    records = [run("penn_softmax", 1, 60.0), run("penn_plif", 1, 58.0)]
    folders = [write_folder(tmp_path / "runs" / str(i), record) for i, record in enumerate(records)]
    for name in lost:
        (folders[0] / name).unlink()
    bundle = tmp_path / "all.jsonl"
    assert cli.main(["bundle", str(tmp_path / "runs"), "-o", str(bundle)]) == 0
    for place in (tmp_path / "runs", bundle):
        *_, runs = build(load([place]))
        assert [row[-2][0] for row in runs.tables[0].rows] == ["–", "abc"]
        assert "What made some of these is unknown: their provenance.json was lost." in runs.paragraphs
        assert not any("None" in line for line in runs.paragraphs)


def test_a_run_that_diverged_ends_no_report(tmp_path):
    """exp of its loss is more than a number can be."""
    ended, begun = run("penn_softmax", 1, 60.0), run("penn_softmax", 2, 60.0, done=2)
    for diverged in (ended, begun):
        for line in diverged["metrics"]:
            line["train_nll"] = 1671.0
        write_folder(tmp_path / "runs" / str(diverged["config"]["seed"]), diverged)
    assert "2 language-model runs." in write_report([tmp_path], tmp_path / "r.html")[0].read_text("utf-8")


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("config.json", "{}", "lacks 'data'"),
        ("config.json", "[]", "`config.json` holds no configuration"),
        (
            "result.json",
            '{"parameters": 1, "steps": 1, "epochs": 1, "valid_perplexity": 2, "test_perplexity": 2, '
            '"learned_function": {"x": []}}',
            "its learned_function lacks f, slope, slopes, moved",
        ),
        ("provenance.json", "{}", "its provenance lacks uncork, commit, torch, python, hardware"),
        ("result.json", "{}", "its result lacks parameters"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path, name, text, reason):
    folder = write_folder(tmp_path / "run", run("penn_softmax", 1, 60.0))
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=f"whole records of runs; of `.*run` .*{reason}.*Leave it out"):
        load([tmp_path])


@pytest.mark.parametrize("name", ["valid_nll", "averaging"])
def test_so_is_a_line_of_its_metrics(tmp_path, name):
    record = run("penn_softmax", 1, 60.0)
    for spoil in (lambda line: line.pop(name), lambda line: line.update({name: None})):
        spoil(record["metrics"][1])
        folder = write_folder(tmp_path / "run", record)
        with pytest.raises(ValueError, match=f"of `.*run` line 2 of its metrics lacks {name}. Leave it out"):
            load([folder])


@pytest.mark.parametrize(("part", "name"), [("model", "tied"), ("data", "corpus"), ("optim", "average")])
def test_so_is_a_part_of_its_configuration(tmp_path, part, name):
    record = run("penn_softmax", 1, 60.0)
    del record["config"][part][name]
    folder = write_folder(tmp_path / "run", record)
    with pytest.raises(ValueError, match=f"of `.*run` its {part} lacks {name}. Leave it out"):
        load([folder])


def test_so_is_a_line_of_a_bundle(tmp_path):
    record = run("penn_softmax", 1, 60.0)
    del record["provenance"]
    (tmp_path / "all.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match="of `.*all.jsonl` its provenance lacks"):
        load([tmp_path / "all.jsonl"])


@pytest.mark.parametrize(("option", "name"), [("-o", "output"), ("--markdown", "markdown")])
def test_a_page_replaces_pages_alone(option, name, tmp_path, capsys):
    folder = write_folder(tmp_path / "run", run("penn_plif", 1, 58.0))
    code, pipe = tmp_path / "code.py", tmp_path / "pipe"
    code.write_text("print(1)")
    os.mkfifo(pipe)  # as a device, it would be replaced by a file
    other = [] if option == "-o" else ["-o", str(tmp_path / "page.html")]
    for target in (code, pipe):
        assert cli.main(["report", str(folder), option, str(target), *other]) == 2
        assert f"`{name}` must be a" in capsys.readouterr().err
    assert code.read_text() == "print(1)" and pipe.is_fifo()
    page = tmp_path / "page.html"
    assert cli.main(["report", str(folder), "-o", str(page), "--markdown", str(page)]) == 2
    assert "`markdown` must be another file than `output`" in capsys.readouterr().err and not page.exists()
    both = ["report", str(folder), "-o", str(page), "--markdown", str(tmp_path / "page.md")]
    assert cli.main(both) == cli.main(both) == 0


@pytest.mark.parametrize("option", ["-o", "--markdown", "--figures"])
def test_a_page_is_not_written_over_results(option, tmp_path, capsys):
    folder, bundle = write_folder(tmp_path / "run", run("penn_plif", 1, 58.0)), tmp_path / "all.jsonl"
    bundle.write_text(json.dumps(run("penn_plif", 1, 58.0)) + "\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = [] if option == "-o" else ["-o", str(tmp_path / "page.html")]
    targets = {folder / "result.json": "lie outside of runs", folder / "new": "lie outside of runs"}
    if option != "--figures":
        targets |= {bundle: "not end in .json", tmp_path / "new.json": "not end in .json"}
        targets |= {tmp_path: "be a file, but"}
    for target, reason in targets.items():
        assert cli.main(["report", str(folder), option, str(target), *other]) == 2
        name = "output" if option == "-o" else option[2:]
        assert f"`{name}` must {reason}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
