"""Runs that continue: from their last step, in a folder that is whole, and never as another run."""

import errno
import os
from dataclasses import replace
from shutil import rmtree

import pytest
import torch

from tests.lm.test_trainer import StopAfter, metrics, outcome
from uncork import results
from uncork.lm import Interrupted, load_run, train
from uncork.lm.pack import pack, unpack


@pytest.fixture
def stop_at(monkeypatch):
    """Train until a signal comes in the middle of a step."""

    def stop(config, folder, step, resume=False):
        with monkeypatch.context() as patch:
            StopAfter(patch, step)
            with pytest.raises(Interrupted):
                train(config, folder, resume=resume)

    return stop


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(config, folder, message, *, resume=True):
    """Training ends with that message and leaves the folder as it was."""
    before = contents(folder)
    with pytest.raises(ValueError, match=message):
        train(config, folder, resume=resume)
    assert contents(folder) == before


@pytest.mark.parametrize("last", [5, 20, 25])  # in the first epoch, about at its end, in the second
def test_a_run_stopped_by_its_last_step_is_still_evaluated(make_config, tmp_path, stop_at, last):
    config = make_config(max_steps=last)
    train(config, tmp_path / "whole")
    stop_at(config, tmp_path / "parts", last)
    train(config, tmp_path / "parts", resume=True)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    name = "model.safetensors"
    assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_tells_where_it_went_on(make_config, tmp_path, stop_at, monkeypatch):
    config = make_config()
    stop_at(config, tmp_path, 5)
    start = results.read_json(tmp_path / "provenance.json")
    monkeypatch.setattr(results, "_commit", lambda: "another")
    stop_at(config, tmp_path, 4, resume=True)
    for _ in range(2):  # a run that has ended is not resumed
        train(config, tmp_path, resume=True)
    told = results.read_json(tmp_path / "provenance.json")
    first, second = told.pop("resumed")
    assert told == start and (first.pop("step"), second.pop("step")) == (5, 9)
    assert first.keys() == start.keys() and first["commit"] == second["commit"] == "another"


@pytest.mark.parametrize("save_epochs", [1, 2])
def test_a_run_killed_after_its_first_measurement_continues(make_config, tmp_path, monkeypatch, save_epochs):
    """Before the first state that an epoch's end saves."""
    from uncork.lm import trainer

    config = make_config(save_epochs=save_epochs)
    train(config, tmp_path / "whole")
    original = trainer.append_jsonl

    def killed(*arguments):
        original(*arguments)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "append_jsonl", killed)
        with pytest.raises(MemoryError):
            train(config, tmp_path / "parts")
    assert len(metrics(tmp_path / "parts")) == 1
    train(config, tmp_path / "parts", resume=True)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("finished", [True, False])
def test_a_run_without_its_configuration_is_left_alone(make_config, tmp_path, stop_at, finished, resume):
    config = make_config(max_steps=5)
    if finished:
        train(config, tmp_path)
        rmtree(tmp_path / "state")
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "lock").touch()
    else:
        stop_at(config, tmp_path, 3)
    (tmp_path / "config.json").unlink()
    message = (
        rf"`{tmp_path}` must have the config.json.*Put config.json back, or choose a new folder \(--out\)"
    )
    refused(replace(config, seed=9), tmp_path, message, resume=resume)


@pytest.mark.parametrize("damaged", ["{", "[1]"])
def test_a_damaged_configuration_is_put_back_and_not_deleted(make_config, tmp_path, stop_at, damaged):
    config = make_config()
    stop_at(config, tmp_path, 25)
    (tmp_path / "config.json").write_text(damaged)
    remedy = r"config.json` must .*Put it back from a copy, or choose a new folder \(--out\)"
    refused(config, tmp_path, remedy)
    with pytest.raises(ValueError, match=remedy):
        load_run(tmp_path)
    with pytest.raises(ValueError, match=remedy):
        pack(tmp_path, tmp_path.with_suffix(".pack"))


def test_other_damaged_files_keep_their_remedy(tmp_path):
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(ValueError, match="Delete it and run again"):
        results.read_json(tmp_path / "result.json")


def test_with_nothing_to_resume_a_run_starts_and_says_so(make_config, tmp_path, stop_at, capsys):
    config = make_config(max_steps=2)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        train(config, tmp_path / name, resume=True)
        assert f"nothing to resume in {tmp_path / name}: starting" in capsys.readouterr().err.splitlines()
    stop_at(config, tmp_path / "stopped", 1)
    train(config, tmp_path / "stopped", resume=True)
    assert "nothing to resume" not in capsys.readouterr().err


def test_a_start_that_was_killed_before_its_configuration_starts_again(make_config, tmp_path):
    results.write_json(tmp_path / "words.json", [])
    assert train(make_config(max_steps=2), tmp_path, resume=True)["steps"] == 2


@pytest.mark.parametrize("kept", ["model.safetensors", "metrics.jsonl"])
def test_a_run_that_lost_its_states_keeps_what_it_measured(make_config, tmp_path, stop_at, kept):
    config = make_config()
    stop_at(config, tmp_path, 25)
    for path in (tmp_path / "state").glob("step-*"):
        path.unlink()
    for name in {"model.safetensors", "metrics.jsonl"} - {kept}:
        (tmp_path / name).unlink()
    refused(config, tmp_path, rf"must have a saved state to be resumed, but it has {kept}.*--out")


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("metrics.jsonl", r"line for each of the 1 epochs .* but it lacks epoch 1\. Put it back"),
        ("model.safetensors", r"has no model.safetensors\. Put it back"),
    ],
)
def test_a_run_that_lost_what_it_measured_does_not_go_on(make_config, tmp_path, stop_at, lost, message):
    config = make_config()
    stop_at(config, tmp_path / "run", 25)
    (tmp_path / "run" / lost).unlink()
    refused(config, tmp_path / "run", message)
    with pytest.raises(ValueError, match=message):
        pack(tmp_path / "run", tmp_path / "file")


@pytest.mark.parametrize("mend", ["deleted", "cut"])
def test_a_line_that_was_lost_before_the_state_is_missed(make_config, tmp_path, stop_at, mend):
    """Though later lines, of epochs that come again, make up their number."""
    config = make_config(save_epochs=2)
    stop_at(config, tmp_path, 55)  # a stop saves: the state of two epochs is left by hand
    newest = sorted((tmp_path / "state").glob("step-*"))[-1]
    newest.unlink()
    path = tmp_path / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    whole = f"{first}\n{second}\n"
    later = second.replace('"epoch": 2', '"epoch": 3')
    path.write_text(
        f"{second}\n{later}\n" if mend == "deleted" else f'{{"epoch": 1, "train_seconds": 3}}\n{second}\n'
    )
    refused(config, tmp_path, r"whole line for each of the 2 epochs .* but it lacks epoch 1\. Put it back")
    with pytest.raises(
        ValueError, match="lacks epoch 1|must give `step` as a number in every line, but line 1"
    ):
        pack(tmp_path, tmp_path.with_suffix(".pack"))
    path.write_text(whole)
    train(config, tmp_path, resume=True)
    assert [line["epoch"] for line in metrics(tmp_path)] == [1, 2, 3]


def test_a_damaged_line_of_epochs_that_come_again_may_be_deleted(make_config, tmp_path, monkeypatch):
    """A run killed in its third epoch whose state is that of none: the advice of the message is followed."""
    from uncork.lm import trainer

    config = make_config(save_epochs=5)
    train(config, tmp_path / "whole")
    original = trainer.append_jsonl

    def killed(path, record):
        original(path, record)
        if record["epoch"] == 2:
            raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "append_jsonl", killed)
        with pytest.raises(MemoryError):
            train(config, tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first[:-9]}\n{second}\n")
    refused(
        config, tmp_path / "run", r"line 1 cannot be read .*delete that line: reports .* goes on only from"
    )
    path.write_text(f"{second}\n")
    train(config, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_run_whose_best_model_is_damaged_does_not_train_on(make_config, tmp_path, stop_at):
    config = make_config()
    stop_at(config, tmp_path, 25)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(config, tmp_path, r"model.safetensors` is damaged: .*\. Put it back from a copy")


def test_words_and_a_lost_origin_come_back_with_a_resumption(make_config, tmp_path, stop_at):
    config = make_config()
    stop_at(config, tmp_path, 5)
    words = results.read_json(tmp_path / "words.json")
    for name in ("words.json", "provenance.json"):
        (tmp_path / name).unlink()
    train(config, tmp_path, resume=True)
    assert load_run(tmp_path)[2] == words
    told = results.read_json(tmp_path / "provenance.json")
    assert told["started"] is None and told["resumed"][0]["started"]  # nobody knows when it began


def test_finetuning_never_ends_worse_than_it_began(make_config, tmp_path):
    first = train(make_config(), tmp_path / "first")
    config = make_config(finetune=str(tmp_path / "first"))
    config = replace(config, optim=replace(config.optim, lr=200.0))
    result = train(config, tmp_path / "second")
    assert min(line["valid_nll"] for line in metrics(tmp_path / "second")) > first["valid_nll"]
    assert result["valid_nll"] == first["valid_nll"] and result["test_nll"] == first["test_nll"]


def test_a_finetuned_run_that_lost_its_start_does_not_go_on(make_config, tmp_path, stop_at):
    """It may be the best there will be, and would be missed after the last epoch."""
    train(make_config(max_steps=2), tmp_path / "first")
    config = make_config(finetune=str(tmp_path / "first"))
    stop_at(config, tmp_path / "second", 5)  # before anything was measured
    (tmp_path / "second" / "model.safetensors").unlink()
    refused(config, tmp_path / "second", r"must have the best model .* has no model.safetensors\. Put it")


def test_only_a_model_of_the_same_words_is_finetuned(make_config, tmp_path):
    config = make_config(finetune=str(tmp_path / "first"))
    with pytest.raises(FileNotFoundError, match=r"`finetune` must be .* has no words.json"):
        train(config, tmp_path / "second")
    train(make_config(max_steps=2), tmp_path / "first")
    words = results.read_json(tmp_path / "first" / "words.json")
    results.write_json(tmp_path / "first" / "words.json", words[::-1])
    with pytest.raises(ValueError, match="`finetune` must be a run over the vocabulary of the corpus"):
        train(config, tmp_path / "second")
    assert not (tmp_path / "second" / "config.json").exists()


def test_a_finetuned_run_resumes_without_the_run_it_came_from(make_config, tmp_path, stop_at):
    train(make_config(), tmp_path / "first")
    config = make_config(finetune=str(tmp_path / "first"))
    train(config, tmp_path / "whole")
    stop_at(config, tmp_path / "parts", 25)
    pack(tmp_path / "parts", tmp_path / "file")
    unpack(tmp_path / "file", tmp_path / "there")
    rmtree(tmp_path / "first")
    train(config, tmp_path / "there", resume=True)
    assert metrics(tmp_path / "there") == metrics(tmp_path / "whole")
    assert outcome(tmp_path / "there") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("lost", ["model.safetensors", "words.json"])
def test_a_finished_run_that_is_not_whole_is_not_packed(make_config, tmp_path, lost):
    train(make_config(max_steps=2), tmp_path / "run")
    (tmp_path / "run" / lost).unlink()
    with pytest.raises(FileNotFoundError, match=rf"no {lost}\. Put it back from a copy"):
        pack(tmp_path / "run", tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_finished_run_with_an_unknown_setting_is_not_packed(make_config, tmp_path):
    train(make_config(max_steps=2), tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    results.write_json(path, results.read_json(path) | {"sead": 1})
    with pytest.raises(ValueError, match="sead"):
        pack(tmp_path / "run", tmp_path / "file")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "meta", "mps", "cuda:4096"])
def test_an_unknown_device_is_named(make_config, tmp_path, name):
    with pytest.raises(ValueError, match=rf"`device` must .*got '{name}'\. Use .*cpu"):
        train(make_config(device=name), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=rf"`device` must .*got '{name}'"):
        load_run(tmp_path, name)


def test_a_gpu_that_torch_does_not_see_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        ValueError, match=r"`device` must be available here, .* 0 GPUs; got 'cuda'\. Use cpu or"
    ):
        load_run(tmp_path, "cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here auto is a GPU, which rounds otherwise")
def test_the_device_may_be_said_in_another_way(make_config, tmp_path, stop_at):
    config = make_config(device="cpu")
    train(config, tmp_path / "whole")
    stop_at(config, tmp_path / "parts", 15)
    train(replace(config, device="auto"), tmp_path / "parts", resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("seed", [2**32, -1])
def test_a_seed_has_32_bits(make_config, tmp_path, seed):
    """Torch's generator on a CPU reads no more: another seed would give the same run."""
    first, second = (torch.rand(3, generator=torch.Generator().manual_seed(s)) for s in (7, 7 + 2**32))
    assert torch.equal(first, second)
    with pytest.raises(ValueError, match=f"`seed` must be at least 0 and below .*got {seed}"):
        train(make_config(seed=seed), tmp_path)
    bound = 2**32 - 1 if seed > 0 else 0
    assert train(make_config(seed=bound, max_steps=1), tmp_path / "run")["seed"] == bound


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("step-000000020", r"step 20 could not be saved.*step 1\d is untouched.*--resume"),
        ("model.safetensors", r"disk is full.*last saved state is untouched.*--resume"),
    ],
)
def test_a_full_disk_ends_the_run_with_its_last_state(make_config, tmp_path, monkeypatch, file, message):
    config = make_config(save_every=10)
    train(config, tmp_path / "whole")
    original = results.os.replace

    def full(source, target):
        if file in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(results.os, "replace", full)
        with pytest.raises(OSError, match=message):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_a_damaged_state_is_named_and_the_one_before_continues(make_config, tmp_path, monkeypatch):
    config = make_config(save_every=4)
    train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        StopAfter(patch, 15)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run")
    newest = sorted((tmp_path / "run" / "state").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.raises(ValueError, match="is damaged.*continue from step 12"):
        train(config, tmp_path / "run", resume=True)
    newest.unlink()
    train(config, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
