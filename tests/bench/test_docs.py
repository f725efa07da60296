"""The section of the documentation that a GPU benchmark fills."""

from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks.__main__ as command
from benchmarks import contenders as who, docs, groups, roofline, table
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
    arguments = ["docs", "--results", str(results), "--page", str(page)]
    assert command.main(arguments) == 0
    once = page.read_text()
    assert docs.stated(once) == docs.section(docs.newest(results))
    assert once.startswith("before\n\n<!--") and once.endswith("-->\n\nafter\n") and "old" not in once
    assert command.main(arguments) == 0 and page.read_text() == once


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
    rows = [
        row(who.PLIF_, 2.0, peak_bytes=9 * mib, gradient_bytes=mib),
        row(who.DETERMINISTIC, 5.0, peak_bytes=7 * mib, gradient_bytes=mib),
        row(who.PLIF_, 2.0, MIXTURES),
    ]
    (line,) = cells(roofline.fixed_order(rows))[2:]
    assert line == ["64 x 8 x 500", "bf16", "calls", "2.00", "5.00", "2.50x", "8", "6"]


def test_says_so_without_a_benchmark(tmp_path, capsys):
    assert docs.newest(tmp_path) is None
    assert command.main(["docs", "--results", str(tmp_path), "--page", str(tmp_path / "page.md")]) == 1
    assert "no gpu_*.csv" in capsys.readouterr().out
