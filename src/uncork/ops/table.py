"""A piecewise-linear function on equal intervals, given by a table: the one form every learnable f
takes inside an op.

Interval i of k covers [l_i, l_i + d) with l_i = (i - k/2) d and d = 2 T / k; the first and the last
continue beyond [-T, T]. The table holds `value` F_i = f(l_i) and `slope` s_i, both of length k:

    f(x) = F_i + s_i (x - l_i)

Its backward pass needs two sums per interval, over all logits that fall into it, with g = dL/df:
G_i = sum g = dL/dF_i and X_i = sum g (x - l_i) = dL/ds_i.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def locate(x: Tensor, knots: int, bound: float) -> tuple[Tensor, Tensor]:
    """The interval index of each x (int64) and its offset x - l_i.

    l_i is taken from the middle, (i - k/2) d, so that its rounding error is relative to l_i, not to
    the bound: an identity table then returns x to float rounding near zero as well.
    """
    step = 2.0 * bound / knots
    position = x.add(bound).div_(step).floor_().clamp_(0, knots - 1)
    # NaN survives the clamp and would become an index outside the table.
    position.nan_to_num_(nan=0.0)
    index = position.to(torch.int64)
    offset = position.sub_(knots / 2).mul_(-step).add_(x)
    return index, offset


def evaluate(x: Tensor, value: Tensor, slope: Tensor, bound: float) -> Tensor:
    """f(x) by table look-up, without a gradient formula of its own."""
    index, offset = locate(x, value.numel(), bound)
    return value[index].addcmul_(slope[index], offset)


def interval_sums(index: Tensor, offset: Tensor, grad: Tensor, knots: int) -> tuple[Tensor, Tensor]:
    """G and X of the module's head, in float64: one interval may collect every logit there is."""
    flat = index.reshape(-1)
    grad64 = grad.reshape(-1).double()
    zeros = torch.zeros(knots, dtype=torch.float64, device=grad.device)
    sum_grad = zeros.index_add(0, flat, grad64)
    sum_offset = zeros.index_add_(0, flat, grad64 * offset.reshape(-1))
    return sum_grad, sum_offset


@torch.library.custom_op("uncork::piecewise_linear", mutates_args=())
def piecewise_linear(x: Tensor, value: Tensor, slope: Tensor, bound: float) -> Tensor:
    """f(x) with the two-sum backward pass: keeps x, never an index per logit."""
    return evaluate(x, value, slope, bound)


@piecewise_linear.register_fake
def _(x: Tensor, value: Tensor, slope: Tensor, bound: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("uncork::piecewise_linear_backward", mutates_args=())
def piecewise_linear_backward(
    grad: Tensor, x: Tensor, slope: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    """dL/dx, dL/dvalue and dL/dslope."""
    index, offset = locate(x, slope.numel(), bound)
    sum_grad, sum_offset = interval_sums(index, offset, grad, slope.numel())
    return grad * slope[index], sum_grad.to(slope.dtype), sum_offset.to(slope.dtype)


@piecewise_linear_backward.register_fake
def _(grad: Tensor, x: Tensor, slope: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(slope), torch.empty_like(slope)


def _setup_context(ctx, inputs, output) -> None:
    x, _, slope, ctx.bound = inputs
    ctx.save_for_backward(x, slope)


def _backward(ctx, grad: Tensor):
    x, slope = ctx.saved_tensors
    dx, dvalue, dslope = piecewise_linear_backward(grad.contiguous(), x, slope, ctx.bound)
    return dx, dvalue, dslope, None


piecewise_linear.register_autograd(_backward, setup_context=_setup_context)


def knots_of(knots: int, bound: float, device: torch.device) -> Tensor:
    """The k + 1 knots l_0 .. l_k in float64."""
    return (torch.arange(knots + 1, dtype=torch.float64, device=device) - knots / 2) * (2.0 * bound / knots)


def tabulate(
    function: Callable[[Tensor], Tensor],
    knots: int,
    bound: float,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """`value` and `slope` of the piecewise-linear interpolant of `function`, differentiable.

    `function` is evaluated on float64 knots: a slope is a difference of neighbours over a step of
    1e-4 or so, and float32 values would leave it three digits. Against a smooth f the interpolant is
    off by at most d^2/8 max|f''| in value and d/2 max|f''| in slope, inside the bound.
    """
    values = function(knots_of(knots, bound, device)).double()
    slope = values.diff() * (knots / (2.0 * bound))
    return values[:-1].to(dtype), slope.to(dtype)
