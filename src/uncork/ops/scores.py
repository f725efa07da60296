"""Scores themselves, for what needs every word: generation, log-probabilities, a loss of one's own."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from uncork.ops import autocast, matmul, nonfinite, table, validate
from uncork.ops.problem import compute_dtype


def scores(
    input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, function: nn.Module | None
) -> Tensor:
    """f(W h + b) for every word, (..., V): float64 for float64 input, float32 for any other."""
    input, linear_weight, linear_bias = autocast.operands(input, linear_weight, linear_bias)
    validate.weights(linear_weight, linear_bias)
    validate.hidden("input", input, linear_weight)
    return _scores(input, linear_weight, linear_bias, function, components=1)


def mixture_scores(
    latent: Tensor,
    log_prior: Tensor,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    function: nn.Module | None,
) -> Tensor:
    """log sum_k exp(log_prior_k) softmax(f(W latent_k + b)) for every word, (..., V); dtypes as for `scores`.

    The arguments are those of `mixture_cross_entropy`.
    """
    latent, linear_weight, linear_bias = mixture_operands(latent, log_prior, linear_weight, linear_bias)
    components = latent.shape[-2]
    log_p = _scores(latent, linear_weight, linear_bias, function, components).log_softmax(-1)
    log_p = log_p + log_prior.to(log_p.dtype)[..., None]
    return over_components(log_p)


def mixture_operands(
    latent: Tensor, log_prior: Tensor, linear_weight: Tensor, linear_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`latent`, `linear_weight` and `linear_bias` as autocast has them; all four are checked."""
    latent, linear_weight, linear_bias = autocast.operands(latent, linear_weight, linear_bias)
    validate.weights(linear_weight, linear_bias)
    validate.hidden("latent", latent, linear_weight)
    if latent.dim() < 2:
        raise ValueError(
            "`latent` must have shape (..., components, width), "
            f"got {tuple(latent.shape)}. For one component use linear_cross_entropy."
        )
    if validate.floating("log_prior", log_prior).shape != latent.shape[:-1]:
        raise ValueError(
            f"`log_prior` must have the leading shape of `latent`, {tuple(latent.shape[:-1])}, got "
            f"{tuple(log_prior.shape)}. Pass the log_softmax over components of each token."
        )
    validate.on_device("log_prior", log_prior, linear_weight.device)
    if latent.shape[-2] < 1:
        raise ValueError(
            "`latent` must have at least one component, got 0. "
            "For one vector per token use linear_cross_entropy."
        )
    return latent, linear_weight, linear_bias


def over_components(log_p: Tensor) -> Tensor:
    """logsumexp over components, (..., K, V) to (..., V), as torch computes it.

    A word masked by -inf in all of them has a gradient of 0, where torch's own would be NaN.
    """
    if log_p.shape[-2] == 1:
        return log_p[..., 0, :]
    top = log_p.detach().amax(-2, keepdim=True)
    top = top.masked_fill(top.isinf(), 0.0)
    total = (log_p - top).exp_().sum(-2)  # in place: one tensor of that size less
    masked = total == 0.0
    return total.masked_fill(masked, 1.0).log().masked_fill(masked, -torch.inf) + top[..., 0, :]


def _scores(
    input: Tensor,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    function: nn.Module | None,
    components: int,
) -> Tensor:
    """f(W h + b) of operands that have been checked; each `components` rows are one token."""
    z = _logits(input, linear_weight, linear_bias)
    nonfinite.check(z.reshape(-1, components, len(linear_weight)))
    if function is None:
        return z
    validate.function(function, z.device)
    validate.finite_parameters(function, z.device)
    with autocast.off(z.device.type):
        return table.elementwise(function(z), z)


def _logits(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None) -> Tensor:
    """z = W h + b, (..., V), never below float32."""
    dtype = compute_dtype(input.dtype)
    with autocast.off(input.device.type):
        if input.dtype != dtype and input.is_cuda and not torch.is_grad_enabled():
            x_ND = input.reshape(-1, input.shape[-1])
            out_NV = x_ND.new_empty(len(x_ND), len(linear_weight), dtype=dtype)
            matmul.logits(x_ND, linear_weight, linear_bias, out_NV)
            return out_NV.view(*input.shape[:-1], -1)
        bias = None if linear_bias is None else linear_bias.to(dtype)
        return linear(input.to(dtype), linear_weight.to(dtype), bias)
