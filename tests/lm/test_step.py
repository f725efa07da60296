"""The training step: its window, what it carries over, CUDA graphs and persistent layers."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from uncork import results
from uncork.lm import FunctionConfig, HeadConfig, train
from uncork.lm.build import build_model, build_optimizer
from uncork.lm.corpus import following, window
from uncork.lm.step import Carried, GraphedStep, TrainingStep


HEADS = {
    "softmax": HeadConfig(),
    "plif": HeadConfig(kind="monotonic", function=FunctionConfig(name="PLIF", options={"knots": 50}, lr=0.5)),
    "mixture": HeadConfig(kind="mixture", components=3),
}
NARROW = {"mixture in bfloat16": HeadConfig(kind="mixture", components=3, products="bfloat16")}
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_start_on_the_device_gives_the_same_window():
    stream_TB = torch.arange(60).view(20, 3)
    for start, length in ((0, 1), (0, 19), (7, 12), (18, 1)):
        for ours, theirs in zip(
            following(stream_TB, torch.tensor(start), length), window(stream_TB, start, length), strict=True
        ):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("head", HEADS)
def test_a_step_carries_the_place_the_states_and_the_loss_over(make_config, head):
    """Three windows without dropout, against the same text read by hand with fixed parameters."""
    config = make_config(HEADS[head])
    torch.manual_seed(3)
    model = build_model(config, 30).double().eval()
    optimizer = build_optimizer(replace(config, optim=replace(config.optim, lr=1e-30)), model)
    stream_TB = torch.randint(30, (200, 4), generator=torch.Generator().manual_seed(5))
    carried = Carried.fresh(model, 4, torch.device("cpu"))
    step = TrainingStep(config, model, model, optimizer, stream_TB, carried)
    lengths = (17, 5, 1)
    for length in lengths:
        step(length, 0)
    features = model.encoder(stream_TB[: sum(lengths)])
    nll = model.nll(features, stream_TB[1 : sum(lengths) + 1], "sum") / 4
    assert carried.start.item() == sum(lengths)
    torch.testing.assert_close(carried.epoch_nll, nll.detach())
    for state, expected in zip(carried.states, features.states, strict=True):
        torch.testing.assert_close(state, expected)


def test_the_carried_state_starts_an_epoch_at_zero(make_config):
    model = build_model(make_config(), 30)
    carried = Carried.fresh(model, 4, torch.device("cpu"))
    tensors = [carried.start, carried.epoch_nll, *(part for state in carried.states for part in state)]
    assert all(not tensor.any() for tensor in tensors)
    for tensor in tensors:
        tensor.fill_(2)
    carried.clear_()
    assert all(not tensor.any() for tensor in tensors)
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)  # none shares another's memory


def test_graphs_are_refused_where_there_can_be_none(make_config, tmp_path):
    with pytest.raises(ValueError, match=r"`graphs` must be false .* got cpu"):
        train(replace(make_config(), graphs=True, device="cpu"), tmp_path / "run")


def test_persistent_layers_are_refused_where_there_can_be_none(make_config, tmp_path):
    config = replace(make_config(), precision="bfloat16", recurrence="persistent", device="cpu")
    with pytest.raises(
        ValueError, match=r"`recurrence` must be 'library' or 'auto' here, .* CUDA device, not cpu"
    ):
        train(config, tmp_path / "run")
    with pytest.raises(ValueError, match=r"must come with precision 'bfloat16'; got 'float32'"):
        replace(make_config(), recurrence="persistent")


def test_an_ordinary_step_waits_for_the_replays_of_its_own_device(monkeypatch):
    """Graphs replay on the stream of the model's device, which need not be the current one."""
    waits = []

    class Stream:
        def __init__(self, device, name="recording"):
            self.device, self.name = device, name

        def wait_stream(self, other):
            waits.append((self.name, other.name))

    def step(length, epoch):
        waits.append("step")

    current = lambda device=None: Stream(device, f"stream of {device or 'cuda:0'}")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    step.train_TB = SimpleNamespace(device=torch.device("cuda:1"))
    step.kind = lambda length, epoch: (length, False, None)
    GraphedStep(step)(5, 0)
    assert waits == [("recording", "stream of cuda:1"), "step", ("stream of cuda:1", "recording")]


@gpu
@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("head", HEADS | NARROW)
def test_graphs_train_as_ordinary_steps_do(make_config, tmp_path, head, rule):
    """Same masks, same windows, averaging from the second epoch on, rates falling: the losses agree."""
    config = replace(make_config((HEADS | NARROW)[head], epochs=4), device="cuda", graphs=False)
    lr = config.optim.lr if rule == "sgd" else 0.01
    config = replace(config, optim=replace(config.optim, decay_epoch=2, rule=rule, lr=lr))
    train(config, tmp_path / "ordinary")
    train(replace(config, graphs=True), tmp_path / "graphs")
    losses = [
        [[r["train_nll"], r["valid_nll"]] for r in results.read_jsonl(tmp_path / name / "metrics.jsonl")]
        for name in ("ordinary", "graphs")
    ]
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=2e-4, atol=0.0)


@gpu
def test_persistent_layers_train_as_the_librarys_do(make_config, tmp_path):
    """Without dropout, since they draw other masks; those are for test_stack.py."""
    config = replace(make_config(epochs=4), device="cuda", precision="bfloat16")
    none = dict.fromkeys(
        [f"{part}_dropout" for part in ("embedding", "input", "hidden", "output", "weight")], 0.0
    )
    config = replace(config, model=replace(config.model, **none))
    library = train(replace(config, recurrence="library"), tmp_path / "library")
    ours = train(config, tmp_path / "auto")
    assert (library["graphs"], library["recurrence"]) == (True, "library")
    assert (ours["graphs"], ours["recurrence"]) == (True, "persistent")
    assert ours["valid_nll"] == pytest.approx(library["valid_nll"], rel=5e-3)


@gpu
def test_a_run_with_graphs_stops_and_resumes(make_config, tmp_path):
    config = replace(make_config(epochs=4), device="cuda", graphs=True)
    whole = train(config, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        from uncork.lm import trainer

        original, calls = trainer.append_jsonl, []

        def fail_at_second(*arguments):
            calls.append(original(*arguments))
            if len(calls) == 2:
                raise KeyboardInterrupt

        patch.setattr(trainer, "append_jsonl", fail_at_second)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "parts")
    resumed = train(config, tmp_path / "parts", resume=True)
    assert resumed["valid_nll"] == pytest.approx(whole["valid_nll"], rel=2e-4)
