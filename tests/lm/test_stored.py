"""Files of a run folder that are JSON, and not what they should be: named wherever they are read."""

import math
import re
from functools import partial
from shutil import copytree

import pytest

from tests.lm.test_trainer import StopAfter
from uncork.lm import Interrupted, load_run, train
from uncork.lm.checkpoint import DamagedCheckpoint
from uncork.lm.pack import pack


@pytest.fixture
def folders(make_config, tmp_path, monkeypatch):
    """The configuration, a finished run, and one that was stopped in its second epoch."""
    config = make_config()
    train(config, tmp_path / "ended")
    with monkeypatch.context() as patch:
        StopAfter(patch, 25)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "stopped")
    return config, tmp_path / "ended", tmp_path / "stopped"


def refused(work, path, reason):
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=f"`{re.escape(str(path))}` must {reason}"):
        work()
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("text", ["[]", "5", "null", "{}", '{"resumed": 5}'])
def test_an_origin_that_is_none(folders, tmp_path, text):
    config, _, stopped = folders
    path = stopped / "provenance.json"
    path.write_text(text)
    reason = "hold where a run was made, but it holds .* or delete it"
    refused(lambda: train(config, stopped, resume=True), path, reason)
    refused(lambda: pack(stopped, tmp_path / "file"), path, reason)
    path.unlink()
    train(config, stopped, resume=True)


def test_a_configuration_that_is_none(folders, tmp_path):
    _, ended, _ = folders
    path = ended / "config.json"
    path.write_text("{}")
    for work in (lambda: load_run(ended), lambda: pack(ended, tmp_path / "file")):
        refused(work, path, "hold a configuration of this version, but it does not: .* has no default")


@pytest.mark.parametrize("text", ["{}", "5", "null", '{"steps": "3"}'])
def test_a_result_that_is_none(folders, tmp_path, text):
    config, ended, _ = folders
    path = ended / "result.json"
    path.write_text(text)
    refused(lambda: train(config, ended, resume=True), path, "give `parameters` as a number")
    refused(lambda: pack(ended, tmp_path / "file"), path, "give `parameters` as a number")


@pytest.mark.parametrize("text", ["{}", "5", "null", "[]", "[1]"])
def test_words_that_are_none(folders, make_config, tmp_path, text):
    _, ended, stopped = folders
    for folder in (ended, stopped):
        path = folder / "words.json"
        path.write_text(text)
        for work in (partial(load_run, folder), partial(pack, folder, tmp_path / "file")):
            refused(work, path, "hold a list of words, but .* Put it back from a copy")
    finetuned = make_config(finetune=str(ended))
    refused(lambda: train(finetuned, tmp_path / "new"), ended / "words.json", "hold a list of words")


@pytest.mark.parametrize(
    "name, text",
    [
        ("provenance.json", '{"uncork'),
        ("packed.json", "[1, 2"),
        ("packed.json", "{}"),
        ("metrics.jsonl", "[]\n"),
        ("words.json", '["a'),
    ],
)
def test_a_run_is_packed_when_all_of_it_can_be_read(folders, tmp_path, name, text):
    for folder in folders[1:]:
        (folder / name).write_text(text)
        refused(partial(pack, folder, tmp_path / "file"), folder / name, "")
    assert not (tmp_path / "file").exists()


def test_a_damaged_model_comes_with_a_remedy(folders, tmp_path):
    _, ended, _ = folders
    path = ended / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    for work in (lambda: load_run(ended), lambda: pack(ended, tmp_path / "file")):
        with pytest.raises(DamagedCheckpoint, match="model.safetensors` is damaged.* Put it back from"):
            work()


def test_an_ended_run_without_its_model_is_not_told_to_train_on(folders, tmp_path, capsys):
    config, ended, _ = folders
    (ended / "model.safetensors").unlink()
    for work in (lambda: load_run(ended), lambda: pack(ended, tmp_path / "file")):
        with pytest.raises(FileNotFoundError, match="has lost its model: the run has ended.* does not write"):
            work()
    capsys.readouterr()
    assert train(config, ended, resume=True)["test_perplexity"] > 1.0
    assert "has ended and lost its model.safetensors, which is not written anew" in capsys.readouterr().err


def test_a_test_loss_that_is_none_is_no_result(make_config, tmp_path, monkeypatch):
    from uncork.lm import trainer

    original, calls = trainer.evaluate, []

    def diverging(*arguments):
        calls.append(arguments)
        return type("S", (), {"nll": math.nan}) if len(calls) == 5 else original(*arguments)

    monkeypatch.setattr(trainer, "evaluate", diverging)  # three epochs, valid and test
    with pytest.raises(ValueError, match="test loss is nan at step .*Lower optim.lr"):
        train(make_config(), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()


def test_what_a_killed_save_left_is_removed_by_the_next_holder(folders):
    config, _, stopped = folders
    left = [stopped / ".model.safetensors.0123abcd.tmp", stopped / ".result.json.ffffffff.tmp"]
    others = [stopped / ".evaluation-plain-test.json.0123abcd.tmp", stopped / ".model.safetensors.tmp"]
    for file in left + others:
        file.write_bytes(b"half")
    again = copytree(stopped, stopped.with_name("again"))
    pack(again, again.with_suffix(".pack"))
    train(config, stopped, resume=True)
    for folder in (stopped, again):
        for file in left:
            assert not (folder / file.name).exists()
        assert all((folder / file.name).exists() for file in others)
