"""f(W h + b) itself, for what needs every word: generation, log-probabilities, a loss of one's own."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from uncork.ops import matmul, validate
from uncork.ops.problem import compute_dtype


def scores(
    input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, function: nn.Module | None
) -> Tensor:
    """f(z) for every word, (..., V): float64 for float64 input, float32 for any other."""
    z = logits(input, linear_weight, linear_bias)
    if function is None:
        return z
    validate.function(function, z.device)
    with torch.autocast(z.device.type, enabled=False):
        return function(z)


def logits(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None) -> Tensor:
    """z = W h + b, (..., V), never below float32."""
    input, linear_weight, linear_bias = autocast_operands(input, linear_weight, linear_bias)
    validate.weights(linear_weight, linear_bias)
    validate.hidden("input", input, linear_weight)
    dtype = compute_dtype(input.dtype)
    with torch.autocast(input.device.type, enabled=False):
        if input.dtype != dtype and input.is_cuda and not torch.is_grad_enabled():
            x_ND = input.reshape(-1, input.shape[-1])
            out_NV = x_ND.new_empty(len(x_ND), len(linear_weight), dtype=dtype)
            matmul.logits(x_ND, linear_weight, linear_bias, out_NV)
            return out_NV.view(*input.shape[:-1], -1)
        bias = None if linear_bias is None else linear_bias.to(dtype)
        return linear(input.to(dtype), linear_weight.to(dtype), bias)


def autocast_operands(hidden: Tensor, linear_weight: Tensor, linear_bias: Tensor | None):
    """The operands as `linear` would see them under torch.autocast."""
    if not isinstance(hidden, Tensor) or not isinstance(linear_weight, Tensor):
        return hidden, linear_weight, linear_bias
    device = hidden.device.type
    if not torch.is_autocast_enabled(device) or hidden.dtype == torch.float64:
        return hidden, linear_weight, linear_bias
    dtype = torch.get_autocast_dtype(device)
    cast = lambda t: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t
    return cast(hidden), cast(linear_weight), cast(linear_bias)
