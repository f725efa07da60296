"""The page by itself: complete, readable without pictures, loading nothing."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from records import THEORY, grid, record, write_runs

from uncork import cli
from uncork.report import build, load, markdown, pictures, write_report
from uncork.report.load import Results
from uncork.results import write_json


class Page(HTMLParser):
    """What a browser would load, show and link."""

    def __init__(self, text):
        super().__init__()
        self.images, self.loads, self.tags, self.ids, self.links = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        if tag == "img":
            self.images.append(values)
        if tag == "a":
            self.links.append(values["href"])
        elif values.get("src") or values.get("href"):
            self.loads.append(values.get("src") or values.get("href"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report([write_runs(folder / "runs")], folder / "report.html")


@pytest.fixture(scope="module")
def text(written):
    return written[0].read_text(encoding="utf-8")


def test_every_figure_has_a_text_alternative(text):
    page = Page(text)
    # 2 metrics x 4 settings, 2 Dirichlet pictures, one PLIF, 4 of functions.
    assert len(page.images) == 8 + 2 + 1 + 4
    for image in page.images:
        assert len(image["alt"]) > 80
    assert page.tags.count("figcaption") == len(page.images)


def test_nothing_is_loaded_from_anywhere(text):
    page = Page(text)
    assert page.loads and all(address.startswith("data:") for address in page.loads)
    assert not {"script", "iframe", "object", "embed", "video"} & set(page.tags)
    assert "@import" not in text and "url(" not in text
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    for image in page.images:
        svg = base64.b64decode(image["src"].split(",", 1)[1]).decode()
        assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', svg))
        assert not re.search(r"url\((?!#)", svg)


def test_figures_are_files_too(written):
    suffixes = [path.suffix for path in written[1:]]
    assert suffixes.count(".svg") == suffixes.count(".png") == 15
    for path in written[1:]:
        head = path.read_bytes()[:200]
        assert head.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in head


def test_numbers_and_sentences_are_there(text):
    assert "0.6005 ± 0.0007" in text  # PLIF at D = 2: 0.6 and 0.601
    assert "in 12 of 12 combinations" in text
    assert "Theorem &lt;1&gt;" in text and "no, misprint" in text  # escaped, shown


def test_the_same_results_give_the_same_page(tmp_path, text):
    again = write_report([write_runs(tmp_path / "runs")], tmp_path / "report.html")[0]
    assert again.read_text(encoding="utf-8") == text


def test_one_seed_and_missing_heads_still_make_a_page(tmp_path):
    records = [
        record("plif", 2),
        record("plif", 4),
        record("mos", 2, metrics=None, stopped="diverged", rank=None),
    ]
    page = write_report([write_runs(tmp_path, records)], tmp_path / "r.html")[0].read_text(encoding="utf-8")
    assert "One seed: no spread is known" in page and "The claim needs" in page


@pytest.mark.parametrize("count, said", [(5, ""), (6, "for the 5 smallest of 6 concentrations")])
def test_concentrations_without_a_picture_of_samples_are_mentioned(count, said):
    cells = [record("plif", 2, concentration=0.1 * (i + 1)) for i in range(count)]
    setting = next(section for section in build(Results(cells)) if section.anchor == "setting")
    assert said in setting.paragraphs[0] and ("smallest" in setting.paragraphs[0]) == bool(said)


def test_cells_and_their_bundle_count_once(tmp_path):
    import json

    records = grid(seeds=(0,))
    write_runs(tmp_path, records)
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    assert len(load([tmp_path]).cells) == len(records)
    assert len(load([tmp_path / "all.jsonl"]).cells) == len(records)


def begun(when, *args, **kwargs):
    values = record(*args, **kwargs)
    return {**values, "provenance": {**values["provenance"], "started": when}}


def test_of_a_cell_fitted_twice_the_later_one_counts(tmp_path):
    heads = ("softmax", "plif")
    later = [begun("2026-02-01", head, 2, seed) for head in heads for seed in (0, 1)]
    earlier = [begun("2026-01-01", head, 2, seed, kl=9.0) for head in heads for seed in (0, 1)]
    folders = [write_runs(tmp_path / "b", later), write_runs(tmp_path / "a", earlier)]
    for order in (folders, folders[::-1], [*folders, folders[1]]):
        results = load(order)
        assert [r["metrics"]["kl"] for r in results.cells] == [r["metrics"]["kl"] for r in later]
        assert [r["metrics"]["kl"] for r in results.repeated] == 4 * [9.0]
    page = write_report(folders, tmp_path / "r.html")[0].read_text(encoding="utf-8")
    assert "Fitted again later, which counts instead" in page and "4 fits of the synthetic" in page
    assert "LMS, PLIF, M = 100, N = 1,000, α = 0.1, D = 2, seed 1 of 2026-01-01" in page


def test_cells_of_different_settings_are_not_put_together(tmp_path):
    loose = record("plif", 4)
    loose = {**loose, "settings": {**loose["settings"], "tolerance": 0.05}}
    folders = [write_runs(tmp_path / "a", [record("plif", 2)]), write_runs(tmp_path / "b", [loose])]
    with pytest.raises(ValueError, match=r"`tolerance` is 0.001 in `.*a/.*` and 0.05 in `.*b/.*`"):
        load(folders)


@pytest.mark.parametrize(
    "text, lost",
    [
        ('{"kind": "synthetic-cell"}', "lacks certified"),
        ('{"kind": "theory"}', "`rows`"),
        ('{"kind": "theory", "rows": [1]}', "`rows`"),
    ],
)
def test_a_record_that_is_not_whole_is_named(text, lost, tmp_path):
    (tmp_path / "cut.json").write_text(text)
    with pytest.raises(ValueError, match=f"whole records of .*cut.json` .*{lost}"):
        load([tmp_path])


@pytest.mark.parametrize("part", ["cell", "settings", "metrics", "parameters", "provenance"])
def test_a_cell_that_lacks_a_part_is_named(part, tmp_path):
    write_json(tmp_path / "cut.json", record("plif", 2, **{part: None}))
    with pytest.raises(ValueError, match=f"cut.json` its {part} lacks"):
        load([tmp_path])


def test_of_several_theory_tables_the_latest_is_shown_and_the_others_are_named(tmp_path):
    for name, when in (("a", "2026-02-01"), ("b", "2026-01-01")):
        write_json(tmp_path / f"{name}.json", {**THEORY, "provenance": {"started": when}})
    write_json(tmp_path / "copy.json", {**THEORY, "provenance": {"started": "2026-02-01"}})
    results = load([tmp_path])
    assert results.theory and results.theory["provenance"]["started"] == "2026-02-01"
    assert results.unused_theory == [tmp_path / "b.json"]
    assert build(results)[0].paragraphs[-1].endswith(f"left out: {tmp_path.name}/b.json.")


def test_files_of_other_kinds_are_named_not_drawn(tmp_path):
    write_runs(tmp_path, [record("plif", 2)])
    write_json(tmp_path / "result.json", {"kind": "something else"})
    write_json(tmp_path / "list.json", {"kind": []})
    page = write_report([tmp_path], tmp_path / "r.html")[0].read_text(encoding="utf-8")
    assert "Not shown" in page and "result.json" in page and "list.json" in page


def test_theory_alone_makes_a_page(tmp_path):
    write_runs(tmp_path, [])
    assert "The theory, checked" in write_report([tmp_path], tmp_path / "r.html")[0].read_text(
        encoding="utf-8"
    )


RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json*")), ids=lambda file: file.name)
def test_the_numbers_in_the_documentation_are_those_of_the_result_files(file):
    sections = build(load([file]))
    assert file.with_suffix(".md").read_text(encoding="utf-8") == markdown(sections)
    for figure in pictures(sections):
        assert file.with_name(f"{figure.name}.svg").read_bytes() == figure.svg


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="found none"):
        load([tmp_path])


def test_the_command(tmp_path, capsys):
    runs, output = write_runs(tmp_path / "runs", [record("plif", 2)]), tmp_path / "page.html"
    assert cli.main(["report", str(runs), "-o", str(output), "--figures", str(tmp_path / "f")]) == 0
    assert str(output) in capsys.readouterr().out and list((tmp_path / "f").glob("*.svg"))
    assert cli.main(["report", str(tmp_path / "nowhere"), "-o", str(output)]) == 2


def test_one_width_is_a_table_and_no_picture(tmp_path):
    drawn = lambda records, name: [
        len(section.figures)
        for section in build(load([write_runs(tmp_path / name, records)]))
        if section.anchor.startswith("alpha")
    ]
    assert drawn([record("plif", 2)], "one") == [0]
    assert drawn([record("plif", 2), record("plif", 4)], "two") == [2]
