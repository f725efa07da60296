"""One pass over parameters, gradients, mean squares and averages for a whole update.

Importing this imports Triton.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


# Tensors in one launch; every one of them is a copy of the code.
AT_ONCE = 8
BLOCK = 4096


class Moved(NamedTuple):
    """A parameter, all its tensors float32 and contiguous, with the settings of its group."""

    parameter: Tensor
    gradient: Tensor
    average: Tensor | None
    square: Tensor | None
    rate: float
    decay: float


class MeanSquare(NamedTuple):
    """How gradients are divided by their usual size: g / (sqrt(square / started) + tiny)."""

    beta2: float
    started: Tensor  # a number on the device: what the weights of all squares so far add up to
    tiny: float


def update(
    moved: list[Moved],
    factor: Tensor | None,
    pace: Tensor | None,
    weight: Tensor | None,
    mean_square: MeanSquare | None = None,
) -> None:
    """p -= pace rate (factor g + decay p), then average += weight (p - average) for those that have one.

    `factor`, `pace` and `weight`, numbers on the device, are read there. Without `weight` averages are left
    alone. With `mean_square` the gradient, after `factor`, is divided by its usual size.
    """
    # Large ones together: a launch has as many programs for its smallest as for its largest.
    moved = sorted(moved, key=lambda one: -one.parameter.numel())
    for start in range(0, len(moved), AT_ONCE):
        some = moved[start : start + AT_ONCE]
        parameters = tuple(one.parameter for one in some)
        sizes = tuple(one.parameter.numel() for one in some)
        averages = parameters if weight is None else tuple(_there(one.average) for one in some)
        squares, beta2, started, tiny = parameters, 0.0, None, 0.0
        if mean_square is not None:
            squares = tuple(_there(one.square) for one in some)
            beta2, started, tiny = mean_square
        with torch.cuda.device_of(parameters[0]):
            update_kernel[(triton.cdiv(sizes[0], BLOCK), len(some))](
                parameters, tuple(one.gradient for one in some), averages, squares, sizes,
                tuple(one.rate for one in some), tuple(one.decay for one in some),
                factor, pace, weight, started, beta2, 1.0 - beta2, tiny,
                COUNT=len(some), BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip


def _there(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # the caller averages, and divides, all or none
    return tensor


@triton.jit
def update_kernel(
    parameters, gradients, averages, squares, sizes, rates, decays, factor_ptr, pace_ptr, weight_ptr,
    started_ptr, beta2, new, tiny, COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The second index of a program says which of the tensors is its own."""
    which = tl.program_id(1)
    factor = 1.0 if factor_ptr is None else tl.load(factor_ptr)
    pace = 1.0 if pace_ptr is None else tl.load(pace_ptr)
    for i in tl.static_range(COUNT):
        if which == i:
            update_array(
                parameters[i], gradients[i], averages[i], squares[i], sizes[i], pace * rates[i], decays[i],
                factor, weight_ptr, started_ptr, beta2, new, tiny, BLOCK,
            )  # fmt: skip


@triton.jit
def update_array(
    parameter_ptr, gradient_ptr, average_ptr, square_ptr, size, rate, decay, factor, weight_ptr, started_ptr,
    beta2, new, tiny, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    p = tl.load(parameter_ptr + offsets, mask=mask, other=0.0)
    g = tl.load(gradient_ptr + offsets, mask=mask, other=0.0)
    g = factor * g
    if started_ptr is not None:
        square = tl.load(square_ptr + offsets, mask=mask, other=0.0)
        square = beta2 * square + new * (g * g)  # new: 1 - beta2, which float32 could not find from beta2
        tl.store(square_ptr + offsets, square, mask=mask)
        g = g / (tl.sqrt_rn(square / tl.load(started_ptr)) + tiny)
    p = p - rate * (g + decay * p)
    tl.store(parameter_ptr + offsets, p, mask=mask)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr)
        average = tl.load(average_ptr + offsets, mask=mask, other=0.0)
        # From the nearer end, as torch's lerp: at weight 1 the average is the iterate to the last bit.
        away = p - average
        average = tl.where(weight < 0.5, average + weight * away, p - away * (1.0 - weight))
        tl.store(average_ptr + offsets, average, mask=mask)
