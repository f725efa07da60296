"""Increasing functions in the form an op takes: a kind, constants, tensors. No modules here.

`value` and `vjp` are the definition of each kind in plain torch. Kernels carry the same kinds; what has
no closed form there comes as a table, and what is not known here at all as a callable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from uncork.ops import autocast, table
from uncork.ops.swapped import call_with


@dataclass(frozen=True)
class Pointwise:
    """One increasing function: `kind` names the formula, the rest are its parameters.

    kind                    constants             tensors
    identity
    scale                                         (a,)            a z
    sigsoftmax              (shift, steepness)                    k(z-c)+c-(k-1)softplus(z-c)
    softcap                 (cap, -)                               c tanh(z/c)
    table                   (bound, -)            (knot_values,)  see `uncork.ops.table`
    callable                                      parameters      call(z), differentiated by autograd
    """

    kind: str
    constants: tuple[float, float] = (0.0, 0.0)
    tensors: tuple[Tensor, ...] = ()
    call: Callable[[Tensor], Tensor] | None = None


IDENTITY = Pointwise("identity")


def as_pointwise(function: Any, dtype: torch.dtype, device: torch.device) -> Pointwise:
    """The form of a function module, its factors in `dtype`; a user's module is a callable."""
    # Of the class: a user's module may well have a layer of that name.
    known = hasattr(type(function), "pointwise") and not _changed(function)
    form = function.pointwise(dtype, device) if known else None
    return exactly(function) if form is None else form


def _changed(function: Any) -> bool:
    """Whether a call of the module gives what its class does not say: hooks, or a `forward` of its own."""
    return bool(function._forward_hooks or function._forward_pre_hooks or "forward" in vars(function))


def exactly(function: Any) -> Pointwise:
    """The module itself, never a table: what the reference evaluates."""
    if function is None:
        return IDENTITY
    return Pointwise("callable", tensors=tuple(function.parameters()), call=function)


def tabulated(function: Any, device: torch.device) -> Pointwise:
    """A user's module as a table of 100,000 intervals of [-20, 20]: what a kernel can take."""
    values = table.tabulate_module(function, 100_000, 20.0, device)
    return Pointwise("table", (20.0, 0.0), (values,))


def softplus(z: Tensor) -> Tensor:
    """log(1 + exp z); torch's own is linear from 20 on, which is 2e-9 off in float64."""
    return functional.softplus(z, threshold=40.0)


def generalized_sigsoftmax(z: Tensor, shift: float, steepness: float) -> Tensor:
    """k(z-c) + c - (k-1) softplus(z-c); (c, k) = (0, 2) is Sigsoftmax."""
    moved = z - shift
    above = moved > 0
    # softplus(x) = x + softplus(-x): taken of what is not positive, nothing large cancels. Without abs, which
    # has a slope of 0 at 0.
    rest = softplus(torch.where(above, -moved, moved))
    return torch.where(above, z, shift + steepness * moved) - (steepness - 1.0) * rest


def generalized_sigsoftmax_slope(z: Tensor, shift: float, steepness: float) -> Tensor:
    """k - (k-1) sigmoid(z-c), as a sum from the end with the lower slope: nothing cancels."""
    if steepness < 1.0:
        return steepness + (1.0 - steepness) * torch.sigmoid(z - shift)
    return 1.0 + (steepness - 1.0) * torch.sigmoid(shift - z)


def softcap(z: Tensor, cap: float) -> Tensor:
    """c tanh(z/c)."""
    return cap * torch.tanh(z / cap)


def softcap_slope(z: Tensor, cap: float) -> Tensor:
    """1 - tanh(z/c)^2, from the exponential that is left of it far out: there the difference would cancel."""
    e = torch.exp(-2.0 * (z / cap).abs())
    return 4.0 * e / (1.0 + e).square()


def scaled(z: Tensor, a: Tensor) -> Tensor:
    """a z. To the gradient of a, a word masked by z = -inf adds nothing: 0 times -inf would be NaN."""
    finite = z.masked_fill(z.isinf(), 0.0)
    return finite * a + (z - finite) * a.detach()


def value(form: Pointwise, z: Tensor) -> Tensor:
    """f(z), differentiable by autograd."""
    match form.kind:
        case "identity":
            return z
        case "scale":
            return scaled(z, form.tensors[0])
        case "sigsoftmax":
            return generalized_sigsoftmax(z, *form.constants)
        case "softcap":
            return softcap(z, form.constants[0])
        case "table":
            return table.piecewise_linear(z, form.tensors[0], form.constants[0])
        case "callable":
            return table.elementwise(called(form, z), z)
    raise AssertionError(f"unknown kind {form.kind!r}")


def called(form: Pointwise, z: Tensor) -> Tensor:
    """A user's module with the parameters it had when the loss was called.

    A backward pass that calls it again may find others there: `torch.func.functional_call` puts them back.
    """
    module: Any = form.call
    given = dict(zip(module.parameters(), form.tensors, strict=True))
    return call_with(module, lambda own: given.get(own, own), z)


def value_and_vjp(
    form: Pointwise, z: Tensor, tensors_need_grad: bool
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, list[Tensor]]]]:
    """f(z), and a function g -> (g f'(z), gradients of the form's tensors).

    Both run once per chunk and share what they can; g may be overwritten.
    """
    match form.kind:
        case "identity":
            return z, lambda g: (g, [])
        case "scale":
            a = form.tensors[0]

            def scale_vjp(g: Tensor) -> tuple[Tensor, list[Tensor]]:
                dtensors = []
                if tensors_need_grad:  # before g is overwritten; a masked word has no g, and 0 inf is NaN
                    dtensors.append((g * z).masked_fill_(g == 0.0, 0.0).sum(dtype=torch.float64))
                return g.mul_(a), dtensors

            return z * a, scale_vjp
        case "sigsoftmax":
            slope = generalized_sigsoftmax_slope
            return value(form, z), lambda g: (g * slope(z, *form.constants), [])
        case "softcap":
            return value(form, z), lambda g: (g * softcap_slope(z, form.constants[0]), [])
        case "table":
            return _table_value_and_vjp(form, z, tensors_need_grad)
        case "callable":
            return _callable_value_and_vjp(form, z, tensors_need_grad)
    raise AssertionError(f"unknown kind {form.kind!r}")


def _table_value_and_vjp(form: Pointwise, z: Tensor, tensors_need_grad: bool):
    bound = form.constants[0]
    values, slopes = table.values_and_slopes(form.tensors[0], bound, z.dtype)
    index, offset = table.locate(z, values.numel(), bound)
    slope = table.look_up(slopes, index)

    def vjp(g: Tensor) -> tuple[Tensor, list[Tensor]]:
        dtensors = []
        if tensors_need_grad:
            sums = table.interval_sums(index, offset, g, values.numel())
            dtensors.append(table.knot_gradient(*sums, bound))
        return g.mul_(slope), dtensors

    return table.look_up(values, index).addcmul_(slope, offset), vjp


def _callable_value_and_vjp(form: Pointwise, z: Tensor, tensors_need_grad: bool):
    parameters = [t for t in form.tensors if t.requires_grad] if tensors_need_grad else []
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        # Autocast would round the logits to bfloat16 inside a user's matmul.
        with autocast.off(z.device.type):
            # A copy, because a module may work in place, and a leaf may not be written to.
            f = table.elementwise(called(form, leaf.clone()), z)
    if not f.requires_grad:
        raise ValueError(
            "`function` must be differentiable, got a module whose values have no gradient. Compute them "
            "from the logits by differentiable operations, outside of torch.no_grad()."
        )
    _refuse_outsiders(f, [leaf, *form.tensors])

    def vjp(g: Tensor) -> tuple[Tensor, list[Tensor]]:
        dz, *given = torch.autograd.grad(f, [leaf, *parameters], g, allow_unused=True)
        grads = iter(given)
        answer = []
        for t in form.tensors if tensors_need_grad else ():
            grad = next(grads) if t.requires_grad else None
            answer.append(torch.zeros_like(t) if grad is None else grad)
        return torch.zeros_like(z) if dz is None else dz, answer

    return f.detach(), vjp


def _refuse_outsiders(f: Tensor, known: list[Tensor]) -> None:
    """A tensor that a module uses, and does not hold as a parameter, would silently get no gradient."""
    # What a parameter is computed from, as `torch.func.functional_call` allows, gets its gradient from it.
    seen, waiting = {each.grad_fn for each in known if each.grad_fn is not None}, [f.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(before for before, _ in node.next_functions)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not any(leaf is each for each in known):
            raise ValueError(
                "`function` must hold what it is to learn as parameters, got a module that uses a tensor of "
                f"shape {tuple(leaf.shape)} which requires gradients and is none of them. Make it an "
                'nn.Parameter of the module; or use backend="reference", or uncork.functions.Tabulated.'
            )
