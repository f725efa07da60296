"""Saved states: exact, checked, and never lost to a full disk or a flipped bit."""

import errno
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as to_bytes

import uncork.lm
from uncork import results
from uncork.lm.checkpoint import (
    BestModel,
    DamagedCheckpoint,
    load_model,
    load_state,
    load_tensors,
    save_state,
    save_tensors,
)


TENSORS = {
    "a": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "empty": torch.empty(0),
}


def test_tensors_and_facts_come_back_exactly(tmp_path):
    facts = {"loss": 0.1 + 0.2, "history": [1.5, 2.25], "flag": True, "none": None}
    save_tensors(tmp_path / "x", TENSORS, facts)
    tensors, got = load_tensors(tmp_path / "x")
    assert got == facts and tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[n], TENSORS[n]) and tensors[n].dtype == TENSORS[n].dtype for n in TENSORS)


def test_shared_and_strided_tensors_are_written_in_full(tmp_path):
    zeros = torch.zeros(2, 2)
    save_tensors(tmp_path / "x", {"a": zeros, "b": zeros, "t": TENSORS["a"].t()}, {})
    tensors, _ = load_tensors(tmp_path / "x")
    assert torch.equal(tensors["b"], zeros) and torch.equal(tensors["t"], TENSORS["a"].t())


def test_any_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "x"
    save_tensors(path, {"a": torch.arange(4.0)}, {"n": 1})
    good = path.read_bytes()
    for position in range(0, len(good), 3):
        damaged = bytearray(good)
        damaged[position] ^= 0x11
        path.write_bytes(bytes(damaged))
        try:
            tensors, facts = load_tensors(path)
        except DamagedCheckpoint:
            continue
        # Only white space and names of the header that are not used may change unseen.
        assert torch.equal(tensors["a"], torch.arange(4.0)) and facts == {"n": 1}, position


@pytest.mark.parametrize("size", [0, 5, 100])
def test_a_cut_file_is_noticed(tmp_path, size):
    path = tmp_path / "x"
    save_tensors(path, TENSORS, {})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamagedCheckpoint, match="is damaged"):
        load_tensors(path)


def test_another_shape_in_the_header_is_damage(tmp_path):
    path = tmp_path / "x"
    save_tensors(path, {"a": torch.arange(6.0).view(2, 3)}, {})
    damaged = path.read_bytes().replace(b'"shape":[2,3]', b'"shape":[3,2]')
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(DamagedCheckpoint, match="hash"):
        load_tensors(path)


@pytest.mark.parametrize("header", ["[]", "1", "null", '{"facts": 3, "sha256": "x"}', "{"])
def test_a_header_of_another_kind_is_damage(header, tmp_path):
    (tmp_path / "x").write_bytes(to_bytes({"a": torch.zeros(2)}, metadata={"uncork": header}))
    with pytest.raises(DamagedCheckpoint, match="is damaged"):
        load_tensors(tmp_path / "x")


def test_pickles_are_not_read(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "x")
    with pytest.raises(DamagedCheckpoint):
        load_tensors(tmp_path / "x")


def test_no_part_of_the_package_unpickles():
    source = Path(uncork.lm.__file__).parent.parent
    for path in [*(source / "lm").rglob("*.py"), *(source / "recipes").rglob("*.py")]:
        assert not re.search(r"torch\.load\(|import pickle|_object\(", path.read_text()), path


def test_the_newest_state_is_loaded_and_two_are_kept(tmp_path):
    assert load_state(tmp_path) is None
    for step in (1, 20, 300):
        save_state(tmp_path, step, TENSORS, {"step": step})
    loaded = load_state(tmp_path)
    assert loaded is not None and loaded[1] == {"step": 300}
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["step-000000020.safetensors", "step-000000300.safetensors"]


def test_a_damaged_state_is_named_and_the_one_before_survives(tmp_path):
    for step in (1, 2):
        save_state(tmp_path, step, TENSORS, {"step": step})
    newest = tmp_path / "step-000000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    with pytest.raises(DamagedCheckpoint, match=r"step-000000002.* delete .* continue from step 1\."):
        load_state(tmp_path)
    newest.unlink()
    loaded = load_state(tmp_path)
    assert loaded is not None and loaded[1] == {"step": 1}


def test_when_no_state_is_whole_the_error_says_so(tmp_path):
    save_state(tmp_path, 1, TENSORS, {})
    (tmp_path / "step-000000001.safetensors").write_bytes(b"")
    with pytest.raises(DamagedCheckpoint, match="No earlier state is whole"):
        load_state(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_last_state(tmp_path, monkeypatch, call):
    save_state(tmp_path, 1, TENSORS, {"step": 1})

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(results.os, call, full)
        with pytest.raises(
            OSError, match="step 2 could not be saved.*No space left.*step 1 is untouched"
        ) as e:
            save_state(tmp_path, 2, TENSORS, {"step": 2})
    assert e.value.errno == errno.ENOSPC and "--resume" in str(e.value)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000001.safetensors"]
    loaded = load_state(tmp_path)
    assert loaded is not None and loaded[1] == {"step": 1}


def test_leftovers_of_a_killed_save_are_removed(tmp_path):
    (tmp_path / ".step-000000001.safetensors.abc.tmp").write_bytes(b"half")
    assert load_state(tmp_path) is None
    save_state(tmp_path, 2, TENSORS, {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000002.safetensors"]


class Tied(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.a = torch.nn.Linear(width, 4)
        self.b = torch.nn.Linear(width, 4, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("n", torch.zeros(1))


def save(path, model, facts):
    best = BestModel(path)
    best.take(model, facts)
    best.write()


def test_the_best_model_is_the_one_taken_last_and_is_written_once(tmp_path):
    best, model = BestModel(tmp_path / "m"), Tied()
    best.write()
    assert not (tmp_path / "m").exists()
    for step in (1, 2):
        torch.nn.init.constant_(model.a.weight, step)
        best.take(model, {"step": step})
    torch.nn.init.constant_(model.a.weight, 9)  # training goes on
    best.write()
    tensors, facts = load_tensors(tmp_path / "m")
    assert facts == {"step": 2} and (tensors["a.weight"] == 2).all()
    (tmp_path / "m").unlink()
    best.write()
    assert not (tmp_path / "m").exists()


def test_models_with_tied_weights_round_trip(tmp_path):
    first, second = Tied(), Tied()
    save(tmp_path / "m", first, {"step": 3})
    assert load_tensors(tmp_path / "m")[0].keys() == {"a.weight", "a.bias", "n"}
    assert load_model(tmp_path / "m", second) == {"step": 3}
    assert torch.equal(first.a.weight, second.b.weight) and second.a.weight is second.b.weight


def test_a_model_of_another_shape_is_refused(tmp_path):
    save(tmp_path / "m", Tied(), {})
    with pytest.raises(ValueError, match=r"these differ: a.weight \(file \(4, 3\), model \(4, 5\)\)"):
        load_model(tmp_path / "m", Tied(5))
