"""Tabulated functions: the error against the smooth one is within the stated bound, and nearly reaches it."""

import pytest
import torch
from torch import nn

import uncork
from tests.helpers import Bend, make_case, naive_network, our_loss
from uncork.functions import MonotoneNetwork, Tabulated
from uncork.ops import cpu_pass, pointwise, table


class Parabola(nn.Module):
    """A piece of z^2/2 that is increasing: f'' is 1 everywhere, so the bounds are reached exactly."""

    def forward(self, z):
        return 30.0 * z + z.square() / 2


def errors(smooth, slope_of, knots, bound):
    """Largest error in value and slope of the table of `smooth`, over many points inside the bound."""
    tabulated = Tabulated(smooth, knots, bound)
    x = torch.linspace(-bound, bound, 40 * knots + 1, dtype=torch.float64)[:-1]
    value = (tabulated(x) - smooth(x)).abs().max().item()
    slope = (tabulated.derivative(x) - slope_of(x)).abs().max().item()
    return value, slope


@pytest.mark.parametrize("knots, bound", [(10, 4.0), (301, 6.0), (2000, 20.0)])
def test_bounds_are_reached_by_a_parabola(knots, bound):
    """d^2/8 max|f''| and d/2 max|f''| are the errors themselves, not ten times them."""
    d = 2 * bound / knots
    value, slope = errors(Parabola(), lambda x: 30 + x, knots, bound)
    assert 0.99 * d**2 / 8 <= value <= 1.000001 * d**2 / 8
    assert 0.94 * d / 2 <= slope <= 1.000001 * d / 2


@pytest.mark.parametrize("knots, bound", [(50, 4.0), (301, 6.0), (2000, 20.0)])
def test_a_users_module(knots, bound):
    f = Bend().double()
    d = 2 * bound / knots
    derivative = lambda x: (1 + nn.functional.softplus(f.raw) * (1 - torch.tanh(x).square())).detach()
    value, slope = errors(f, derivative, knots, bound)
    assert 0.9 * d**2 / 8 * f.curvature() <= value <= d**2 / 8 * f.curvature()
    assert 0.8 * d / 2 * f.curvature() <= slope <= d / 2 * f.curvature()


@pytest.mark.parametrize("units, skip", [(1, False), (10, False), (10, True)])
def test_network_states_its_own_error(units, skip):
    """`table_error` bounds the table in use; for one unit, whose f'' it knows exactly, it is attained."""
    net = MonotoneNetwork(units, skip, knots=400, bound=15.0, dtype=torch.float64)
    (values,) = net.pointwise(torch.float64, torch.device("cpu")).tensors
    x = torch.linspace(-15, 15, 30_000, dtype=torch.float64)
    index, offset = table.locate(x, 400, 15.0)
    value, slope = table.values_and_slopes(values, 15.0, torch.float64)
    value_error = (value[index] + slope[index] * offset - naive_network(x, net)).abs().max().item()
    slope_error = (slope[index] - net.derivative(x)).abs().max().item()
    value_bound, slope_bound = net.table_error()
    assert value_error <= value_bound and slope_error <= slope_bound
    attained = 0.9 if units == 1 else 0.1
    assert value_error >= attained * value_bound and slope_error >= 0.9 * attained * slope_bound


def test_at_the_default_size_the_error_is_below_float32_rounding():
    net = MonotoneNetwork(10)
    value, slope = net.table_error()
    assert value <= torch.finfo(torch.float32).eps * 10
    assert slope <= 1e-3


def test_the_loss_is_that_of_the_smooth_function_within_the_bound():
    """An error e in f moves a log-probability by 2e at most; curved both ways, f comes near to that."""
    smooth = make_case((200,), function=Bend(), reduction="none")
    case = make_case((200,), function=Tabulated(Bend(), knots=60, bound=6.0), reduction="none")
    gap = (our_loss(case, "chunked") - our_loss(smooth, "reference")).abs().max().item()
    bound = 2 * 0.2**2 / 8 * smooth.function.curvature()
    assert 0.3 * bound <= gap <= bound


def test_a_network_is_exact_when_asked():
    net = MonotoneNetwork(10, knots=30, dtype=torch.float64)
    case = make_case((50,), function=net, reduction="none")
    smooth = our_loss(case, "reference")
    assert (our_loss(case, "chunked") - smooth).abs().max() > 1e-3
    case.function.tabulate = False
    torch.testing.assert_close(our_loss(case, "chunked"), smooth, rtol=1e-12, atol=1e-12)


def test_the_gradient_is_that_of_the_smooth_function_within_the_bound():
    """|d(g f')| <= |dg| f' + g |df'| with |dg| <= 2e: at most 2e max f' + e' for each logit."""
    net = MonotoneNetwork(10, knots=300, dtype=torch.float64)
    case = make_case((50,), function=net, reduction="none")
    value_error, slope_error = case.function.table_error()
    steepest = case.function.derivative(torch.linspace(-20, 20, 4001).double()).max().item()
    grads = []
    for backend in ("chunked", "reference"):
        (grad,) = torch.autograd.grad(our_loss(case, backend).sum(), case.bias)
        grads.append(grad)
    gap = (grads[0] - grads[1]).abs().max().item()
    bound = 50 * (2 * value_error * steepest + slope_error)
    assert 1e-4 * bound <= gap <= bound


def test_tabulated_trains_the_module_inside():
    """Gradients of the wrapped module's parameters, through the table, within its error of the exact ones."""
    inner = Bend()
    case = make_case((40,), function=Tabulated(inner, knots=2000, bound=12.0))
    exact = make_case((40,), function=inner)
    (through,) = torch.autograd.grad(our_loss(case, "chunked"), case.function.function.raw)
    (direct,) = torch.autograd.grad(our_loss(exact, "chunked"), exact.function.raw)
    torch.testing.assert_close(through, direct, rtol=1e-4, atol=1e-6)


def test_a_wrapped_module_keeps_its_buffers():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.tensor(0.5))
            self.register_buffer("count", torch.tensor(3))

        def forward(self, z):
            return torch.asinh(z - self.shift) * self.count

    f = Tabulated(Shifted())
    x = torch.linspace(-10, 10, 101)
    torch.testing.assert_close(f(x), Shifted()(x), rtol=1e-5, atol=1e-6)


def test_the_choice_is_visible():
    """repr and the form handed to the ops both say whether a table is used."""
    on, off = MonotoneNetwork(3, knots=50, bound=4.0), MonotoneNetwork(3, tabulate=False)
    assert "tabulated on 50 intervals of [-4, 4]" in repr(on) and "exact" in repr(off)
    here = (torch.float32, torch.device("cpu"))
    assert pointwise.as_pointwise(on, *here).kind == "table"
    assert pointwise.as_pointwise(off, *here).kind == "callable"
    assert pointwise.as_pointwise(Bend(), *here).kind == "callable"
    assert pointwise.as_pointwise(Tabulated(Bend()), *here).kind == "table"


def test_table_and_module_agree_between_passes():
    """The op's table, the compiled pass and the torch pass read the same function."""
    case = make_case((30,), function="network_skip", dtype=torch.float32, reduction="none")
    compiled = our_loss(case, "chunked")
    with cpu_pass.disabled():
        plain = our_loss(case, "chunked")
    torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=1e-6)
    assert uncork.functions.MonotoneNetwork is type(case.function)
