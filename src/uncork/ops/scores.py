"""f(W h + b) itself, for what needs every word: generation, log-probabilities, a loss of one's own."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from uncork.ops import autocast, matmul, nonfinite, validate
from uncork.ops.problem import compute_dtype


def scores(
    input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, function: nn.Module | None
) -> Tensor:
    """f(z) for every word, (..., V): float64 for float64 input, float32 for any other."""
    z = logits(input, linear_weight, linear_bias)
    if function is None:
        return z
    validate.function(function, z.device)
    with autocast.off(z.device.type):
        return function(z)


def logits(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None) -> Tensor:
    """z = W h + b, (..., V), never below float32."""
    input, linear_weight, linear_bias = autocast.operands(input, linear_weight, linear_bias)
    validate.weights(linear_weight, linear_bias)
    validate.hidden("input", input, linear_weight)
    dtype = compute_dtype(input.dtype)
    with autocast.off(input.device.type):
        if input.dtype != dtype and input.is_cuda and not torch.is_grad_enabled():
            x_ND = input.reshape(-1, input.shape[-1])
            out_NV = x_ND.new_empty(len(x_ND), len(linear_weight), dtype=dtype)
            matmul.logits(x_ND, linear_weight, linear_bias, out_NV)
            z = out_NV.view(*input.shape[:-1], -1)
        else:
            bias = None if linear_bias is None else linear_bias.to(dtype)
            z = linear(input.to(dtype), linear_weight.to(dtype), bias)
    nonfinite.check(z.reshape(-1, 1, len(linear_weight)))
    return z
