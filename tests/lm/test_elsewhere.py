"""Runs that continue where something has changed: the place of their text, the threads of the machine."""

from dataclasses import replace

import pytest
import torch

from tests.lm.test_trainer import StopAfter, metrics
from uncork.lm import Interrupted, train
from uncork.lm.progress import Progress


def stop(monkeypatch, config, folder):
    """Train for five steps and save the state."""
    with monkeypatch.context() as patch:
        StopAfter(patch, 5)
        with pytest.raises(Interrupted):
            train(config, folder)


def test_a_run_on_a_text_of_its_own_goes_on_where_the_text_has_moved(make_config, tmp_path, monkeypatch):
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid", "test"):
        (text / f"{split}.txt").write_text("a b c a b\n" * 200, encoding="utf-8")
    config = make_config()
    at = lambda folder: replace(config, data=replace(config.data, corpus=str(folder)))
    train(at(text), tmp_path / "whole")
    stop(monkeypatch, at(text), tmp_path / "run")
    with pytest.raises(ValueError, match=r"these differ: data\.corpus"):
        train(at("embedded"), tmp_path / "run", resume=True)
    moved = text.rename(tmp_path / "moved")
    train(at(moved), tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    stop(monkeypatch, at(moved), tmp_path / "other")
    (moved / "test.txt").write_text("a c\n" * 200, encoding="utf-8")
    with pytest.raises(ValueError, match="corpus must be the one the run was started on"):
        train(at(moved), tmp_path / "other", resume=True)


def test_a_run_goes_on_with_its_threads(make_config, tmp_path, monkeypatch):
    """Sums are split among threads, and rounded accordingly."""
    config, threads, seen = make_config(device="cpu"), torch.get_num_threads(), []
    monkeypatch.setattr(Progress, "say", lambda self, text: seen.append(torch.get_num_threads()))
    try:
        torch.set_num_threads(threads + 1)
        stop(monkeypatch, config, tmp_path)
    finally:
        torch.set_num_threads(threads)
    train(config, tmp_path, resume=True)
    assert set(seen) == {threads + 1} and torch.get_num_threads() == threads
