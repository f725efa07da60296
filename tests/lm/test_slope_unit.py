"""Learning a function does not depend on the table that holds it: rate, decay, clipping, coarse to fine."""

import math
from dataclasses import replace

import pytest
import torch

from uncork.functions import PLIF
from uncork.lm import FunctionConfig, HeadConfig, trainer
from uncork.lm.build import build_model, build_optimizer
from uncork.lm.clip import clip_factor, gradient_norm
from uncork.lm.refine import coarsen_gradient, knots_after
from uncork.lm.slope_unit import interval_ratio
from uncork.recipes import build


LR = 300.0
X = torch.linspace(-6.0, 6.0, 601, dtype=torch.float64)


def head(knots, bound=20.0, lr=LR, **settings):
    options = {"knots": knots, "bound": bound}
    return HeadConfig(
        kind="monotonic", function=FunctionConfig(name="PLIF", options=options, lr=lr, **settings)
    )


def table_of(model):
    assert isinstance(model.function, PLIF)
    return model.function


def trained(make_config, tmp_path, monkeypatch, head_config):
    """The model as the last step left it, after two epochs without averaging."""
    kept = {}
    original = trainer.build_optimizer

    def keep(config, model):
        kept["model"] = model
        return original(config, model)

    config = make_config(head_config, epochs=2)
    config = replace(config, optim=replace(config.optim, average="never"))
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "build_optimizer", keep)
        patch.setattr(trainer, "load_model", lambda path, model: None)  # keep the last, not the best
        trainer.train(config, tmp_path / str(len(list(tmp_path.iterdir()))))
    return kept["model"]


def curve(model):
    """f less f(0), which cancels in the softmax."""
    f = table_of(model).double()
    with torch.no_grad():
        return f(X) - f(torch.zeros(1, dtype=torch.float64))


def apart(first, second):
    """How far two functions are from each other, in parts of how far the first is from the identity."""
    return ((first - second).abs().max() / (first - X).abs().max()).item()


@pytest.fixture
def run(make_config, tmp_path, monkeypatch):
    return lambda head_config: trained(make_config, tmp_path, monkeypatch, head_config)


# Largest difference to the table of 100,000 knots on [-20, 20], in parts of how far that one moved. It falls
# as the square of a piece's width; measured: 0.064, 1.2e-3, 6.4e-6 for 100, 1000 and 10,000 knots.
BANDS = {100: 0.08, 1000: 1.5e-3, 10_000: 2e-5}


def test_training_ends_with_the_same_function_whatever_the_table(run):
    fine = curve(run(head(100_000)))
    assert (fine - X).abs().max() > 0.3, "the function must have moved, or nothing is compared"
    for knots, band in BANDS.items():
        assert apart(fine, curve(run(head(knots)))) < band
        assert apart(fine, curve(run(head(knots // 2, bound=10.0)))) < band
    assert apart(fine, curve(run(head(100_000, bound=10.0)))) < 5e-6


def test_at_one_raw_rate_it_would_not(run):
    fine = curve(run(head(100_000)))
    assert apart(fine, curve(run(head(10_000, lr=LR * 10)))) > 1.0


def test_the_norm_clipping_sees_does_not_depend_on_the_table(make_config):
    """That of one loss's gradient, all others put to zero; counted by slope it would grow tenfold."""
    counted, plain = [], []
    for knots, bound in ((100_000, 20.0), (1000, 20.0), (500, 10.0)):
        torch.manual_seed(1)
        model = build_model(make_config(head(knots, bound)), 300)
        torch.nn.init.normal_(model.head.weight)
        tokens_TB, target_TB = torch.randint(300, (2, 20, 8))
        model(tokens_TB, None, target_TB).loss.backward()
        gradient = table_of(model).v.grad
        model.zero_grad()
        table_of(model).v.grad = gradient
        plain.append(gradient.norm().item())
        counted.append(gradient_norm(model).item())
    assert counted == pytest.approx([counted[0]] * 3, rel=2e-3)
    assert plain == pytest.approx([counted[0], 10 * counted[0], 10 * counted[0]], rel=2e-3)


def test_decay_does_not_depend_on_the_table(run):
    strong = {"weight_decay": 1e-4}
    fine = curve(run(head(100_000, **strong)))
    assert apart(fine, curve(run(head(100_000)))) > 0.05, "the decay must show, or nothing is compared"
    assert apart(fine, curve(run(head(10_000, **strong)))) < BANDS[10_000]


def test_the_pull_does_not_depend_on_the_number_of_knots(run):
    fine = curve(run(head(2000, pull=10.0)))
    assert apart(fine, curve(run(head(2000)))) > 0.3, "the pull must show, or nothing is compared"
    assert apart(fine, curve(run(head(1000, pull=10.0)))) < BANDS[1000]


def test_smoothness_does_not_depend_on_the_number_of_knots(run):
    fine = curve(run(head(500, smoothness=0.5)))
    assert apart(fine, curve(run(head(500)))) > 0.05, "smoothness must show, or nothing is compared"
    assert apart(fine, curve(run(head(250, smoothness=0.5)))) < 0.015


def rate_and_decay(recipe):
    config = build(recipe, ("model.hidden=4", "model.embedding=4", "model.layers=1"))
    group = build_optimizer(config, build_model(config, 7)).param_groups[1]
    return group["lr"], group["weight_decay"]


def test_published_runs_keep_their_raw_step():
    """0.02 and 1.2e-6 for each slope, at 100,000 knots and at a million."""
    assert rate_and_decay("penn_plif_authors") == (0.02, 1.2e-6)
    assert rate_and_decay("wikitext2_plif_authors") == (0.02, 1.2e-6)
    lr, decay = rate_and_decay("penn_mos_plif")
    assert lr == 0.02 and decay == pytest.approx(1.2e-6, rel=1e-12)
    assert rate_and_decay("penn_plif") == (2.0, 0.0)
    assert rate_and_decay("penn_temperature") == (0.1, 0.0)


def test_the_ratio_of_intervals():
    assert interval_ratio(PLIF()) == interval_ratio(torch.nn.Identity()) == interval_ratio(None) == 1.0
    assert interval_ratio(PLIF(1000, 10.0)) == 50.0


@pytest.mark.parametrize("limit", [0.25, 1e9])
def test_clipping_against_the_norm_written_out(make_config, limit):
    model = build_model(make_config(head(1000)), 300)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    gradients = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    weight = {name: 1 / 100 if name == "head.function.v" else 1.0 for name in gradients}
    norm = math.sqrt(sum(weight[n] * g.square().sum().item() for n, g in gradients.items()))
    assert gradient_norm(model).item() == pytest.approx(norm, rel=1e-6)
    expected = min(1.0, limit / (norm + 1e-6))
    assert clip_factor(gradient_norm(model), limit).item() == pytest.approx(expected, rel=1e-6)


def test_at_the_reference_table_clipping_is_torchs(make_config):
    models = [build_model(make_config(head(100_000)), 300) for _ in range(2)]
    for parameters in zip(*(m.parameters() for m in models), strict=True):
        gradient = torch.randn_like(parameters[0])
        for parameter in parameters:
            parameter.grad = gradient.clone()
    factor = clip_factor(gradient_norm(models[0]), 0.25)
    torch.nn.utils.clip_grad_norm_(models[1].parameters(), 0.25)
    for first, second in zip(*(m.parameters() for m in models), strict=True):
        assert first.grad is not None and second.grad is not None
        assert torch.equal(first.grad * factor, second.grad)


def test_a_coarse_stage_trains_as_the_coarse_table_does(run):
    coarse, staged = run(head(100)), run(head(10_000, refine={"0": 100}))
    assert table_of(staged).v.unflatten(0, (100, 100)).std(1).max() == 0.0
    assert apart(curve(coarse), curve(staged)) < 1e-5
    finer = run(head(10_000, refine={"0": 100, "1": 1000}))
    assert apart(curve(coarse), curve(finer)) > 1e-3
    slopes = table_of(finer).v
    assert slopes.unflatten(0, (1000, 10)).std(1).max() == 0.0 < slopes.unflatten(0, (100, 100)).std(1).max()


def test_stages_by_epoch():
    refine = {"20": 1000, "0": 100}
    assert [knots_after(refine, epoch) for epoch in (0, 19, 20, 500)] == [100, 100, 1000, 1000]
    assert knots_after({}, 3) is None and knots_after({"2": 10}, 1) is None


def test_the_gradient_of_a_stage_is_the_mean_of_its_blocks(make_config):
    config = make_config(head(6, refine={"1": 2}))
    model = build_model(config, 300)
    gradient = torch.tensor([1.0, 2.0, 6.0, 0.0, -1.0, 4.0])
    table_of(model).v.grad = gradient.clone()
    coarsen_gradient(model, config, 0)
    assert torch.equal(table_of(model).v.grad, gradient)
    coarsen_gradient(model, config, 1)
    assert table_of(model).v.grad.tolist() == [3.0, 3.0, 3.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"refine": {"0": 300}}, "`function.refine` must give divisors of the table's 1000 knots; got 300"),
        ({"smoothness": 1e4}, "`function.smoothness` must be at most .* for 1000 knots.*Take fewer knots"),
    ],
)
def test_settings_the_table_cannot_follow_are_refused(make_config, settings, message):
    with pytest.raises(ValueError, match=message):
        config = make_config(head(1000, **settings))
        build_optimizer(config, build_model(config, 300))


def test_the_limit_of_smoothness_is_where_steps_begin_to_diverge():
    """On slopes so steep that softplus is a line, which the rule assumes."""
    for share, grows in ((0.95, False), (1.05, True)):
        f = PLIF(64, 2.0, dtype=torch.float64)
        step = 4.0 / 64
        raw_lr, strength = 0.1, share * 4.0 * step / (4.0 * 0.1)
        with torch.no_grad():
            f.v.copy_(100.0 + 1e-3 * (-1.0) ** torch.arange(64))
        start = f.roughness().item()
        for _ in range(400):
            (gradient,) = torch.autograd.grad(strength * f.roughness(), [f.v])
            with torch.no_grad():
                f.v.sub_(raw_lr * gradient)
        assert (f.roughness().item() > 10 * start) is grows


def test_nothing_waits_for_the_device(make_config):
    """On tensors without values, where reading one, as a synchronisation does, raises."""
    config = make_config(head(1000, pull=1.0, refine={"0": 10}))
    model = build_model(config, 300).to("meta")
    (table_of(model).departure() + table_of(model).roughness()).backward()
    coarsen_gradient(model, config, 0)
    factor = clip_factor(gradient_norm(model), 0.25)
    with pytest.raises(RuntimeError, match="meta"):
        factor.item()


def test_penalties_are_in_the_loss_and_not_in_what_is_reported(make_config):
    tokens_TB, target_TB = torch.randint(300, (2, 20, 8))
    steps = []
    for settings in ({}, {"pull": 2.0}, {"pull": 2.0, "smoothness": 30.0}):
        torch.manual_seed(2)  # weights and masks alike
        model = build_model(make_config(head(50, **settings)), 300)
        with torch.no_grad():
            table_of(model).v.copy_(torch.linspace(-1.0, 1.0, 50))
        steps.append(model(tokens_TB, None, target_TB))
    slopes = torch.log1p(torch.exp(torch.linspace(-1.0, 1.0, 50).double()))
    departure = (slopes - 1).square().mean().item()
    roughness = ((slopes[1:] - slopes[:-1]) / 0.8).square().sum().item() / 50
    plain, pulled, both = (step.loss.item() for step in steps)
    assert pulled - plain == pytest.approx(2 * departure, rel=1e-5)
    assert both - plain == pytest.approx(2 * departure + 30 * roughness, rel=1e-5)
    assert 30 * roughness > 0.01 and len({step.nll.item() for step in steps}) == 1
