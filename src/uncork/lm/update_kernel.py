"""One pass over parameters, gradients and averages for a whole update. Importing this imports Triton."""

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
    rate: float
    decay: float


def update(moved: list[Moved], factor: Tensor | None, pace: Tensor | None, weight: Tensor | None) -> None:
    """p -= pace rate (factor g + decay p), then average += weight (p - average) for those that have one.

    `factor`, `pace` and `weight`, numbers on the device, are read there. Without `weight` averages are left
    alone.
    """
    # Large ones together: a launch has as many programs for its smallest as for its largest.
    moved = sorted(moved, key=lambda one: -one.parameter.numel())
    for start in range(0, len(moved), AT_ONCE):
        some = moved[start : start + AT_ONCE]
        parameters = tuple(one.parameter for one in some)
        sizes = tuple(one.parameter.numel() for one in some)
        averages = parameters if weight is None else tuple(_average(one) for one in some)
        with torch.cuda.device_of(parameters[0]):
            update_kernel[(triton.cdiv(sizes[0], BLOCK), len(some))](
                parameters, tuple(one.gradient for one in some), averages, sizes,
                tuple(one.rate for one in some), tuple(one.decay for one in some),
                factor, pace, weight, COUNT=len(some), BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip


def _average(one: Moved) -> Tensor:
    assert one.average is not None  # the caller averages all or none
    return one.average


@triton.jit
def update_kernel(
    parameters, gradients, averages, sizes, rates, decays, factor_ptr, pace_ptr, weight_ptr,
    COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The second index of a program says which of the tensors is its own."""
    which = tl.program_id(1)
    factor = 1.0 if factor_ptr is None else tl.load(factor_ptr)
    pace = 1.0 if pace_ptr is None else tl.load(pace_ptr)
    for i in tl.static_range(COUNT):
        if which == i:
            update_array(
                parameters[i], gradients[i], averages[i], sizes[i], pace * rates[i], decays[i], factor,
                weight_ptr, BLOCK,
            )  # fmt: skip


@triton.jit
def update_array(
    parameter_ptr, gradient_ptr, average_ptr, size, rate, decay, factor, weight_ptr, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    p = tl.load(parameter_ptr + offsets, mask=mask, other=0.0)
    g = tl.load(gradient_ptr + offsets, mask=mask, other=0.0)
    p = p - rate * (factor * g + decay * p)
    tl.store(parameter_ptr + offsets, p, mask=mask)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr)
        average = tl.load(average_ptr + offsets, mask=mask, other=0.0)
        # From the nearer end, as torch's lerp: at weight 1 the average is the iterate to the last bit.
        away = p - average
        average = tl.where(weight < 0.5, average + weight * away, p - away * (1.0 - weight))
        tl.store(average_ptr + offsets, average, mask=mask)
