"""The CPU benchmark runs at a tiny size, writes what it says, and measures nothing when a result is wrong."""

import csv

import pytest
import torch

import benchmarks.__main__ as command
from benchmarks import cpu, measure, table


def test_gate_is_green():
    assert cpu.gate() == []


def test_refuses_on_red(monkeypatch, tmp_path, capsys):
    """A contender that is off by a thousandth is caught, named, and nothing is timed or written."""
    wrong = lambda p: cpu.Eager()(p) * 1.001
    monkeypatch.setitem(cpu.CONTENDERS, "uncork softmax", lambda: wrong)
    monkeypatch.setattr(measure, "interleaved", lambda *_: pytest.fail("measured all the same"))
    assert command.main(["cpu", "--quick", "--out", str(tmp_path)]) == 1
    assert "uncork softmax" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_smoke(monkeypatch, tmp_path, capsys):
    """Two contenders, tiny: a table on the screen, a CSV and a Markdown file with where they come from."""
    for name in set(cpu.CONTENDERS) - {cpu.EAGER, "uncork PLIF k=1e5"}:
        monkeypatch.delitem(cpu.CONTENDERS, name)
    assert command.main(["cpu", "--quick", "--rounds", "2", "--out", str(tmp_path)]) == 0
    (text,), (data,) = tmp_path.glob("*.md"), tmp_path.glob("*.csv")
    printed = capsys.readouterr().out
    assert "| uncork PLIF k=1e5 |" in printed and "| uncork PLIF k=1e5 |" in text.read_text()
    assert f"torch: {torch.__version__}" in text.read_text() and "hardware" in text.read_text()
    rows = list(csv.DictReader(data.read_text().splitlines()))
    assert [row["contender"] for row in rows] == [cpu.EAGER, "uncork PLIF k=1e5"]
    assert float(rows[0]["wall_ratio"]) == 1.0 and float(rows[1]["wall_ms_50"]) > 0
    shares = [float(rows[1][f"share_{label}"]) for label in cpu.SHARES]
    assert sum(shares) == pytest.approx(1.0) and min(shares[:-1]) >= 0


def test_memory_of_a_step():
    """200 MB that live for a moment are seen; what was there before is not.

    Less might fit into memory that the allocator has kept from earlier tests.
    """
    ballast = torch.ones(20_000_000)
    rise = measure.peak_rise(lambda: None, lambda: torch.ones(50_000_000).sum())
    assert 190e6 <= rise <= 230e6
    del ballast


def test_no_ratio_to_a_peak_of_nothing():
    assert cpu.memory_text(3 * 2**20, 2 * 2**20) == "3 (1.50x)"
    assert cpu.memory_text(4 * 2**20, 0) == "4"


def test_spread():
    spread = measure.Spread.of([5.0, 1.0, 2.0, 3.0, 4.0, 6.0])
    assert (spread.low, spread.median, spread.high) == (2.0, 3.5, 5.0)
    assert measure.Spread.of([7.0]) == measure.Spread(7.0, 7.0, 7.0)


def test_stopwatch_counts_the_outermost():
    with measure.stopwatch([(torch, "mm", "a"), (torch, "addmm", "a")]) as seconds:
        torch.mm(torch.ones(50, 50), torch.ones(50, 50))
    assert set(seconds) == {"a"}
    before = dict(seconds)
    torch.mm(torch.ones(50, 50), torch.ones(50, 50))
    assert seconds == before


def test_markdown():
    assert table.markdown(["a", "b"], [["1", "22"]]) == "| a | b  |\n|---|----|\n| 1 | 22 |"
    assert table.slug("AMD EPYC, 2 threads") == "amd-epyc-2-threads"
