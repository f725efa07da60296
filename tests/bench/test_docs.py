"""The section of the documentation that a GPU benchmark fills."""

from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks.__main__ as command
from benchmarks import contenders as who, docs, groups, origins, roofline, table
from benchmarks.rows import Block, Row, record


BLOCK = Block("large", "", 64, 8, 500, 100, 0, "bf16", 0.3, groups.CALLS)
MIXTURES = replace(BLOCK, group="penn", dtype="tf32", mode=groups.GRAPH)
ORIGIN = (("torch", "2.0"), ("commit", "12e456789012"), ("hardware", "Card, 1"), ("triton", ""))


def row(contender: str, ms: float | None, block: Block = BLOCK, **fields) -> Row:
    return Row(block, contender, ms=ms, ms_25=ms, ms_75=ms, origin=ORIGIN, **fields)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    mib = 2**20
    rows = [
        row(who.COMPILED, 40.0),
        row(who.LIGER, 50.0),
        row(who.SOFTMAX, 44.0, peak_bytes=15 * mib, gradient_bytes=5 * mib),
        row(who.SCALE, None, failure="it broke"),
        row(who.EAGER_MOS, 8.0, MIXTURES),
        row(who.MOS, 2.0, MIXTURES),
    ]
    table.write(tmp_path, "gpu_zcard_2026-01-02", "", [record(r) for r in rows[:1]])
    table.write(tmp_path, "gpu_card_2026-11-02", "", [record(r) for r in rows])
    (tmp_path / "gpu_card_2026-11-02_V.png").write_bytes(b"")
    return tmp_path


def cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_line_for_each_target(results):
    path = docs.newest(results)
    assert path.name == "gpu_card_2026-11-02.csv"
    text = docs.section(path)
    assert text.startswith("`benchmarks/results/gpu_card_2026-11-02.csv`: Card, 1, torch 2.0, commit 12e")
    assert "triton" not in text.splitlines()[0]
    _, large, penn = text.split("\n\n**64 tokens, width 8, 500 words, ")
    assert large.startswith("bf16**\n\n|") and penn.startswith("tf32**\n\n|")
    head, _, *lines = cells(large)
    assert head == docs.HEADINGS
    assert lines[:2] == [
        ["softmax", "0.3", "calls", "44.000", "1.100x torch.compile", "at most 1.05x", "missed", "10.0"],
        ["softmax", "0.3", "calls", "44.000", "", "at most 300 MiB", "met", "10.0"],
    ]
    (scale,) = [line for line in lines if line[0] == "Scale"]
    assert scale[3:] == ["", "", "at most 1.03x", "not measured: it broke", ""]
    (mixture,) = [line for line in cells(penn) if line[0] == "MoS"]
    assert mixture[2:] == ["graph", "2.000", "0.250x torch eager MoS", "at most 0.333x", "met", ""]
    alone = [line for line in text.splitlines() if line.startswith("- ")]
    memory = "- penn, uncork MoS: at most 150 MiB beyond the gradients; not measured: no rows of calls"
    assert [line for line in alone if line.startswith(memory)] == alone[2:3] and len(alone) == 6
    figures = [line for line in text.splitlines() if line.startswith("![")]
    assert figures == [
        "![Time and peak extra memory against words V](../benchmarks/results/gpu_card_2026-11-02_V.png)"
    ]


def test_the_command_fills_the_page(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- gpu table -->\n\nold\n\n<!-- end of gpu table -->\n\nafter\n")
    arguments = ["docs", "--results", str(results), "--pages", str(page)]
    assert command.main(arguments) == 0
    once = page.read_text()
    assert docs.stated(once) == docs.section(docs.newest(results))
    assert once.startswith("before\n\n<!--") and once.endswith("-->\n\nafter\n") and "old" not in once
    assert command.main(arguments) == 0 and page.read_text() == once


def test_plif_against_softmax():
    """The widest shape first, as a graph where there is one; of the axes only that of knots, at the usual."""
    late, narrow = replace(BLOCK, spread=3.5), replace(BLOCK, group="penn", width=4)
    graph = replace(narrow, mode=groups.GRAPH)
    along_k = replace(BLOCK, group="scaling", axis="k", width=6, knots=groups.KNOTS)
    along_n = replace(along_k, axis="N")
    times = {
        narrow: 9.0, graph: 1.5, replace(graph, spread=3.5): 1.5, BLOCK: 1.25, late: 1.1,
        along_k: 1.2, replace(along_k, knots=10): 7.0, along_n: 8.0,
    }  # fmt: skip
    rows = [
        row(name, 2.0 * (ms if name == who.PLIF_ else 1.0), block)
        for block, ms in times.items()
        for name in (who.SOFTMAX, who.PLIF_)
    ]
    rows += [row(who.PLIF_, 5.0, replace(BLOCK, group="deterministic", words=7))]
    tokens = "64 tokens, width"
    assert cells(docs.ratios(rows))[2:] == [
        [f"{tokens} 8, 500 words, bf16", "1.10 to 1.25"],
        [f"{tokens} 6, 500 words, bf16", "1.20"],
        [f"{tokens} 4, 500 words, bf16, CUDA graph", "1.50"],
    ]


def test_how_far_from_the_floor():
    late = replace(BLOCK, spread=3.5)
    rows = [
        row(who.COPY, 0.5, late, moved_bytes=2 * 10**9),
        row(who.PRODUCTS, 3.0, late),
        row(who.SOFTMAX, 5.0, late, moved_bytes=4 * 10**9),
        row(who.SOFTMAX, 7.0, moved_bytes=4 * 10**9),  # the other spread is left out
        row(who.MOS, 9.0, late, moved_bytes=8 * 10**9),  # its products were not measured
    ]
    (line,) = cells(roofline.roofline(rows))[2:]
    sizes = "64 x 8 x 500"
    assert line == [sizes, "bf16", "softmax", "3.00", "4.00", "4.0", "1.00", "4.00", "5.00", "1.25x"]


def test_the_cost_of_a_fixed_order():
    mib = 2**20
    late = replace(BLOCK, spread=3.5)  # of an older run, and so before the others
    rows = [
        row(who.PLIF_, 2.0, late),
        row(who.DETERMINISTIC, 3.0, late),
        row(who.PLIF_, 2.0, peak_bytes=9 * mib, gradient_bytes=mib),
        row(who.DETERMINISTIC, 5.0, peak_bytes=7 * mib, gradient_bytes=mib),
        row(who.PLIF_, 2.0, MIXTURES),
    ]
    early, after = cells(roofline.fixed_order(rows))[2:]
    assert early == ["64 x 8 x 500", "bf16", "0.3", "calls", "2.00", "5.00", "2.50x", "8", "6"]
    assert after == ["64 x 8 x 500", "bf16", "3.5", "calls", "2.00", "3.00", "1.50x", "", ""]


def of(commit: str, *blocks: Block) -> list[Row]:
    return [replace(row(who.PLIF_, 1.0, block), origin=(("commit", commit),)) for block in blocks]


def test_which_rows_are_of_which_commit():
    late = replace(BLOCK, spread=3.5)
    calls, late_calls = (replace(block, group="penn", dtype="tf32") for block in (BLOCK, late))
    graph, late_graph = (replace(block, mode=groups.GRAPH) for block in (calls, late_calls))
    points = [
        replace(BLOCK, group="scaling", axis="k", knots=knots, spread=spread)
        for knots in (100, 1000, 2000)
        for spread in (0.3, 3.5)
    ]
    fixed = replace(BLOCK, group="deterministic")
    rows = [
        *of("aaaaaaa", BLOCK, calls, *points[:2], points[4]),
        *of("bbbbbbb", late, *points[2:4]),
        *of("ccccccc", graph, late_graph, late_calls),
        *of("ddddddd", fixed, points[5]),
    ]
    found = cells(origins.origins(rows, {"bbbbbbb": "older"}))[2:]
    shape = "64 x 8 x 500"
    assert found == [
        ["all others", "aaaaaaa", ""],
        [f"{shape} bf16 (spread 3.5); scaling with k (k 1,000)", "bbbbbbb", "older"],
        [f"{shape} tf32 (calls at spread 3.5; graph)", "ccccccc", ""],
        [f"scaling with k (spread 3.5, k 2,000); fixed order, {shape} bf16", "ddddddd", ""],
    ]
    assert cells(origins.origins(of("aaaaaaa", BLOCK, late), {}))[2:] == [["all", "aaaaaaa", ""]]


def test_rows_that_no_spread_and_point_tell_are_named_one_by_one():
    points = [
        replace(BLOCK, group="scaling", axis="k", knots=knots, spread=spread)
        for knots in (100, 1000)
        for spread in (0.3, 3.5)
    ]
    across = [points[0], points[3]]
    rows = of("aaaaaaa", points[1], points[2], BLOCK) + of("bbbbbbb", *across)
    (line,) = cells(origins.origins(rows, {}))[3:]
    assert line[0] == f"scaling with k ({across[0]}, {across[1]})"


def test_a_block_of_two_commits_is_refused():
    rows = of("aaaaaaa", BLOCK) + [replace(row(who.SOFTMAX, 1.0), origin=(("commit", "bbbbbbb"),))]
    with pytest.raises(ValueError, match="unpack"):
        origins.origins(rows, {})


def test_rows_of_several_runs(tmp_path):
    """What the section of targets then says of versions; notes lie beside the CSV."""
    here = (("hardware", "Card, 1"), ("commit", "aaaaaaa"), ("triton", "absent"))
    there = (("hardware", "Card, 1"), ("commit", "bbbbbbb"), ("triton", "3.0"))
    late = replace(BLOCK, spread=3.5)
    rows = [replace(row(who.PLIF_, 1.0), origin=here), replace(row(who.PLIF_, 1.0, late), origin=there)]
    table.write(tmp_path, "gpu_card_2026-11-02", "", [record(r) for r in rows])
    path = tmp_path / "gpu_card_2026-11-02.csv"
    assert docs.section(path).startswith(
        "`benchmarks/results/gpu_card_2026-11-02.csv`: Card, 1, triton 3.0.\n"
    )
    assert docs.notes(path) == {}
    (tmp_path / docs.NOTES).write_text('{"bbbbbbb": "slow"}')
    assert cells(docs.sections(path)[docs.ORIGINS])[-1] == [
        "64 x 8 x 500 bf16 (spread 3.5)",
        "bbbbbbb",
        "slow",
    ]


def test_says_so_without_a_benchmark(tmp_path, capsys):
    assert docs.newest(tmp_path) is None
    assert command.main(["docs", "--results", str(tmp_path), "--pages", str(tmp_path / "page.md")]) == 1
    assert "no gpu_*.csv" in capsys.readouterr().out


def test_says_so_of_a_page_without_marks(results, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("nothing to fill\n")
    assert command.main(["docs", "--results", str(results), "--pages", str(page)]) == 1
    assert "no marks" in capsys.readouterr().out and page.read_text() == "nothing to fill\n"
