"""Checks of what users pass in: the argument, the rule, what came, the remedy.

All but `values` and `finite_function` read shapes and dtypes and run anywhere. Those two read the numbers
themselves, on an accelerator, where that would wait for the device, only inside `uncork.detect_nonfinite`.
"""

from collections.abc import Iterable
from itertools import chain
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from uncork.ops import nonfinite
from uncork.ops.problem import Problem


FLOAT32 = torch.finfo(torch.float32)
REDUCTIONS = ("mean", "sum", "none")
# Not float8, which is for storing: a plain matrix product does not take it.
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def tensor(name: str, value: Any) -> Tensor:
    """`value` itself, if it is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` must be a torch.Tensor, got {type(value).__name__}. Convert it with torch.as_tensor()."
        )
    if value.is_nested or value.layout != torch.strided:
        came = "a nested one" if value.is_nested else f"layout {value.layout}"
        raise TypeError(
            f"`{name}` must be a dense tensor, got {came}. Convert it with .to_dense(), or pad a nested one."
        )
    return value


def floating(name: str, value: Any) -> Tensor:
    """`value` itself, if it is a tensor of floating dtype, not below 16 bits."""
    if tensor(name, value).dtype not in FLOATING:
        raise TypeError(
            f"`{name}` must have at least 16 bits and a floating dtype, got {value.dtype}. Convert it, e.g. "
            "with .float()."
        )
    return value


def weights(linear_weight: Any, linear_bias: Any) -> None:
    """`linear_weight` (V, D) and `linear_bias` (V,) or None."""
    if floating("linear_weight", linear_weight).dim() != 2:
        raise ValueError(
            f"`linear_weight` must have shape (words, width), got {tuple(linear_weight.shape)}. Pass the "
            "weight of a linear layer as it is."
        )
    if 0 in linear_weight.shape:
        raise ValueError(
            f"`linear_weight` must have at least one word and one column, got {tuple(linear_weight.shape)}. "
            "Look at the sizes the layer was made with."
        )
    if linear_bias is None:
        return
    words = len(linear_weight)
    if floating("linear_bias", linear_bias).shape != (words,):
        raise ValueError(
            f"`linear_bias` must have shape ({words},), one per row of `linear_weight`, "
            f"got {tuple(linear_bias.shape)}. Pass the bias of the same layer, or None."
        )
    on_device("linear_bias", linear_bias, linear_weight.device)


def hidden(name: str, value: Any, linear_weight: Tensor) -> None:
    """`value` (..., D) with the width, dtype and device of `linear_weight`."""
    width = linear_weight.shape[1]
    if floating(name, value).dim() < 1 or value.shape[-1] != width:
        raise ValueError(
            f"`{name}` must end in the width of `linear_weight`, {width}, got shape "
            f"{tuple(value.shape)}. Project it first, or pass the weight it was made for."
        )
    same(name, value, "linear_weight", linear_weight)


def same(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """The two agree in dtype and device."""
    if hasattr(value, "full_tensor") != hasattr(other, "full_tensor"):  # only a DTensor has it
        raise TypeError(
            f"`{name}` and `{other_name}` must both be plain tensors, got one sharded over processes. "
            "Gather it with .full_tensor(), or let fully_shard(head) do so."
        )
    if value.dtype != other.dtype:
        raise TypeError(
            f"`{name}` and `{other_name}` must have one dtype, got {value.dtype} and {other.dtype}. "
            f"Convert one of them, or use torch.autocast."
        )
    if value.device != other.device:
        raise ValueError(
            f"`{name}` and `{other_name}` must be on one device, got {value.device} and "
            f"{other.device}. {_move('one of them', value.device, other.device)}"
        )


def on_device(name: str, value: Tensor, device: torch.device) -> None:
    """`value` is where the weight is."""
    if value.device != device:
        raise ValueError(
            f"`{name}` must be on {device} as `linear_weight` is, got {value.device}. "
            f"{_move('it', value.device, device)}"
        )


def _move(what: str, *devices: torch.device) -> str:
    if any(device.type == "meta" for device in devices):  # from which nothing can be moved
        return (
            "What is on meta has no values: make a tensor anew, and give a module its own with "
            ".to_empty(device=...) and reset_parameters()."
        )
    return f"Move {what} with .to()."


def target(value: Any, leading: tuple[int, ...], words: int, device: torch.device) -> None:
    """Integer (...) or floating (..., V), without gradient."""
    tensor("target", value)
    if value.dtype in (torch.bool, torch.uint64) or value.is_complex():  # 2^64 - 100 would become -100
        raise TypeError(
            f"`target` must hold word indices (an integer dtype) or distributions (a floating one), "
            f"got {value.dtype}. Convert it with .long() or .float()."
        )
    dense = value.is_floating_point()
    if dense:
        floating("target", value)
    expected = (*leading, words) if dense else leading
    if tuple(value.shape) != expected:
        kind = "distributions over words" if dense else "word indices"
        remedy = "Its leading dimensions are those of the input: reshape one of the two."
        if tuple(value.shape) == (leading if dense else (*leading, words)):
            remedy = (
                "Pass word indices as target.long()." if dense else "Pass distributions as target.float()."
            )
        raise ValueError(f"`target` of {kind} must have shape {expected}, got {tuple(value.shape)}. {remedy}")
    if value.requires_grad:
        raise ValueError("`target` must not require gradients: none is computed. Pass target.detach().")
    on_device("target", value, device)


def class_weight(value: Any, words: int, device: torch.device) -> None:
    """Class weights (V,) or None."""
    if value is None:
        return
    if floating("weight", value).shape != (words,):
        raise ValueError(
            f"`weight` (class weights) must have shape ({words},), got {tuple(value.shape)}. The matrix "
            "of the linear layer goes into `linear_weight`."
        )
    if value.requires_grad:
        raise ValueError("`weight` must not require gradients: none is computed. Pass weight.detach().")
    on_device("weight", value, device)


def options(reduction: Any, ignore_index: Any, label_smoothing: Any, z_loss: Any) -> None:
    """The scalar keywords."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"`reduction` must be one of {', '.join(REDUCTIONS)}, got {reduction!r}. For another, reduce "
            'what "none" gives.'
        )
    if not isinstance(ignore_index, Integral) or isinstance(ignore_index, bool):
        raise TypeError(f"`ignore_index` must be an int, got {ignore_index!r}. To ignore none, leave it out.")
    if not -(2**63) <= int(ignore_index) < 2**63:
        raise ValueError(
            f"`ignore_index` must be a 64-bit integer, got {ignore_index}. Choose one that targets can have."
        )
    number("label_smoothing", label_smoothing)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(
            f"`label_smoothing` must lie in [0, 1], got {label_smoothing}. It is a probability; "
            "0 smooths nothing."
        )
    number("z_loss", z_loss)
    if not 0.0 <= z_loss <= FLOAT32.max:
        raise ValueError(f"`z_loss` must be finite and at least 0, got {z_loss}. 0 leaves it out.")


def ignorable(target: Tensor, ignore_index: int) -> None:
    """Distributions name no word that could be ignored; torch refuses them too."""
    if target.is_floating_point() and ignore_index >= 0:
        raise ValueError(
            f"`ignore_index` must be negative (unused) for a `target` of distributions, got {ignore_index}. "
            "Leave those tokens out, or give word indices."
        )


def number(name: str, value: Any) -> None:
    """A real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, got {value!r}. Convert it with float().")


def function(value: Any, device: torch.device) -> None:
    """None, or a module on the device of the input."""
    if value is None:
        return
    if not isinstance(value, nn.Module):
        came = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(
            "`function` must be an increasing nn.Module such as uncork.functions.PLIF(), or None, got "
            f"{came}. Make an instance of a class; give a formula a module's forward."
        )
    for name, held in chain(value.named_parameters(), value.named_buffers()):
        if hasattr(held, "full_tensor"):  # a DTensor; its class may not be importable
            raise TypeError(
                f"`function` must have whole parameters, but its {name} is sharded over processes. Shard the "
                "head as one unit, e.g. fully_shard(head), and not the function by itself."
            )
        if held.device != device:
            raise ValueError(
                f"`function` must be on {device} as the input is, but its {name} is on "
                f"{held.device}. {_move('it', held.device, device)}"
            )


def finite_parameters(function: nn.Module | None, device: torch.device) -> None:
    """Those of a function, where values may be read. A table may hide them: softplus of -inf is 0."""
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if function is not None and not transformed and (device.type == "cpu" or nonfinite.detecting()):
        finite_function(p for p in function.parameters() if not isinstance(p, FakeTensor))


def finite_function(tensors: Iterable[Tensor]) -> None:
    """The parameters of a function, or its table."""
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise ValueError(
            "`function` must have finite parameters and values, got NaN or infinity among them. Load an "
            "earlier state, start again with a smaller learning rate, or tabulate over a smaller bound."
        )


def values(problem: Problem) -> None:
    """Finite functions, targets in range, distributions that are ones; where: see the module's head."""
    if problem.target.device.type != "cpu" and not nonfinite.detecting():
        return
    if isinstance(problem.target, FakeTensor):  # which has none
        return
    form = problem.form
    # A table is in float64, and read in what the loss computes in.
    finite_function(t.to(problem.dtype) if form.kind == "table" else t for t in form.tensors)
    given = problem.target
    if given.numel() == 0:
        return
    if problem.dense:
        _distributions(given)
        return
    words = len(problem.weight_VD)
    low, high = given.aminmax()
    if low >= 0 and high < words:
        return
    outside = ((given < 0) | (given >= words)) & (given != problem.ignore_index)
    if outside.any():
        position = int(outside.nonzero()[0])
        raise ValueError(
            f"`target` must lie in [0, {words}) or equal ignore_index={problem.ignore_index}, got "
            f"{int(given[position])} for token {position}. Check the vocabulary, or pass that "
            "value as `ignore_index`."
        )


def _distributions(given: Tensor) -> None:
    total = given.sum(-1, dtype=torch.promote_types(given.dtype, torch.float32))
    # Written so that NaN fails too.
    if not bool(given.amin() >= 0):
        raise ValueError(
            f"`target` distributions must not be negative or NaN, got {float(given.amin())}. Pass "
            "probabilities, not logits: e.g. logits.softmax(-1)."
        )
    tolerance = 1e-3 if given.dtype in (torch.float32, torch.float64) else 3e-2
    if not bool(((total - 1).abs() <= tolerance).all()):
        worst = float(total[(total - 1).abs().argmax()])
        raise ValueError(
            f"`target` distributions must sum to 1 (within {tolerance}), got a sum of {worst:.6g}. "
            "Divide by target.sum(-1, keepdim=True)."
        )
