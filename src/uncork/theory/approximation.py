"""Theorem 7: piecewise-linear increasing functions approximate every increasing function with
bounded slope.

Interpolate h at the knots l_i = -T + 2 T i / K. If 0 <= h' <= R on [-T, T], the printed proof gives

    max |f_K - h| <= 2 R (2 T / K) = 4 R T / K.                                              (1)

This is true but eight times too large. On a piece of width d = 2T/K with mean slope s, h lies
between the two paths "flat, then slope R" and "slope R, then flat", so the error is at most s (1 -
s/R) d <= R d / 4:

    max |f_K - h| <= R T / (2 K),                                                            (2)

reached by `ramp`. When h'' exists the error is at most (T^2 / (2 K^2)) max |h''|, of second order.
A flat piece of h has slope 0, which softplus approaches and never reaches: such h are limits of
PLIFs, not PLIFs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ApproximationError:
    """Measured error of an interpolant beside the two bounds."""

    knots: int
    measured: float
    printed_bound: float
    sharp_bound: float


def knot_positions(knots: int, bound: float) -> Tensor:
    """l_i = -T + 2 T i / K for i = 0..K, in float64."""
    if knots < 2:
        raise ValueError(f"`knots` must be at least 2; got {knots}. Pass a number such as 100.")
    if not bound > 0:
        raise ValueError(f"`bound` must be positive; got {bound}. Pass a number such as 20.")
    return torch.linspace(-bound, bound, knots + 1, dtype=torch.float64)


def interpolate(function: Function, points: Tensor, knots: int, bound: float) -> Tensor:
    """The piecewise-linear interpolant of `function` on the knots, at `points`."""
    positions = knot_positions(knots, bound)
    values = function(positions)
    step = 2 * bound / knots
    index = ((points + bound) / step).floor().clamp(0, knots - 1).long()
    slope = (values[index + 1] - values[index]) / step
    return values[index] + slope * (points - positions[index])


def raw_slopes(function: Function, knots: int, bound: float) -> Tensor:
    """The parameters v with softplus(v) = the interpolant's slopes: `function` as a PLIF starts here."""
    values = function(knot_positions(knots, bound))
    slopes = values.diff() / (2 * bound / knots)
    if (slopes <= 0).any():
        raise ValueError(
            "`function` must increase strictly between knots, since softplus never reaches slope 0; got a "
            f"least slope of {slopes.min():.3g}. Add a small multiple of x to it."
        )
    return slopes + torch.log(-torch.expm1(-slopes))  # the inverse of softplus, stable for small slopes


def measure(
    function: Function, slope_bound: float, knots: int, bound: float = 20.0, points: int = 200_001
) -> ApproximationError:
    """Largest |f_K - h| on a fine grid, beside the printed bound (1) and the sharp bound (2)."""
    grid = torch.linspace(-bound, bound, points, dtype=torch.float64)
    error = (interpolate(function, grid, knots, bound) - function(grid)).abs().max()
    return ApproximationError(
        knots, float(error), 4 * slope_bound * bound / knots, slope_bound * bound / (2 * knots)
    )


def ramp(slope_bound: float, knots: int, bound: float) -> Function:
    """The worst case: within each piece flat for the first half, then slope R. It reaches (2)."""
    step = 2 * bound / knots

    def function(x: Tensor) -> Tensor:
        piece = ((x + bound) / step).floor()
        inside = (x + bound) - piece * step
        return slope_bound * (piece * step / 2 + (inside - step / 2).clamp(min=0))

    return function
