"""Runs carried in a file: small enough, exact where that fits, and close where it does not."""

import errno
import shutil
from dataclasses import replace

import pytest
import torch

from tests.lm.test_trainer import StopAfter, metrics, outcome
from uncork.lm import FunctionConfig, HeadConfig, Interrupted, load_run, pack_code, train
from uncork.lm.build import build_model, build_optimizer
from uncork.lm.checkpoint import DamagedCheckpoint, load_state, load_tensors, save_state, save_tensors
from uncork.lm.config_io import to_dict
from uncork.lm.lock import folder_lock
from uncork.lm.pack import DEFAULT_BYTES, HEADER_BYTES, pack, unpack
from uncork.lm.quantise import quantised_bytes
from uncork.recipes import build
from uncork.recipes.pack import describe
from uncork.results import read_json, write_json


PLIF = HeadConfig(kind="monotonic", function=FunctionConfig(name="PLIF", options={"knots": 5000}, lr=0.5))


@pytest.fixture
def small_is_large(monkeypatch):
    """Quantise the matrices of a test's model as if they were those of a true one."""
    monkeypatch.setattr(pack_code, "LARGE", 64)


@pytest.fixture
def stopped(make_config, tmp_path, monkeypatch):
    """A run stopped at a step of its 6 epochs (20 steps each; averaging from the third on)."""

    def make(step, head=None):
        config = make_config(head, epochs=6)
        model = replace(config.model, embedding=32, hidden=48)
        config = replace(config, model=model)
        with monkeypatch.context() as patch:
            StopAfter(patch, step)
            with pytest.raises(Interrupted):
                train(config, tmp_path / "run")
        return config, tmp_path / "run"

    return make


def exact_bytes(run, file):
    """Size from which on nothing of `run` is lost."""
    pack(run, file)
    tensors, _ = load_tensors(file)
    return sum(t.numel() * t.element_size() for t in tensors.values()) + HEADER_BYTES


def whole_state(folder):
    loaded = load_state(folder / "state")
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("step", [10, 30, 70])
def test_what_fits_is_carried_bit_for_bit(stopped, tmp_path, step):
    config, run = stopped(step, PLIF)
    assert pack(run, tmp_path / "file")["bits"] is None
    assert unpack(tmp_path / "file", tmp_path / "there")["bits"] is None
    assert not (tmp_path / "there" / "packed.json").exists()
    for folder in (run, tmp_path / "there"):
        train(config, folder, resume=True)
    assert metrics(tmp_path / "there") == metrics(run) and outcome(tmp_path / "there") == outcome(run)
    assert (tmp_path / "there" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


# By the step at which the run is carried: before averaging begins, and after.
CARRIED_BITS = {220: {"base": 10, "best": 6}, 600: {"base": 12, "iterate": 8, "best": 4}}


@pytest.mark.parametrize("step", CARRIED_BITS)
def test_a_run_carried_with_a_loss_ends_near_the_one_that_was_not(
    tmp_path, monkeypatch, small_is_large, step
):
    changes = ("data.limit_tokens=30000", "data.batch_size=10", "epochs=6", "optim.average_epoch=3")
    config, run = build("embedded_softmax", (*changes, "seed=3", "log_every=1000")), tmp_path / "run"
    with monkeypatch.context() as patch:
        StopAfter(patch, step)
        with pytest.raises(Interrupted):
            train(config, run)
    budget = HEADER_BYTES + (exact_bytes(run, tmp_path / "file") - HEADER_BYTES) // 3
    note = pack(run, tmp_path / "file", budget)
    assert note["bits"] is not None and (tmp_path / "file").stat().st_size == note["bytes"] <= budget
    assert note["bits"] == CARRIED_BITS[step]
    unpack(tmp_path / "file", tmp_path / "there")
    _, facts = whole_state(tmp_path / "there")
    assert facts["packed"]["bits"] == note["bits"]
    there = train(config, tmp_path / "there", resume=True)
    here = train(config, run, resume=True)
    assert here["packed"] == [] and [p["step"] for p in there["packed"]] == [step]
    # Seeds 3, 4 and 5 end at 60.82, 60.38 and 60.46; carried, seed 3 ended at 60.89 and 60.81.
    assert there["test_perplexity"] == pytest.approx(here["test_perplexity"], rel=0.005)
    assert there["test_perplexity"] != here["test_perplexity"]


def test_a_run_of_divided_steps_is_carried_without_their_small_sizes_lost(
    tmp_path, monkeypatch, small_is_large
):
    """Quantised, sizes that are rounded to 0 would make the next step huge."""
    changes = ("data.limit_tokens=30000", "data.batch_size=10", "epochs=4", "seed=3", "log_every=1000")
    rule = ("optim.rule=adam", "optim.lr=0.01", "optim.weight_decay=0", "optim.average=never")
    config, run = build("embedded_softmax", (*changes, *rule)), tmp_path / "run"
    with monkeypatch.context() as patch:
        StopAfter(patch, 220)
        with pytest.raises(Interrupted):
            train(config, run)
    budget = HEADER_BYTES + (exact_bytes(run, tmp_path / "file") - HEADER_BYTES) // 3
    note = pack(run, tmp_path / "file", budget)
    assert note["bits"] == {"base": 14, "best": 10}
    unpack(tmp_path / "file", tmp_path / "there")
    (before, _), (after, _) = whole_state(run), whole_state(tmp_path / "there")
    assert before.keys() == after.keys()
    for name in (name for name in before if name.endswith("square") and before[name].dim() == 2):
        torch.testing.assert_close(after[name].mean(1), before[name].mean(1), rtol=1e-5, atol=0.0)
        torch.testing.assert_close(after[name].mean(0), before[name].mean(0), rtol=1e-5, atol=0.0)
    large = [n for n in before if n.endswith("square") and not torch.equal(before[n], after[n])]
    error = sum((after[n].double() - before[n].double()).square().sum().item() for n in large)
    size = sum(before[n].double().square().sum().item() for n in large)
    assert (error / size) ** 0.5 == pytest.approx(note["relative_error"]["square"], rel=1e-6)
    assert f"which are {note['relative_error']['square']:.0%} off; largest relative" in describe(note)
    there, here = train(config, tmp_path / "there", resume=True), train(config, run, resume=True)
    assert there["test_perplexity"] == pytest.approx(here["test_perplexity"], rel=0.005)
    assert there["test_perplexity"] != here["test_perplexity"]


def test_what_is_small_stays_exact_and_the_rest_is_within_its_noted_error(stopped, tmp_path, small_is_large):
    _, run = stopped(70, PLIF)
    budget = exact_bytes(run, tmp_path / "file") - 20_000
    note = pack(run, tmp_path / "file", budget)
    unpack(tmp_path / "file", tmp_path / "there")
    before, facts = whole_state(run)
    after, facts_after = whole_state(tmp_path / "there")
    assert facts_after == facts | {"packed": facts_after["packed"]} and before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    matrices = {n for n in before if n.startswith(("model/", "optimizer/")) and before[n].dim() == 2}
    assert changed == {n for n in matrices if before[n].numel() >= 64}
    for role, prefix in (("base", "optimizer/"), ("iterate", "model/")):
        names = [name for name in changed if name.startswith(prefix)]
        error = sum((after[n].double() - before[n].double()).square().sum().item() for n in names)
        size = sum(before[n].double().square().sum().item() for n in names)
        assert (error / size) ** 0.5 == pytest.approx(note["relative_error"][role], rel=1e-6)
    assert note["relative_error"]["base"] < note["relative_error"]["iterate"] < 0.1


def test_the_best_model_survives_as_a_difference_or_by_name(stopped, tmp_path, small_is_large):
    config, run = stopped(70)  # inside an epoch: the best model is an earlier average
    budget = exact_bytes(run, tmp_path / "file") - 10_000
    note = pack(run, tmp_path / "file", budget)
    assert set(note["bits"]) == {"base", "iterate", "best"}
    assert note["relative_error"]["best"] < 0.01
    unpack(tmp_path / "file", tmp_path / "there")
    best, _, _ = load_run(run)
    carried, _, _ = load_run(tmp_path / "there")
    for one, other in zip(best.parameters(), carried.parameters(), strict=True):
        assert (one - other).norm() <= 0.02 * one.norm()


def test_a_best_model_that_is_the_average_is_not_kept_twice(make_config, tmp_path, monkeypatch):
    config = make_config(epochs=6)
    with monkeypatch.context() as patch:  # the stop comes right after the state at an epoch's end
        patch.setattr("uncork.lm.trainer.save_state", _stop_after_saving(4))
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    pack(tmp_path / "run", tmp_path / "file")
    tensors, facts = load_tensors(tmp_path / "file")
    assert facts["part"]["best_is_base"] and not [name for name in tensors if name.startswith("best/")]
    unpack(tmp_path / "file", tmp_path / "there")
    name = "model.safetensors"
    assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def _stop_after_saving(times):
    calls = []

    def save(*arguments):
        save_state(*arguments)
        calls.append(1)
        if len(calls) == times:
            raise KeyboardInterrupt

    return save


def test_a_finished_run_is_its_model_and_its_result(make_config, tmp_path):
    config = make_config(epochs=1)
    result = train(config, tmp_path / "run")
    pack(tmp_path / "run", tmp_path / "file")
    unpack(tmp_path / "file", tmp_path / "there")
    assert train(config, tmp_path / "there", resume=True) == result
    assert not list((tmp_path / "there" / "state").glob("step-*"))
    for one, other in zip(*(load_run(tmp_path / n)[0].parameters() for n in ("run", "there")), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("parameters", "expected"), [(24_221_600, (12, 12, 8)), (33_556_078, (8, 8, 6))])
def test_true_sizes_before_averaging(parameters, expected):
    """By count alone: the shapes are those of the test below."""
    fits = [b for b in pack_code.PLAIN_LADDER if 2 * HEADER_BYTES + sum(
        quantised_bytes(parameters, bits) for bits in (b[0], b[2])) <= DEFAULT_BYTES]  # fmt: skip
    assert fits[0] == expected


TRUE_SIZES = {
    ("penn_softmax", True): {"base": 12, "iterate": 8},
    ("penn_softmax", False): {"base": 11, "iterate": 6, "best": 3},
    ("wikitext2_softmax", True): {"base": 8, "iterate": 6},
    ("wikitext2_softmax", False): {"base": 7, "iterate": 5, "best": 2},
}


@pytest.mark.parametrize(("recipe", "best_is_average"), TRUE_SIZES)
def test_true_sizes_fit_into_60_mib_while_averaging(tmp_path, recipe, best_is_average):
    config = build(recipe)
    words = 10_000 if config.data.corpus == "penn" else 33_278
    state, best = _averaging_state(config, words, best_is_average)
    run = tmp_path / "run"
    save_state(run / "state", 7, state, {"position": {"step": 7}})
    save_tensors(run / "model.safetensors", best, {"step": 6, "valid_nll": 4.1})
    write_json(run / "words.json", [f"word{number}" for number in range(words)])
    write_json(run / "config.json", to_dict(config))
    note = pack(run, tmp_path / "file")
    assert (tmp_path / "file").stat().st_size <= DEFAULT_BYTES == 62_914_560
    assert note["bits"] == TRUE_SIZES[recipe, best_is_average]
    unpack(tmp_path / "file", tmp_path / "there")
    carried, facts = load_tensors(tmp_path / "there" / "model.safetensors")
    assert facts["valid_nll"] == 4.1 and carried.keys() == best.keys()
    for name, tensor in best.items():
        assert (carried[name] - tensor).norm() <= 0.015 * tensor.norm()


def _averaging_state(config, words, best_is_average):
    """Random weights of the true shapes, an average near them, and a best model near that."""
    model = build_model(config, words)
    optimizer = build_optimizer(config, model)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    averages = {id(p): p.detach() + 0.01 * torch.randn(p.shape) for p in parameters}
    named = dict(model.named_parameters())
    state = {f"model/{name}": p.detach() for name, p in named.items()}
    state |= {f"optimizer/{n}/average": averages[id(p)] for n, p in enumerate(parameters)}
    state["random/cpu/0"] = torch.get_rng_state()
    shift = 0.0 if best_is_average else 0.0002
    best = {name: averages[id(p)] + shift * torch.randn(p.shape) for name, p in named.items()}
    return state, best


def test_a_budget_that_is_too_small_says_what_is_needed(stopped, tmp_path):
    _, run = stopped(10)
    with pytest.raises(ValueError, match=r"`bytes` must be at least \d+ for this run; got 1000"):
        pack(run, tmp_path / "file", 1000)
    assert not (tmp_path / "file").exists()


def test_a_damaged_file_is_named_and_nothing_is_written(stopped, tmp_path):
    _, run = stopped(10)
    pack(run, tmp_path / "file")
    good = (tmp_path / "file").read_bytes()
    for bad in (good[:-5], good[:100], good[:-9] + bytes([good[-9] ^ 1]) + good[-8:]):
        (tmp_path / "file").write_bytes(bad)
        with pytest.raises(DamagedCheckpoint, match="`.*file` is damaged"):
            unpack(tmp_path / "file", tmp_path / "there")
        assert not (tmp_path / "there").exists()


def test_mistakes_are_explained(stopped, make_config, tmp_path):
    with pytest.raises(ValueError, match="`run` must be a run folder"):
        pack(tmp_path / "nothing", tmp_path / "file")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(FileNotFoundError, match="no file"):
        unpack(tmp_path / "file", tmp_path / "there")
    _, run = stopped(10)
    pack(run, tmp_path / "file")
    with pytest.raises(ValueError, match="`out` must be a new folder"):
        unpack(tmp_path / "file", run)
    with pytest.raises(ValueError, match="`file` must be written by `uncork pack`"):
        unpack(next((run / "state").glob("step-*")), tmp_path / "there")
    for state in (run / "state").glob("step-*"):
        state.unlink()
    with pytest.raises(ValueError, match="must have a saved state"):
        pack(run, tmp_path / "other")


def test_means_of_squares_that_are_all_0_are_0():
    """Those of a parameter whose gradient has been 0: no division by their mean."""
    zeros = torch.zeros(3)
    assert torch.equal(pack_code._from_means(zeros, torch.zeros(5)), torch.zeros(3, 5))


@pytest.mark.parametrize("name", ["config.json", "packed.json", "state/kept.pack"])
def test_a_run_is_not_packed_into_itself(stopped, name):
    """One of its files would be lost, and it could not go on."""
    _, run = stopped(10)
    before = (run / "config.json").read_bytes()
    with pytest.raises(ValueError, match="`file` must lie outside of runs.* Write beside the folder"):
        pack(run, run / name)
    assert (run / "config.json").read_bytes() == before and not (run / "packed.json").exists()


def test_nothing_but_a_packed_run_is_written_over(stopped, tmp_path):
    _, run = stopped(30)
    other = shutil.copytree(run, tmp_path / "other")
    for file in (other / "model.safetensors", other / "new.pack"):
        with pytest.raises(ValueError, match="`file` must lie outside of runs"):
            pack(run, file)
    alone = tmp_path / "alone.safetensors"
    for content in ((other / "model.safetensors").read_bytes(), b"", b"words"):
        alone.write_bytes(content)
        with pytest.raises(ValueError, match="`file` must be a new file or a packed run; `.*` is neither"):
            pack(run, alone)
        assert alone.read_bytes() == content
    with pytest.raises(ValueError, match="`file` must be a file, but `.*` is a folder"):
        pack(run, tmp_path)
    pack(run, tmp_path / "file")
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes())
    pack(run, tmp_path / "file")  # which it may replace


def test_a_run_at_work_is_neither_packed_nor_trained_twice(stopped, tmp_path, monkeypatch):
    monkeypatch.setattr("uncork.lm.lock.PATIENCE_SECONDS", 0.2)
    config, run = stopped(10)
    with folder_lock(run):
        for work in (lambda: pack(run, tmp_path / "file"), lambda: train(config, run, resume=True)):
            with pytest.raises(ValueError, match="one process at a time.*Stop that one"):
                work()
    pack(run, tmp_path / "file")


def test_a_full_disk_leaves_no_half_folder(stopped, tmp_path, monkeypatch):
    _, run = stopped(30)
    pack(run, tmp_path / "file")

    def full(folder, name):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("uncork.lm.pack.write_atomic", full)
        with pytest.raises(OSError, match="No space left"):
            unpack(tmp_path / "file", tmp_path / "there")
    assert not (tmp_path / "there" / "config.json").exists()
    unpack(tmp_path / "file", tmp_path / "there")  # what was written before is replaced
    assert read_json(tmp_path / "there" / "config.json") == read_json(run / "config.json")
