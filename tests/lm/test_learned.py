"""What `result.json` says of the function a run learned."""

import math
from dataclasses import replace

import pytest
import torch

from uncork.functions import PLIF
from uncork.functions.description import quantiles
from uncork.lm import FunctionConfig, HeadConfig, batchify, build_model, learned, load_run, train
from uncork.lm.build import build_corpus
from uncork.lm.evaluate import evaluation_mode
from uncork.lm.learned import SHARES, learned_function, sample_logits, start_of
from uncork.results import read_json


def monotonic(name, **settings):
    return HeadConfig(kind="monotonic", function=FunctionConfig(name=name, **settings))


def random_table(**settings):
    return monotonic("PLIF", options={"knots": 100, "bound": 2.0, "init": "random"}, **settings)


@pytest.fixture
def valid_TB(make_config):
    return batchify(build_corpus(make_config().data).valid, 10)


def drawn(config):
    torch.manual_seed(config.seed)
    model = build_model(config, 300)
    torch.nn.init.normal_(model.head.weight, std=3.0)
    return model


@pytest.mark.parametrize("head", [HeadConfig(), monotonic("SigSoftmax"), HeadConfig(kind="mixture")])
def test_nothing_is_said_of_heads_without_a_learned_function(make_config, valid_TB, head):
    config = make_config(head)
    assert learned_function(config, build_model(config, 300), valid_TB) is None


def every_logit(model, stream_TB, mixture=False):
    with torch.no_grad(), evaluation_mode(model):
        hidden_TBD = model.encoder(stream_TB[:-1]).dropped_TBD
        latent = model.head.latents(hidden_TBD)[0] if mixture else hidden_TBD
        return (latent @ model.head.weight.T + model.head.bias).flatten()


@pytest.mark.parametrize("kind", ["monotonic", "mixture"])
def test_logits_are_those_of_the_whole_text(make_config, valid_TB, kind, monkeypatch):
    config = make_config(replace(monotonic("PLIF", options={"knots": 10}), kind=kind, components=3))
    model = drawn(config)
    monkeypatch.setattr(learned, "SAMPLED_LOGITS", 10**9)
    expected = every_logit(model, valid_TB, mixture=kind == "mixture")
    got = sample_logits(model, valid_TB, 20)  # in windows that carry their state
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_sample_is_spread_over_the_text(make_config, valid_TB, monkeypatch):
    model = drawn(make_config(monotonic("Scale")))
    everything = every_logit(model, valid_TB).view(-1, 300)
    monkeypatch.setattr(learned, "SAMPLED_LOGITS", 7 * 300)
    got = sample_logits(model, valid_TB, 20).view(-1, 300)
    rows = torch.linspace(0, len(everything) - 1, 7).round().long()
    torch.testing.assert_close(got, everything[rows], rtol=1e-4, atol=1e-5)


def test_the_record_of_a_temperature(make_config, valid_TB):
    config = make_config(monotonic("Scale", options={"init": 0.5}))
    model = drawn(config)
    with torch.no_grad():
        model.get_parameter("head.function.v").fill_(math.log(math.expm1(2.0)))
    found = learned_function(config, model, valid_TB)
    assert found is not None and len(found["x"]) == len(found["f"]) == len(found["slope"]) == 201
    assert found["f"] == pytest.approx([2 * x for x in found["x"]], abs=2e-5)
    assert found["slope"] == pytest.approx([2.0] * 201, rel=1e-6)
    assert found["slopes"]["over_knots"] is None and found["logits"]["outside_bound"] is None
    assert found["slopes"]["at_logits"] == pytest.approx({"mean": 2, "std": 0, "min": 2, "max": 2}, abs=1e-5)
    reach = max(abs(x) for x in found["x"])
    assert found["moved"]["f"] == pytest.approx(1.5 * reach, rel=1e-5)
    assert found["moved"]["slope_at_logits"] == pytest.approx(1.5, rel=1e-5)


def test_the_record_of_a_table(make_config, valid_TB):
    """Slopes 1 left of zero and 3 right of it, from a random start."""
    config = make_config(random_table())
    model = drawn(config)
    f = model.function
    assert isinstance(f, PLIF)
    start = f.slopes.detach().double()
    target = torch.where(torch.arange(100) < 50, 1.0, 3.0).double()
    with torch.no_grad():
        f.v.copy_(torch.log(torch.expm1(target)))
    logits = every_logit(model, valid_TB)
    found = learned_function(config, model, valid_TB)
    assert found is not None
    expected = [3 * x if x > 0 else x for x in found["x"]]
    assert found["f"] == pytest.approx(expected, abs=1e-4)
    assert found["slopes"]["over_knots"] == pytest.approx(
        {"mean": 2.0, "std": math.sqrt(100 / 99), "min": 1.0, "max": 3.0}, rel=1e-6
    )
    right = (logits >= 0).double().mean().item()
    assert found["slopes"]["at_logits"]["mean"] == pytest.approx(1 + 2 * right, abs=1e-3)
    outside = (logits.abs() > 2).double().mean().item()
    assert outside > 0.02 and found["logits"]["outside_bound"] == pytest.approx(outside, abs=1e-3)
    moved = (target - start).square().mean().sqrt().item()
    assert found["moved"]["slope_over_knots"] == pytest.approx(moved, rel=1e-6)
    levels = found["logits"]["quantiles"]
    assert list(levels) == ["0", "0.001", "0.01", "0.1", "0.5", "0.9", "0.99", "0.999", "1"]
    spread = logits.double()
    for share in SHARES[1:-1]:
        below = (spread <= levels[f"{share:g}"]).double().mean().item()
        assert below == pytest.approx(share, abs=2e-4)
    assert (found["x"][0], found["x"][-1]) == pytest.approx((levels["0"], levels["1"]), abs=1e-5)


def test_quantiles_of_a_few_numbers():
    assert quantiles(torch.tensor([3.0, 1.0, 2.0]), (0.0, 0.5, 1.0)) == [1.0, 2.0, 3.0]


def test_quantiles_are_the_nearest_members():
    values = torch.arange(101.0).flip(0)
    assert quantiles(values, (0.0, 0.29, 0.576, 1.0)) == [0.0, 29.0, 58.0, 100.0]


def test_the_start_is_drawn_again_as_the_run_drew_it(make_config, tmp_path):
    """A frozen random function has not moved; the same one that learned has, and drawing disturbs nothing."""
    for name, settings, moved in (("frozen", {"frozen": True}, False), ("learned", {"lr": 1000.0}, True)):
        result = train(make_config(random_table(**settings), epochs=1), tmp_path / name)
        record = result["learned_function"]
        assert (record["moved"]["f"] > 1e-3) is moved
        if not moved:
            assert set(record["moved"].values()) == {0.0}
        assert read_json(tmp_path / name / "result.json")["learned_function"] == record
    model, config, _ = load_run(tmp_path / "learned")
    state = torch.get_rng_state()
    start_of(config, model)
    assert torch.equal(torch.get_rng_state(), state)


def test_finetuning_starts_from_the_function_of_the_first_run(make_config, tmp_path):
    head = random_table(lr=1000.0)
    train(make_config(head, epochs=1), tmp_path / "first")
    config = make_config(head, finetune=str(tmp_path / "first"))
    first, _, _ = load_run(tmp_path / "first")
    start = start_of(config, first)
    assert isinstance(start, PLIF) and torch.equal(start.v, first.get_parameter("head.function.v"))
    assert start_of(replace(config, finetune=str(tmp_path / "gone")), first) is None
