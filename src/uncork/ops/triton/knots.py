"""Knot values of a function given by positive slopes, and the way back, in two kernels each."""

import functools

import numpy as np
import torch
from torch import Tensor

from uncork.ops.triton import table_kernels
from uncork.ops.triton.kernel_pass import power_of_two


BLOCK = 1024


class KnotValues(torch.autograd.Function):
    """F_i = -T + d times the sum of softplus(v_j) over j < i, in float64; d = 2 T / k."""

    @staticmethod
    def forward(ctx, v: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(v)
        ctx.bound = bound
        intervals, programs = v.numel(), -(-v.numel() // BLOCK)
        step = _two(2.0 * bound / intervals)
        sums, knots = (
            v.new_empty(programs, dtype=torch.float64),
            v.new_empty(intervals + 1, dtype=torch.float64),
        )
        v = v.contiguous()
        with torch.cuda.device_of(v):
            table_kernels.slope_sums_kernel[(programs,)](v, sums, intervals, BLOCK=BLOCK)
            table_kernels.knots_kernel[(programs,)](
                v, sums, knots, intervals, *step, *_two(bound),
                BLOCK=BLOCK, ALL=power_of_two(programs),
            )  # fmt: skip
        return knots

    @staticmethod
    def backward(ctx, dknots: Tensor):
        (v,) = ctx.saved_tensors
        intervals, programs = v.numel(), -(-v.numel() // BLOCK)
        if torch.is_grad_enabled():  # gradients of gradients, by torch
            above = dknots[1:].flip(0).cumsum(0).flip(0)
            return (torch.sigmoid(v.double()) * (2.0 * ctx.bound / intervals) * above).to(v.dtype), None
        dknots, v = dknots.contiguous(), v.contiguous()
        sums, dv = dknots.new_empty(programs), torch.empty_like(v)
        with torch.cuda.device_of(v):
            table_kernels.gradient_sums_kernel[(programs,)](dknots, sums, intervals, BLOCK=BLOCK)
            table_kernels.slopes_gradient_kernel[(programs,)](
                v, dknots, sums, dv, intervals, *_two(2.0 * ctx.bound / intervals),
                BLOCK=BLOCK, ALL=power_of_two(programs),
            )  # fmt: skip
        return dv, None


def knot_values(v: Tensor, bound: float) -> Tensor:
    """See `KnotValues`."""
    knots = KnotValues.apply(v, bound)
    assert isinstance(knots, Tensor)
    return knots


@functools.lru_cache
def _two(x: float) -> tuple[float, float]:
    """A float64 as a float32 and the rest: kernels take no float64 numbers."""
    high = float(np.float32(x))
    return high, x - high
