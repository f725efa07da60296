"""An increasing function as numbers to store: its curve, its slopes, and the logits it is applied to."""

from collections.abc import Iterable

import torch
from torch import Tensor

from uncork.functions.base import AbstractMonotone


@torch.no_grad()
def curve(function: AbstractMonotone, x: Tensor) -> dict[str, list[float]]:
    """`x`, f(x) - f(0) and f'(x), to five decimals; f(0) is taken off since it cancels in the softmax."""
    value = function(x) - function(torch.zeros_like(x[:1]))
    return {"x": _rounded(x), "f": _rounded(value), "slope": _rounded(function.derivative(x))}


@torch.no_grad()
def spread(slopes: Tensor) -> dict[str, float]:
    """Mean, standard deviation, minimum and maximum."""
    slopes = slopes.double()
    return {name: float(getattr(slopes, name)()) for name in ("mean", "std", "min", "max")}


def quantiles(values: Tensor, shares: Iterable[float]) -> list[float]:
    """Members of `values` below which the given shares of the others lie; 0 and 1 are the extremes."""
    ordered = values.sort().values
    last = len(ordered) - 1
    return [float(ordered[round(share * last)]) for share in shares]


def _rounded(values: Tensor) -> list[float]:
    return [round(v, 5) for v in values.double().tolist()]
