"""A packed run becomes a folder of its own: never a mixture with what another run left."""

import errno

import pytest

from tests.lm.test_trainer import StopAfter, metrics, outcome
from uncork.lm import Interrupted, train
from uncork.lm.lock import folder_lock
from uncork.lm.pack import pack, unpack
from uncork.results import UNPACKING, find_runs


@pytest.fixture
def packed(make_config, tmp_path, monkeypatch):
    """Two runs stopped in their second epoch, in files named by their seeds; what the first is."""
    for seed in (1, 2):
        with monkeypatch.context() as patch:
            StopAfter(patch, 25)
            with pytest.raises(Interrupted):
                train(make_config(seed=seed), tmp_path / f"run-{seed}")
        pack(tmp_path / f"run-{seed}", tmp_path / f"{seed}.pack")
    return make_config(seed=1)


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.name: path.read_bytes() for path in files}


def interrupted(monkeypatch, file, folder, name):
    """Unpack until the disk is full at the file of that name."""
    from uncork.lm import pack as module

    original = module.write_atomic

    def full(path, content):
        if path.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomic", full)
        with pytest.raises(OSError, match="No space left"):
            unpack(file, folder)


@pytest.mark.parametrize(
    "left",
    ["result.json", "packed.json", "metrics.jsonl", "model.safetensors", "state/step-000000099.safetensors",
     "evaluation-plain-test.json"],
)  # fmt: skip
def test_files_of_another_run_are_not_mixed_in(packed, tmp_path, left):
    folder = tmp_path / "there"
    (folder / left).parent.mkdir(parents=True)
    (folder / left).write_text("[]")
    with pytest.raises(ValueError, match=f"`out` must be a new folder.* has {left} of another run. Give ano"):
        unpack(tmp_path / "1.pack", folder)
    assert contents(folder) == {(folder / left).name: b"[]"}


@pytest.mark.parametrize("name", ["words.json", "metrics.jsonl", "config.json"])
def test_a_run_that_is_not_all_unpacked_is_told_to_be(packed, tmp_path, monkeypatch, name):
    """By what reads its siblings too, which would leave it out."""
    folder = tmp_path / "there"
    interrupted(monkeypatch, tmp_path / "1.pack", folder, name)
    with pytest.raises(
        ValueError, match=f"`{folder}` must .* has {UNPACKING} .* unpack the same file there ag"
    ):
        find_runs(tmp_path)
    with pytest.raises(ValueError, match=f"`{folder}` must .* unpack the same file there again, or choose"):
        train(packed, folder)
    unpack(tmp_path / "1.pack", folder)
    assert folder in find_runs(tmp_path)


@pytest.mark.parametrize("name", ["words.json", "metrics.jsonl", "config.json"])
def test_an_interrupted_unpacking_is_continued_with_its_own_file_alone(packed, tmp_path, monkeypatch, name):
    folder = tmp_path / "there"
    interrupted(monkeypatch, tmp_path / "1.pack", folder, name)
    before = contents(folder)
    with pytest.raises(ValueError, match=f"has {UNPACKING} of another run"):
        unpack(tmp_path / "2.pack", folder)
    assert contents(folder) == before
    unpack(tmp_path / "1.pack", folder)
    assert not (folder / UNPACKING).exists()
    for place in (folder, tmp_path / "run-1"):
        train(packed, place, resume=True)
    assert metrics(folder) == metrics(tmp_path / "run-1") and outcome(folder) == outcome(tmp_path / "run-1")


def test_a_folder_of_runs_does_not_become_one(packed, tmp_path):
    """As when the name of the run is left out."""
    with pytest.raises(ValueError, match="`out` must be a new folder.* has run-1 of another run"):
        unpack(tmp_path / "1.pack", tmp_path)


def test_a_folder_that_another_process_fills_is_left_alone(packed, tmp_path, monkeypatch):
    monkeypatch.setattr("uncork.lm.lock.PATIENCE_SECONDS", 0.2)
    with folder_lock(tmp_path / "there"), pytest.raises(ValueError, match="one process at a time"):
        unpack(tmp_path / "1.pack", tmp_path / "there")


def test_the_log_of_a_sweep_may_be_there(packed, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "log.txt").write_text("it could not start\n")
    unpack(tmp_path / "1.pack", tmp_path / "there")
    assert (tmp_path / "there" / "config.json").exists()
