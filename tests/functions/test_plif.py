"""The piecewise-linear function: its starts, its two sums, its bound."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import softplus

from uncork.functions import PLIF
from uncork.ops import table


@pytest.mark.parametrize("bound", [0.5, 5.0, 20.0, 50.0])
@pytest.mark.parametrize("knots", [2, 3, 10, 1_000, 99_999, 100_000, 1_000_000])
def test_identity_start(knots, bound):
    """f(x) = x to float32 rounding, near zero, at the knots, beyond the bound."""
    f = PLIF(knots, bound)
    x = torch.cat(
        [torch.linspace(-2 * bound, 2 * bound, 20_001), torch.tensor([0.0, 1e-6, -1e-6, bound, -bound])]
    )
    error = (f(x) - x).detach().abs()
    eps = torch.finfo(torch.float32).eps
    assert (error <= 2 * eps * x.abs().clamp(min=bound)).all()
    inside = x.abs() <= bound
    assert error[inside].max() <= 2 * eps * bound
    assert (f.derivative(x) - 1).abs().max() <= eps


def test_identity_start_in_float64():
    """Whatever the number of knots: slopes of 1 are added up before they are multiplied by the step."""
    eps = torch.finfo(torch.float64).eps
    for knots in (7, 100_000, 1_000_000):
        f = PLIF(knots, dtype=torch.float64)
        x = torch.linspace(-30, 30, 10_001, dtype=torch.float64)
        error, inside = (f(x) - x).detach().abs(), x.abs() <= 20
        assert error[inside].max() <= 4 * eps * 20
        # Beyond, the slope of the last interval acts: a difference of two values over the step.
        assert error.max() <= 4 * eps * 20 * (1 + 10 * knots / 40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_never_fall_however_flat(dtype):
    """Slopes of 1e-13 are below what the values are known to: rounding may make steps of 0, and none down."""
    f = PLIF(10_000, dtype=dtype)
    with torch.no_grad():
        f.v.fill_(-30.0).view(-1)[::1000] = 1.0
    assert f.knot_values().diff().min() >= 0.0
    assert f.knot_values()[0] == -f.bound


def test_random_start():
    """The authors' v ~ N(0, 1) + log(e - 1): mean and spread of a million draws, within 5 standard errors."""
    f = PLIF(1_000_000, init="random", seed=0, dtype=torch.float64)
    v = f.v.detach()
    assert abs(v.mean() - math.log(math.e - 1)) <= 5e-3
    assert abs(v.std() - 1) <= 5e-3
    assert (f.slopes > 0).all()


def test_seed():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = PLIF(50, init="random", seed=3), PLIF(50, init="random", seed=3)
    assert torch.equal(first.v, second.v)
    assert torch.equal(torch.get_rng_state(), state)  # a seed of its own leaves the global one alone
    assert not torch.equal(first.v, PLIF(50, init="random", seed=4).v)
    torch.manual_seed(5)
    loose = PLIF(50, init="random")
    torch.manual_seed(5)
    assert torch.equal(loose.v, PLIF(50, init="random").v)
    before = first.v.clone()
    torch.nn.init.zeros_(first.v)
    first.reset_parameters()
    assert torch.equal(first.v, before)


def test_the_start_does_not_depend_on_the_dtype():
    wide, narrow = (PLIF(50, init="random", seed=3, dtype=d) for d in (torch.float64, torch.float32))
    assert torch.equal(wide.v.float(), narrow.v)


def test_the_two_sums():
    """G_i = sum g and X_i = sum g (x - l_i), by their definition, one interval at a time."""
    knots, bound = 6, 1.5
    step = 2 * bound / knots
    x = torch.randn(400, dtype=torch.float64) * 1.2
    g = torch.randn(400, dtype=torch.float64)
    index, offset = table.locate(x, knots, bound)
    sum_grad, sum_offset = table.interval_sums(index, offset, g, knots)
    for i in range(knots):
        left = -bound + i * step
        low = -math.inf if i == 0 else left
        high = math.inf if i == knots - 1 else left + step
        here = (x >= low) & (x < high)
        torch.testing.assert_close(sum_grad[i], g[here].sum())
        torch.testing.assert_close(sum_offset[i], (g * (x - left))[here].sum())


def test_gradient_from_the_two_sums():
    """dL/ds_j = X_j + d sum_{i>j} G_i, times the slope of softplus."""
    f = PLIF(6, 1.5, "random", seed=0, dtype=torch.float64)
    x, g = torch.randn(2, 300, dtype=torch.float64)
    f(x).backward(g)
    index, offset = table.locate(x, 6, 1.5)
    sum_grad, sum_offset = table.interval_sums(index, offset, g, 6)
    later = sum_grad.flip(0).cumsum(0).flip(0) - sum_grad
    expected = (sum_offset + 0.5 * later) * torch.sigmoid(f.v)
    torch.testing.assert_close(f.v.grad, expected.detach())


def test_a_million_slopes_keep_their_sum():
    """F runs over a million terms: in float32 it would be off in the third digit."""
    f = PLIF(1_000_000, 20.0, "random", seed=0)
    exact = -20 + (softplus(f.v.double()) * 4e-5).sum()
    at_the_end = f(torch.tensor([20.0]))
    assert abs(at_the_end - exact) <= 4e-6
    values = f.knot_values()
    assert values.dtype == torch.float64 and values.shape == (1_000_001,)
    assert values[0] == -20.0 and torch.allclose(values[-1], exact, rtol=1e-13)


def test_slopes_stay_positive():
    f = PLIF(4)
    with torch.no_grad():
        f.v.copy_(torch.tensor([-50.0, -5.0, 0.0, 100.0]))
    assert (f.slopes > 0).all()
    assert f.slopes[3] == 100


def test_outside_share():
    f = PLIF(10, 2.0)
    assert f.outside_share(torch.tensor([-3.0, -2.0, 0.0, 2.0, 2.1])) == pytest.approx(0.4)
    assert f.outside_share(torch.zeros(3, 4)) == 0.0
    assert f.outside_share(torch.full((2, 2), 5.0)) == 1.0
    with pytest.raises(ValueError, match=r"`logits` must not be empty, got shape \(0,\).*Pass"):
        f.outside_share(torch.zeros(0))
    with pytest.raises(TypeError, match="`logits` must have.*a floating dtype, got torch.int64. Convert"):
        f.outside_share(torch.zeros(3).long())


@pytest.mark.parametrize("reach", [0.7, 3.0, 11.0])
def test_fit_bound_keeps_the_function(reach):
    """At the new knots, up to one constant, which cancels in a softmax."""
    f = PLIF(1000, 3.0, "random", seed=1, dtype=torch.float64)
    knots = table.knots_of(1000, 1.1 * reach, torch.device("cpu"))
    before = f(knots)
    logits = torch.tensor([reach, -reach / 2, 0.0], dtype=torch.float64)
    assert f.fit_bound_(logits) == f.bound == pytest.approx(1.1 * reach)
    assert f.outside_share(logits) == 0.0
    change = (f(knots) - before).detach()
    torch.testing.assert_close(change, change.mean().expand_as(change), rtol=0, atol=1e-9)


def test_fit_bound_of_the_identity_is_the_identity():
    f = PLIF(100_000)
    assert f.fit_bound_(torch.tensor([37.0]), margin=0.5) == pytest.approx(55.5)
    x = torch.linspace(-60, 60, 1001)
    assert (f(x) - x).abs().max() <= 2e-5  # v itself is float32: slopes are 1 to 1e-7


@pytest.mark.parametrize("v", [-30.0, -1e4])
@pytest.mark.parametrize("reach", [5.0, 50.0])
def test_fit_bound_of_slopes_too_small_for_the_table(reach, v):
    """They stay above 0: from minus infinity no gradient leads back."""
    f = PLIF(100_000)
    with torch.no_grad():
        f.v[::3] = v
        f.v[:1000] = v
    f.fit_bound_(torch.tensor([reach]))
    assert torch.isfinite(f.v).all() and (f.slopes > 0).all()
    if v == -30.0:
        torch.testing.assert_close(f.v.min(), torch.tensor(-30.0))


def test_fit_bound_refuses():
    f = PLIF(10)
    for bad, message in [
        (torch.zeros(0), r"must not be empty, got shape \(0,\).*Pass"),
        (torch.zeros(5), "not all 0.*Leave out"),
        (torch.tensor([1.0, torch.nan]), "must be finite.*Leave out"),
        (torch.tensor([1.0, torch.inf]), "must be finite.*Leave out"),
    ]:
        with pytest.raises(ValueError, match=f"`logits`.*{message}"):
            f.fit_bound_(bad)
    with pytest.raises(ValueError, match="`margin` must be above 0"):
        f.fit_bound_(torch.ones(3), margin=0)
    with pytest.raises(ValueError, match="`bound` must be finite, got .*float32"):
        f.fit_bound_(torch.tensor([1e300], dtype=torch.float64))
    assert f.bound == 20.0


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("knots", [7, 1000])
def test_departure_and_roughness_written_out(knots, dtype, tolerance):
    f = PLIF(knots, 3.0, "random", seed=0, dtype=dtype)
    v = f.v.detach().double()
    s, ds_dv = torch.log1p(torch.exp(v)), 1 / (1 + torch.exp(-v))
    step = 6.0 / knots

    departure = sum((x - 1) ** 2 for x in s.tolist()) / knots
    (gradient,) = torch.autograd.grad(f.departure(), [f.v])
    assert f.departure().item() == pytest.approx(departure, rel=1e-12)
    torch.testing.assert_close(
        gradient.double(), 2 * (s - 1) * ds_dv / knots, rtol=tolerance, atol=tolerance / knots
    )

    # ds/dx at an inner knot stands for a stretch of one step, out of a length of 6.
    slope_change = [(after - before) / step for before, after in pairwise(s.tolist())]
    roughness = sum(x**2 for x in slope_change) * step / 6.0
    (gradient,) = torch.autograd.grad(f.roughness(), [f.v])
    assert f.roughness().item() == pytest.approx(roughness, rel=1e-12)
    jump = torch.tensor([0.0, *slope_change, 0.0], dtype=torch.float64)
    expected = 2 / 6.0 * (jump[:-1] - jump[1:]) * ds_dv
    torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=tolerance / step)


def test_departure_and_roughness_belong_to_the_function_not_the_table():
    """Of s(x) = 1 + sin(x) / 2 on [-pi, pi]: means 1/8 of both (s - 1)^2 and (ds/dx)^2."""
    for knots in (100, 10_000):
        f = PLIF(knots, math.pi, dtype=torch.float64)
        middle = (torch.arange(knots, dtype=torch.float64) + 0.5) * (2 * math.pi / knots) - math.pi
        s = 1 + torch.sin(middle) / 2
        with torch.no_grad():
            f.v.copy_(torch.log(torch.expm1(s)))
        assert f.departure().item() == pytest.approx(1 / 8, rel=1e-9)
        assert f.roughness().item() == pytest.approx(1 / 8, rel=3 / knots)
    assert PLIF(50).departure().item() < 1e-14 and PLIF(50).roughness().item() < 1e-28


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_refining_keeps_the_function(dtype):
    f = PLIF(50, 3.0, "random", seed=1, dtype=dtype)
    x = torch.linspace(-5, 5, 2001, dtype=torch.float64)
    before, v, parameter = f(x).detach(), f.v.detach().clone(), f.v
    f.v.grad = torch.zeros_like(f.v)
    f.refine_(600)
    assert f.knots == 600 and f.v.shape == (600,) and f.v is parameter and f.v.grad is None
    assert torch.equal(f.v, v.repeat_interleave(12))
    assert (f(x) - before).detach().abs().max() <= 600 * torch.finfo(torch.float64).eps * 3
    f(x).sum().backward()
    assert f.v.grad is not None and f.v.grad.shape == (600,)


def test_a_refined_table_is_saved_and_loaded_as_such():
    f = PLIF(10, init="random", seed=0)
    f.refine_(20)
    same = PLIF(20)
    same.load_state_dict(f.state_dict())
    assert torch.equal(same.v, f.v)


def test_refining_refuses():
    f = PLIF(10)
    with pytest.raises(
        ValueError, match="`knots` must be a multiple of the present 10, got 15.*Pass e.g. 20"
    ):
        f.refine_(15)
    with pytest.raises(TypeError, match="`knots` must be an int"):
        f.refine_(20.0)
    assert f.knots == 10


def test_repr():
    assert repr(PLIF(10, 2.0)) == "PLIF(knots=10, bound=2, init='identity')"


@pytest.mark.parametrize("knots", [100, 1000, 100_000])
def test_a_random_start_strays_from_a_line_as_the_docs_say(knots):
    """By 0.626 sqrt(L d) over a distance L from the line of slope 1.107, whatever the knots."""
    x, ends = torch.tensor([0.0, 10.0], dtype=torch.float64), []
    for seed in range(400):
        zero, far = PLIF(knots, 20.0, "random", seed, dtype=torch.float64)(x).tolist()
        ends.append(far - zero - 1.107 * 10.0)
    expected = 0.626 * (10.0 * 40.0 / knots) ** 0.5
    spread = torch.tensor(ends).square().mean().sqrt().item()
    assert spread == pytest.approx(expected, rel=0.12)  # 400 draws: 3.5 % is one standard deviation
