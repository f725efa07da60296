"""A piecewise-linear function on equal intervals, given by its values at the knots: the one form every
learnable f takes inside an op.

With k intervals of [-T, T], d = 2T/k and knots l_i = (i - k/2) d, i = 0..k, the table holds F_i = f(l_i) in
float64. Inside interval i, and beyond the ends for the first and the last,

    f(x) = F_i + s_i (x - l_i),    s_i = (F_{i+1} - F_i) / d

Its backward pass needs two sums per interval, over all logits that fall into it, with g = dL/df:
G_i = sum g and X_i = sum g (x - l_i). They give dL/dF_i = G_i - X_i/d + X_{i-1}/d; autograd does the rest.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from uncork.ops.swapped import call_with


def step_of(knot_values: Tensor, bound: float) -> float:
    """d, the width of an interval."""
    return 2.0 * bound / (knot_values.numel() - 1)


def values_and_slopes(knot_values: Tensor, bound: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """F_i and s_i for i < k in `dtype`.

    A slope is a difference of neighbours over a step of 1e-4 or so: taken in float64, where it has eleven
    digits, and not in float32, where it would have three.
    """
    slope = knot_values.diff() / step_of(knot_values, bound)
    return knot_values[:-1].to(dtype), slope.to(dtype)


def locate(x: Tensor, intervals: int, bound: float) -> tuple[Tensor, Tensor]:
    """The interval index of each x (int32) and its offset x - l_i.

    l_i is taken from the middle, (i - k/2) d, so that its rounding error is relative to l_i, not the bound:
    an identity table then returns x to float rounding near zero as well.
    """
    step = 2.0 * bound / intervals
    position = x.add(bound).div_(step).floor_().clamp_(0, intervals - 1)
    # NaN survives the clamp and would become an index outside the table.
    position.nan_to_num_(nan=0.0)
    index = position.to(torch.int32)
    offset = position.sub_(intervals / 2).mul_(-step).add_(x)
    return index, offset


def look_up(entries: Tensor, index: Tensor) -> Tensor:
    """entries[index] as a copy; plain indexing by a scalar would give a view, and is slower besides."""
    return entries.index_select(0, index.reshape(-1)).view(index.shape)


def interval_sums(index: Tensor, offset: Tensor, grad: Tensor, intervals: int) -> tuple[Tensor, Tensor]:
    """G and X of the module's head, in float64: one interval may collect every logit there is."""
    flat = index.reshape(-1)
    grad64 = grad.reshape(-1).to(torch.float64, copy=True)
    zeros = torch.zeros(intervals, dtype=torch.float64, device=grad.device)
    sum_grad = zeros.index_add(0, flat, grad64)
    # A word masked by a logit of -inf has no gradient, and zero times its offset would be NaN.
    masked = grad64 == 0.0
    sum_offset = zeros.index_add_(0, flat, grad64.mul_(offset.reshape(-1)).masked_fill_(masked, 0.0))
    return sum_grad, sum_offset


def knot_gradient(sum_grad: Tensor, sum_offset: Tensor, bound: float) -> Tensor:
    """dL/dF_i for the k + 1 knots: each interval pulls on both its ends."""
    per_step = sum_offset * (sum_grad.numel() / (2.0 * bound))
    gradient = torch.zeros(sum_grad.numel() + 1, dtype=torch.float64, device=sum_grad.device)
    gradient[:-1] = sum_grad - per_step
    gradient[1:] += per_step
    return gradient


def piecewise_linear(x: Tensor, knot_values: Tensor, bound: float) -> Tensor:
    """f(x), differentiable in x and in the values at the knots."""
    check_device(x, knot_values.device)
    if not torch._C._are_functorch_transforms_active() and not in_forward_mode():
        return piecewise_linear_op(x, knot_values, bound)
    # Transforms of torch.func and forward-mode derivatives see into plain torch, and would take the op for a
    # constant.
    value, slope = values_and_slopes(knot_values, bound, x.dtype)
    still = x.detach()
    index, offset = locate(still, value.numel(), bound)
    moved = torch.where(still.isinf(), 0.0, x - still)  # 0, with the derivative of x; a masked word has none
    return look_up(value, index) + look_up(slope, index) * (offset + moved)


def check_device(z: Tensor, device: torch.device) -> None:
    """Logits and function are in one place; of the two, one on "meta" would go unnoticed."""
    if z.device != device:
        raise ValueError(
            f"`z` must be on the device of the function, {device}, got {z.device}. Move one of the two with "
            ".to(), or give a function on meta its parameters first."
        )


def in_forward_mode() -> bool:
    """Whether forward-mode derivatives are being computed."""
    return forward_ad._current_level >= 0


@torch.library.custom_op("uncork::piecewise_linear", mutates_args=())
def piecewise_linear_op(x: Tensor, knot_values: Tensor, bound: float) -> Tensor:
    """With the two-sum backward pass: keeps x, never an index per logit."""
    value, slope = values_and_slopes(knot_values, bound, x.dtype)
    index, offset = locate(x, value.numel(), bound)
    return look_up(value, index).addcmul_(look_up(slope, index), offset)


@piecewise_linear_op.register_fake
def _(x: Tensor, knot_values: Tensor, bound: float) -> Tensor:
    return x.new_empty(x.shape)  # contiguous, as what `look_up` gives is


@torch.library.custom_op("uncork::piecewise_linear_backward", mutates_args=())
def piecewise_linear_backward(
    grad: Tensor, x: Tensor, knot_values: Tensor, bound: float
) -> tuple[Tensor, Tensor]:
    """dL/dx and dL/dF."""
    _, slope = values_and_slopes(knot_values, bound, x.dtype)
    index, offset = locate(x, slope.numel(), bound)
    sums = interval_sums(index, offset, grad, slope.numel())
    return grad * look_up(slope, index), knot_gradient(*sums, bound)


@piecewise_linear_backward.register_fake
def _(grad: Tensor, x: Tensor, knot_values: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), knot_values.new_empty(knot_values.shape)


def _setup_context(ctx, inputs, output) -> None:
    x, knot_values, ctx.bound = inputs
    ctx.save_for_backward(x, knot_values)


def _backward(ctx, grad: Tensor):
    dx, dvalues = piecewise_linear_backward(grad.contiguous(), *ctx.saved_tensors, ctx.bound)
    return dx, dvalues, None


def _setup_context_twice(ctx, inputs, output) -> None:
    grad, x, knot_values, ctx.bound = inputs
    ctx.save_for_backward(grad, x, knot_values)


def _backward_twice(ctx, along_x: Tensor, along_values: Tensor):
    """Second derivatives, in plain torch: they exist so that the reference backend has them."""
    grad, x, knot_values = ctx.saved_tensors
    _, slope = values_and_slopes(knot_values, ctx.bound, x.dtype)
    value_along, slope_along = values_and_slopes(along_values, ctx.bound, x.dtype)
    index, offset = locate(x, slope.numel(), ctx.bound)
    slope_along = look_up(slope_along, index)
    dgrad = along_x * look_up(slope, index) + look_up(value_along, index) + slope_along * offset
    pull, _ = interval_sums(index, offset, along_x * grad, slope.numel())
    return dgrad, slope_along * grad, knot_gradient(torch.zeros_like(pull), pull, ctx.bound), None


piecewise_linear_op.register_autograd(_backward, setup_context=_setup_context)
piecewise_linear_backward.register_autograd(_backward_twice, setup_context=_setup_context_twice)


def knots_of(intervals: int, bound: float, device: torch.device) -> Tensor:
    """The k + 1 knots l_0 .. l_k in float64."""
    count = torch.arange(intervals + 1, dtype=torch.float64, device=device)
    return (count - intervals / 2) * (2.0 * bound / intervals)


def tabulate(
    function: Callable[[Tensor], Tensor], intervals: int, bound: float, device: torch.device
) -> Tensor:
    """The values of `function` at the knots, differentiable.

    Against a smooth f the interpolant is off by at most d^2/8 max|f''| in value and d/2 max|f''| in slope,
    inside the bound.
    """
    knots = knots_of(intervals, bound, device)
    return rising_at_first(elementwise(function(knots), knots), bound)


def rising_at_first(values: Tensor, bound: float) -> Tensor:
    """The values with the first far enough below the second that float64 can tell them apart.

    A function that is flat to rounding at -T would have a first slope of 0, or just below; and the score of
    a word masked by a logit of -inf would be 0 times that, NaN.
    """
    still = values.detach()
    rise = still[1] - still[0]
    least = 4.0 * torch.finfo(torch.float64).eps * still[1].abs().clamp(min=bound)
    flat = (rise <= 0.0) & (rise >= -least)  # one that falls by more is not increasing, and shows
    return torch.cat([values[:1] - torch.where(flat, rise + least, 0.0), values[1:]])


def elementwise(f: Any, z: Tensor) -> Tensor:
    """What a user's module returned, if it is one value for each logit, in the dtype of the logits."""
    if not isinstance(f, Tensor) or f.shape != z.shape:
        came = tuple(f.shape) if isinstance(f, Tensor) else type(f).__name__
        raise ValueError(
            f"`function` must be elementwise: for logits of shape {tuple(z.shape)} it returned {came}. Let "
            "its forward return a tensor of the shape it is given."
        )
    if not f.is_floating_point():
        raise TypeError(
            f"`function` must return a floating dtype, got {f.dtype} for logits of {z.dtype}. Compute its "
            "values in the dtype it is given."
        )
    return f.to(z.dtype)


def tabulate_module(module: nn.Module, intervals: int, bound: float, device: torch.device) -> Tensor:
    """As `tabulate`, the module's parameters taken in float64: slopes are differences of close values."""
    widened = lambda t: t.double() if t.is_floating_point() else t
    return tabulate(lambda knots: call_with(module, widened, knots), intervals, bound, device)
