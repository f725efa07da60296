"""The benchmark of training steps, with tiny models on a CPU."""

import csv

import pytest

import benchmarks.__main__ as command
from benchmarks import training


def test_a_dry_run_measures_every_way_there_is_here(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "WINDOWS", 2)
    monkeypatch.setattr(training, "WARM_UP", 0)
    arguments = ["training", "--device", "cpu", "--tiny", "--seconds", "0", "--commit", "abc"]
    assert command.main([*arguments, "--recipes", "penn_softmax", "penn_plif", "--out", str(tmp_path)]) == 0
    (page,), (data,) = tmp_path.glob("*.md"), tmp_path.glob("*.csv")
    rows = list(csv.DictReader(data.read_text().splitlines()))
    assert [r["recipe"] for r in rows] == ["penn_softmax"] * len(training.WAYS) + ["penn_plif"] * len(
        training.WAYS
    )
    measured = {(r["recipe"], r["way"]): r for r in rows if r["ms"]}
    assert {way for _, way in measured} == {training.PLAIN, "calls", "calls, bfloat16"}
    for recipe in ("penn_softmax", "penn_plif"):
        losses = [float(r["nll"]) for (name, _), r in measured.items() if name == recipe]
        assert losses == pytest.approx([losses[0]] * 3, rel=2e-3)
    assert {r["failure"] for r in rows if not r["ms"]} == {"ValueError: CUDA graphs need a GPU"}
    text = page.read_text()
    assert "abc" in text and "at most 1.15x softmax" in text and "CUDA graphs need a GPU" in text


def test_without_a_gpu_nothing_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert command.main(["training", "--out", str(tmp_path)]) == 1
    assert "no GPU" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_some_ways_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "WINDOWS", 1)
    monkeypatch.setattr(training, "WARM_UP", 0)
    arguments = ["training", "--device", "cpu", "--tiny", "--seconds", "0", "--recipes", "penn_softmax"]
    assert command.main([*arguments, "--ways", "by hand", "--out", str(tmp_path)]) == 1
    assert "no way 'by hand'" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert command.main([*arguments, "--ways", "calls", "--out", str(tmp_path)]) == 0
    (data,) = tmp_path.glob("*.csv")
    assert [r["way"] for r in csv.DictReader(data.read_text().splitlines())] == ["calls"]
