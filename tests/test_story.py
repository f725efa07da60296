"""The commands of theory, experiment and demo, at sizes for a test."""

import sys

import pytest

from uncork import cli
from uncork.results import read_json


SMALL = ["--contexts", "40", "--widths", "2", "--seeds", "0", "--workers", "1", "--tolerance", "0.5"]


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


def test_synthetic_prints_tables_and_the_claim(tmp_path, capsys):
    arguments = ["synthetic", "--out", str(tmp_path), "--vocabularies", "10", "--concentrations", "0.1", *SMALL]
    assert cli.main([*arguments, "--bundle", str(tmp_path / "all.jsonl")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "M = 10, alpha = 0.1" in printed and "Linear-Softmax" in printed
    assert "combinations of vocabulary" in printed and "6 made, 0 left" in printed
    assert cli.main(arguments) == 0
    assert "6 cells found, 0 made" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("option, value", [("--heads", "linear"), ("--concentrations", "-1"), ("--contexts", "0")])
def test_synthetic_refuses_bad_values_by_name(option, value, tmp_path, capsys):
    assert cli.main(["synthetic", "--out", str(tmp_path), option, value]) == 2
    assert option[2:].removesuffix("s") in capsys.readouterr().err


def test_demo_ends_with_the_path_of_the_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["demo", "--out", str(tmp_path), "--vocabulary", "10", *SMALL]) == 0
    printed = capsys.readouterr().out
    for step in ("1. The theory", "2. Every head", "3. The report"):
        assert step in printed
    page = tmp_path / "report.html"
    assert printed.rstrip().endswith(str(page))
    text = page.read_text(encoding="utf-8")
    assert "The theory, checked" in text and "The learned functions" in text
