"""The commands of theory, experiment and demo, at sizes for a test."""

import sys
from dataclasses import replace

import pytest

from uncork import cli
from uncork.results import read_json
from uncork.synthetic import Settings


SMALL = ["--contexts", "40", "--widths", "2", "--seeds", "0", "--workers", "1"]


@pytest.fixture
def quick(monkeypatch):
    """Fits of two passes: these tests are about the commands, not the numbers."""
    settings = Settings(rates=(0.1,), trial_passes=1, max_passes=2, table=200, certified_contexts=5)
    for command in ("synthetic", "demo"):
        module = sys.modules[f"uncork.cli.{command}"]
        monkeypatch.setattr(module, "Settings", lambda **changes: replace(settings, **changes))


def test_theory_prints_the_table_and_writes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["theory", "--json", str(tmp_path / "theory.json")]) == 0
    printed = capsys.readouterr().out
    assert "Theorem 6" in printed and "misprint" in printed and "N >= 3" in printed
    rows = read_json(tmp_path / "theory.json")["rows"]
    assert len(rows) > 20 and all(row["as_expected"] for row in rows)


def test_theory_fails_when_a_statement_does(monkeypatch, capsys):
    from uncork.theory.demonstrations import Demonstration

    surprise = Demonstration("a statement", "something", 1.0, ">=", 2.0, holds=False)
    monkeypatch.setattr(sys.modules["uncork.cli.theory"], "demonstrations", lambda seed: [surprise])
    assert cli.main(["theory"]) == 1
    assert "not as expected" in capsys.readouterr().out


def test_synthetic_prints_tables_and_the_claim(tmp_path, capsys, quick):
    sizes = ["--vocabularies", "10", "--concentrations", "0.1", *SMALL]
    arguments = ["synthetic", "--out", str(tmp_path), *sizes]
    assert cli.main([*arguments, "--bundle", str(tmp_path / "all.jsonl")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "M = 10, alpha = 0.1" in printed and "Linear-Softmax" in printed
    assert "combinations of vocabulary" in printed and "6 made, 0 left" in printed
    assert cli.main(arguments) == 0
    assert "6 cells found, 0 made" in " ".join(capsys.readouterr().out.split())
    again = ["synthetic", "--out", str(tmp_path / "again"), *sizes, "--resume", str(tmp_path / "all.jsonl")]
    assert cli.main(again) == 0
    assert "6 cells found, 0 made" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "option, value", [("--heads", "linear"), ("--concentrations", "-1"), ("--contexts", "0")]
)
def test_synthetic_refuses_bad_values_by_name(option, value, tmp_path, capsys):
    assert cli.main(["synthetic", "--out", str(tmp_path), option, value]) == 2
    assert option[2:].removesuffix("s") in capsys.readouterr().err


def test_demo_ends_with_the_path_of_the_report(tmp_path, capsys, monkeypatch, quick):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["demo", "--out", str(tmp_path), "--vocabulary", "10", *SMALL]) == 0
    printed = capsys.readouterr().out
    for step in ("1. The theory", "2. Every head", "3. The report"):
        assert step in printed
    page = tmp_path / "report.html"
    assert printed.rstrip().endswith(str(page))
    text = page.read_text(encoding="utf-8")
    assert "The theory, checked" in text and "The learned functions" in text
