import pytest
import torch

from uncork.theory import interpolate, measure, raw_slopes
from uncork.theory.approximation import knot_positions, ramp


FUNCTIONS = {  # name: (h, bound on its slope on [-20, 20])
    "sigsoftmax": (lambda x: 2 * x - torch.nn.functional.softplus(x), 2.0),
    "steep sigmoid": (lambda x: 4 * torch.sigmoid(10 * x), 10.0),
    "soft cap": (lambda x: 5 * torch.tanh(x / 5), 1.0),
    "wavy": (lambda x: x + 0.99 * torch.sin(x), 1.99),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("knots", [2, 7, 64, 1000])
def test_error_is_below_both_bounds(name, knots):
    function, slope = FUNCTIONS[name]
    error = measure(function, slope, knots)
    assert error.measured <= error.sharp_bound + 1e-12 <= error.printed_bound
    assert error.printed_bound == pytest.approx(8 * error.sharp_bound)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_of_smooth_functions_falls_with_the_square_of_the_knots(name):
    function, slope = FUNCTIONS[name]
    coarse, fine = (measure(function, slope, k).measured for k in (1000, 4000))
    assert coarse / fine > 10


def test_the_sharp_bound_is_reached():
    error = measure(ramp(3.0, 50, 10.0), 3.0, 50, 10.0, points=100_001)
    assert error.measured == pytest.approx(error.sharp_bound, rel=1e-9)


def test_raw_slopes_rebuild_the_interpolant():
    function, _ = FUNCTIONS["wavy"]
    slopes = torch.nn.functional.softplus(raw_slopes(function, 40, 5.0))
    knots = knot_positions(40, 5.0)
    values = function(knots[:1]) + torch.cat([torch.zeros(1), slopes.cumsum(0)]) * (10.0 / 40)
    torch.testing.assert_close(values, interpolate(function, knots, 40, 5.0))


def test_flat_functions_are_not_plif():
    with pytest.raises(ValueError, match="increase strictly"):
        raw_slopes(lambda x: x.clamp(min=0), 10, 1.0)


@pytest.mark.parametrize("knots, bound, words", [(1, 1.0, "knots"), (4, 0.0, "bound")])
def test_bad_input(knots, bound, words):
    with pytest.raises(ValueError, match=words):
        knot_positions(knots, bound)
