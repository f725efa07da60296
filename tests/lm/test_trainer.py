"""Runs: what they write, that they resume exactly, and how they fail."""

import copy
import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from uncork import results
from uncork.lm import FunctionConfig, HeadConfig, Interrupted, OptimConfig, evaluate, load_run, train
from uncork.lm.build import build_corpus, build_model, build_optimizer
from uncork.lm.corpus import batchify
from uncork.lm.evaluate import nll_by_part
from uncork.lm.trainer import draw_length, mask_seed


GOLDEN = Path(__file__).parents[1] / "golden" / "lm_tiny.json"
# 50 knots: the slopes' own rate is 1000 x 50 / 100,000 = 0.5.
PLIF = HeadConfig(kind="monotonic", function=FunctionConfig(name="PLIF", options={"knots": 50}, lr=1000.0))
MIXTURE = HeadConfig(kind="mixture", components=3)
HEADS = {"softmax": HeadConfig(), "plif": PLIF, "mixture": MIXTURE}
# Coarse to fine with a pull, a new stage with each epoch.
STAGED = replace(
    PLIF,
    function=FunctionConfig(
        name="PLIF", options={"knots": 50}, lr=1000.0, pull=1.0, refine={"0": 5, "1": 10, "2": 50}
    ),
)


def metrics(folder):
    """What was measured, without how long it took."""
    return [
        {name: value for name, value in record.items() if "seconds" not in name}
        for record in results.read_jsonl(folder / "metrics.jsonl")
    ]


def outcome(folder):
    """What came out, without how long it took."""
    stored = results.read_json(folder / "result.json")
    return {name: value for name, value in stored.items() if "seconds" not in name}


def test_a_run_folder_holds_what_the_design_says(make_config, tmp_path):
    result = train(make_config(), tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {
        "config.json", "metrics.jsonl", "model.safetensors", "provenance.json", "result.json", "state",
        "words.json",
    }  # fmt: skip
    assert result == results.read_json(tmp_path / "run" / "result.json")
    records = metrics(tmp_path / "run")
    assert [r["epoch"] for r in records] == [1, 2, 3]
    assert [r["averaging"] for r in records] == [False, False, True]
    assert result["valid_nll"] == pytest.approx(min(r["valid_nll"] for r in records), rel=1e-6)
    assert records[-1]["valid_nll"] < records[0]["valid_nll"] < math.log(300)


def test_the_saved_model_is_the_one_that_was_scored(make_config, tmp_path):
    result = train(make_config(MIXTURE), tmp_path / "run")
    model, config, words = load_run(tmp_path / "run")
    corpus = build_corpus(config.data)
    assert list(corpus.words) == words
    assert evaluate(model, batchify(corpus.test, 4), 20).nll == pytest.approx(result["test_nll"], rel=1e-9)
    assert nll_by_part(model, batchify(corpus.test, 4), 20) == pytest.approx(
        result["test_nll_parts"], rel=1e-6
    )
    assert len(result["test_nll_parts"]) == len(result["valid_nll_parts"]) == 100


@pytest.mark.parametrize("head", HEADS)
def test_golden_losses(make_config, tmp_path, head):
    """Ten epochs of five steps each; the numbers were written by this code and must stay."""
    config = make_config(HEADS[head], epochs=10)
    config = replace(config, data=replace(config.data, limit_tokens=800))
    train(config, tmp_path / "run")
    got = [[r["train_nll"], r["valid_nll"]] for r in metrics(tmp_path / "run")]
    if os.environ.get("UNCORK_WRITE_GOLDEN"):
        stored = results.read_json(GOLDEN) if GOLDEN.exists() else {}
        results.write_json(GOLDEN, stored | {head: got})
    expected = results.read_json(GOLDEN)[head]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=0.0)


def test_masks_do_not_repeat_the_numbers_the_weights_were_drawn_from(make_config, tmp_path, monkeypatch):
    seeds = []
    original = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seeds.append(seed) or original(seed))
    config = make_config(epochs=1)
    train(config, tmp_path / "run")
    for_weights, for_masks = seeds
    assert for_weights == config.seed and for_masks == mask_seed(config.seed, 0)
    drawn = [torch.rand(1000, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    assert not torch.equal(*drawn)


def test_mask_seeds_differ_from_each_other_and_from_every_near_seed():
    seeds = [*range(-20, 200), 2**31 - 1, 2**32 - 1, 2**63]
    for seed in seeds:
        of_ranks = {mask_seed(seed, rank) for rank in range(1000)}
        assert len(of_ranks) == 1000 and seed % 2**32 not in of_ranks
    near = [mask_seed(seed, rank) for seed in range(200) for rank in range(64)]
    assert len({*near, *range(200)}) == len(near) + 200


class StopAfter:
    """Sends this process a signal in the middle of a chosen optimizer step."""

    def __init__(self, monkeypatch, step, number=signal.SIGTERM):
        from uncork.lm.optim import AveragedSGD

        self.count, original = 0, AveragedSGD.step

        def step_and_signal(optimizer, *arguments, **keywords):
            self.count += 1
            if self.count == step:
                os.kill(os.getpid(), number)
            return original(optimizer, *arguments, **keywords)

        monkeypatch.setattr(AveragedSGD, "step", step_and_signal)


def test_epochs_between_saves_are_done_again(make_config, tmp_path, monkeypatch):
    """Killed when epochs 3 to 5 are measured but only 4's end was saved, and the best model with it."""
    from uncork.lm import trainer

    config = replace(make_config(epochs=7), save_epochs=2)
    train(replace(config, save_epochs=1), tmp_path / "whole")
    original, calls = trainer.append_jsonl, []

    def killed_after_five(*arguments):
        original(*arguments)
        calls.append(None)
        if len(calls) == 5:
            raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "append_jsonl", killed_after_five)
        with pytest.raises(MemoryError):
            train(config, tmp_path / "parts")
    states = sorted((tmp_path / "parts" / "state").glob("*.safetensors"))
    assert len(states) == 2 and len(metrics(tmp_path / "parts")) == 5
    train(config, tmp_path / "parts", resume=True)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    whole, parts = (tmp_path / name / "model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("head", [*HEADS, "staged", "slowed", "divided"])
def test_a_stopped_run_resumes_bit_for_bit(make_config, tmp_path, monkeypatch, head, number):
    config = make_config(STAGED if head == "staged" else HEADS.get(head))
    if head == "slowed":
        config = replace(config, optim=replace(config.optim, decay_epoch=1))
    if head == "divided":
        config = replace(config, optim=replace(config.optim, rule="adam", lr=0.01))
    train(config, tmp_path / "whole")
    former = signal.getsignal(number)
    for step in (30, 25):  # in the second epoch; then in the averaged third
        with monkeypatch.context() as patch:
            StopAfter(patch, step, number)
            with pytest.raises(Interrupted, match="--resume") as stopped:
                train(config, tmp_path / "parts", resume=True)
        assert stopped.value.exit_code == 128 + number
        assert signal.getsignal(number) is former
    train(config, tmp_path / "parts", resume=True)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    name = "model.safetensors"
    assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_saving_inside_an_epoch_changes_nothing(make_config, tmp_path):
    config = make_config()
    train(config, tmp_path / "a")
    train(replace(config, save_every=3), tmp_path / "b")
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def test_a_finished_run_returns_its_result(make_config, tmp_path, monkeypatch):
    config = make_config(epochs=1)
    result = train(config, tmp_path)
    monkeypatch.setattr("uncork.lm.trainer.build_corpus", lambda *a: pytest.fail("it trained again"))
    assert train(config, tmp_path, resume=True) == result


def test_a_run_is_not_overwritten_nor_resumed_as_another(make_config, tmp_path):
    config = make_config(max_steps=2)
    train(config, tmp_path)
    with pytest.raises(ValueError, match="must be a new folder.*--resume"):
        train(config, tmp_path)
    other = replace(config, seed=4, optim=replace(config.optim, lr=7.0))
    with pytest.raises(ValueError, match=r"optim.lr \(was 5.0, now 7.0\), seed \(was 3, now 4\)"):
        train(other, tmp_path, resume=True)


def test_another_corpus_is_not_resumed(make_config, tmp_path, monkeypatch):
    config = make_config(save_every=2)
    with monkeypatch.context() as patch:
        StopAfter(patch, 3)
        with pytest.raises(Interrupted):
            train(config, tmp_path)
    monkeypatch.setattr("uncork.lm.build.EMBEDDED_SEED", 9)
    with pytest.raises(ValueError, match="corpus must be the one the run was started on"):
        train(config, tmp_path, resume=True)


def test_a_diverged_run_says_so(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr("uncork.lm.trainer.evaluate", lambda *a: type("S", (), {"nll": math.nan}))
    with pytest.raises(ValueError, match="validation loss is nan at step .*Lower optim.lr"):
        train(make_config(), tmp_path)


def test_a_run_that_diverges_at_once_promises_no_state(make_config, tmp_path, monkeypatch):
    for save_every, kept in ((1, "the last saved state is untouched"), (None, "no state was saved before")):
        config = make_config(optim=OptimConfig(lr=1e30), log_every=2, save_every=save_every)
        with pytest.raises(ValueError, match=f"has diverged.*{kept}"):
            train(config, tmp_path / str(save_every))


def test_what_is_refused_leaves_no_folder(make_config, tmp_path):
    function = FunctionConfig(name="PLIF", options={"knots": 1})
    with pytest.raises(ValueError, match="`knots` must be"):
        train(make_config(HeadConfig(kind="monotonic", function=function)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_windows_follow_each_other_with_their_states_and_their_rates(make_config, tmp_path, monkeypatch):
    from uncork.lm.awd_lstm import LanguageModel, Step
    from uncork.lm.optim import AveragedSGD

    calls, scales = [], []
    forward, step = LanguageModel.forward, AveragedSGD.step

    def watched(model, tokens_TB, states=None, target_TB=None):
        copies = copy.deepcopy(states)  # the step changes them in place
        out = forward(model, tokens_TB, states, target_TB)
        if isinstance(out, Step):
            calls.append((tokens_TB, copies, target_TB, out.states))
        return out

    def watched_step(optimizer, *arguments, **keywords):
        scales.append(keywords["scale"])
        return step(optimizer, *arguments, **keywords)

    monkeypatch.setattr(LanguageModel, "forward", watched)
    monkeypatch.setattr(AveragedSGD, "step", watched_step)
    config = make_config(epochs=2)
    train(config, tmp_path)
    stream_TB = batchify(build_corpus(config.data).train, 8)
    at, before = 0, None
    for (tokens_TB, states, target_TB, after), scale in zip(calls, scales, strict=True):
        if at >= len(stream_TB) - 1:
            at, before = 0, None  # the next epoch starts at the beginning, from zeros
        length = len(tokens_TB)
        assert torch.equal(tokens_TB, stream_TB[at : at + length])
        assert torch.equal(target_TB, stream_TB[at + 1 : at + 1 + length])
        assert scale == length / 20
        for layer, state in enumerate(states):
            for part, tensor in enumerate(state):
                expected = torch.zeros_like(tensor) if before is None else before[layer][part]
                assert torch.equal(tensor, expected) and not tensor.requires_grad
        at, before = at + length, after
    assert at == len(stream_TB) - 1 and len({len(c[0]) for c in calls}) > 3


def test_rates_fall_by_as_much_each_epoch(make_config, tmp_path, monkeypatch):
    from uncork.lm.optim import AveragedSGD

    paces, step = [], AveragedSGD.step

    def watched(optimizer, **keywords):
        paces.append(float(optimizer._pace))
        return step(optimizer, **keywords)

    monkeypatch.setattr(AveragedSGD, "step", watched)
    config = make_config(epochs=4)
    train(replace(config, optim=replace(config.optim, decay_epoch=1)), tmp_path / "slowed")
    ends = [record["step"] for record in metrics(tmp_path / "slowed")]
    assert [paces[end - 1] for end in ends] == [1.0, 0.75, 0.5, 0.25]
    assert paces == sorted(paces, reverse=True) and len(set(paces)) == 4
    monkeypatch.undo()
    train(config, tmp_path / "whole")
    losses = [[r["train_nll"] for r in metrics(tmp_path / name)] for name in ("slowed", "whole")]
    assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1]


def test_every_parameter_moves_and_the_function_at_its_own_rate(make_config):
    config = make_config(PLIF)
    corpus = build_corpus(config.data)
    model = build_model(config, corpus.num_words)
    optimizer = build_optimizer(config, model)
    assert [group["lr"] for group in optimizer.param_groups] == [5.0, 0.5]
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
    function = {id(p) for n, p in model.named_parameters() if "function" in n}
    assert {id(p) for p in optimizer.param_groups[1]["params"]} == function


def test_averages_include_head_and_function(make_config, tmp_path, monkeypatch):
    seen = {}
    from uncork.lm import trainer

    original = trainer.build_optimizer

    def keep(config, model):
        seen["model"], seen["optimizer"] = model, original(config, model)
        return seen["optimizer"]

    monkeypatch.setattr(trainer, "build_optimizer", keep)
    train(make_config(PLIF), tmp_path)
    averaged = {id(p) for p in seen["optimizer"].state}
    assert averaged == {id(p) for p in seen["model"].parameters()}


def test_the_backend_of_the_loss_can_be_chosen(make_config, tmp_path):
    for backend in ("chunked", "reference"):
        head = replace(PLIF, backend=backend)
        train(make_config(head, epochs=1), tmp_path / backend)
    first, second = (metrics(tmp_path / backend)[0]["valid_nll"] for backend in ("chunked", "reference"))
    assert first == pytest.approx(second, rel=1e-5)


def test_a_frozen_function_is_drawn_and_kept(make_config, tmp_path):
    frozen = FunctionConfig(name="PLIF", options={"knots": 50, "init": "random"}, frozen=True)
    config = make_config(HeadConfig(kind="monotonic", function=frozen), epochs=1)
    corpus = build_corpus(config.data)
    torch.manual_seed(config.seed)
    start = build_model(config, corpus.num_words).get_parameter("head.function.v").detach().clone()
    train(config, tmp_path)
    trained, _, _ = load_run(tmp_path)
    assert torch.equal(trained.get_parameter("head.function.v"), start) and start.std() > 0.5


def test_finetuning_starts_from_the_best_model_and_stops_by_itself(make_config, tmp_path):
    first = train(make_config(), tmp_path / "first")
    config = make_config(epochs=60, finetune=str(tmp_path / "first"))
    config = replace(config, optim=replace(config.optim, lr=30.0, patience=2))
    result = train(config, tmp_path / "second")
    records = metrics(tmp_path / "second")
    assert all(r["averaging"] for r in records)
    assert len(records) < 60, "the trigger must have ended it"
    assert records[0]["valid_nll"] < metrics(tmp_path / "first")[0]["valid_nll"]
    assert result["valid_nll"] <= first["valid_nll"] + 0.05


def test_lengths_follow_the_reference_rule(make_config):
    data = replace(make_config().data, bptt=70, bptt_spread=5.0)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([draw_length(data, generator) for _ in range(4000)], dtype=torch.float64)
    short = (lengths < 52).double().mean().item()
    assert short == pytest.approx(0.05, abs=0.012)
    assert lengths[lengths >= 52].mean().item() == pytest.approx(69.5, abs=0.4)  # int() cuts
    assert lengths.min() >= 5
    capped = replace(data, bptt_excess=2)
    assert max(draw_length(capped, generator) for _ in range(500)) == 72
    assert draw_length(replace(data, bptt_spread=0.0), generator) == 70


def test_tensorboard_events_are_written_on_request(make_config, tmp_path):
    pytest.importorskip("tensorboard")
    train(make_config(epochs=1, tensorboard=True), tmp_path)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_progress_tells_the_time_left(make_config, tmp_path, capsys):
    train(make_config(log_every=5), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert any("left 0:00:0" in line and "ms/step" in line for line in lines)
    assert lines[-1].startswith("valid ppl")


def test_metrics_are_json_lines(make_config, tmp_path):
    train(make_config(epochs=2), tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["valid_perplexity"] == pytest.approx(
        math.exp(json.loads(lines[0])["valid_nll"])
    )
