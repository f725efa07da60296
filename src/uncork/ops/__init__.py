"""Losses of the output layer as functions of tensors. No modules here: see `uncork.heads`."""

from torch import Tensor, nn

from uncork.ops import autocast, dispatch, validate
from uncork.ops.chunked import chunk_bytes as chunk_bytes
from uncork.ops.nonfinite import detect_nonfinite as detect_nonfinite
from uncork.ops.pointwise import as_pointwise, exactly, tabulated
from uncork.ops.problem import Problem, compute_dtype
from uncork.ops.scores import mixture_operands, mixture_scores as mixture_scores, scores as scores


__all__ = [
    "chunk_bytes",
    "detect_nonfinite",
    "linear_cross_entropy",
    "mixture_cross_entropy",
    "mixture_scores",
    "scores",
]


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    function: nn.Module | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """`cross_entropy(function(linear(input, linear_weight, linear_bias)), target)`, without the logits.

    Arguments:
        input: hidden states (..., D).
        linear_weight: (V, D), of the dtype of `input`.
        target: word indices (...), or distributions over words (..., V) of floating dtype.
        linear_bias: (V,) or None.
        function: an increasing elementwise module such as `uncork.functions.PLIF()`; None is softmax.
        weight: class weights (V,); "mean" then divides by the sum of the targets' weights, as torch does.
        reduction: "mean" over tokens not ignored, "sum", or "none".
        ignore_index: targets with this value add nothing. Not for distributions, as in torch.
        label_smoothing: mass moved from the target to the uniform distribution, in [0, 1].
        z_loss: factor of logsumexp(f(z))^2, added to the loss of each token.
        backend: "auto" (triton on CUDA, chunked elsewhere), "triton", "chunked" or "reference".

    Returns:
        The loss, float64 for float64 input and float32 otherwise: a scalar, or (...) for "none".
    """
    input, linear_weight, linear_bias = autocast.operands(input, linear_weight, linear_bias)
    validate.weights(linear_weight, linear_bias)
    validate.hidden("input", input, linear_weight)
    return _loss(
        input, 1, None, linear_weight, linear_bias, target, tuple(input.shape[:-1]),
        function, weight, reduction, ignore_index, label_smoothing, z_loss, backend,
    )  # fmt: skip


def mixture_cross_entropy(
    latent: Tensor,
    log_prior: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    function: nn.Module | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """-log sum_k exp(log_prior_k) softmax(function(linear(latent_k, linear_weight, linear_bias)))_target.

    Arguments:
        latent: K vectors per token (..., K, D).
        log_prior: log of the mixture weights (..., K), normalised: a log_softmax.
        z_loss: factor of the mean over components of logsumexp(f(z_k))^2.

    The other arguments, and what is returned, are those of `linear_cross_entropy`.
    """
    latent, linear_weight, linear_bias = mixture_operands(latent, log_prior, linear_weight, linear_bias)
    components = latent.shape[-2]
    if log_prior.dim() != 2:
        log_prior = log_prior.reshape(-1, components)
    return _loss(
        latent, components, log_prior, linear_weight, linear_bias, target, tuple(latent.shape[:-2]),
        function, weight, reduction, ignore_index, label_smoothing, z_loss, backend,
    )  # fmt: skip


def _loss(
    given: Tensor, components: int, log_prior_NK: Tensor | None, linear_weight: Tensor,
    linear_bias: Tensor | None, target: Tensor, leading: tuple[int, ...], function: nn.Module | None,
    weight: Tensor | None, reduction: str, ignore_index: int, label_smoothing: float, z_loss: float,
    backend: str,
) -> Tensor:  # fmt: skip
    """Check what is common, flatten, dispatch, restore the leading shape."""
    words, device = linear_weight.shape[0], linear_weight.device
    validate.target(target, leading, words, device)
    validate.class_weight(weight, words, device)
    validate.options(reduction, ignore_index, label_smoothing, z_loss)
    validate.ignorable(target, ignore_index)
    validate.function(function, device)
    validate.finite_parameters(function, device)
    asked, backend = backend, dispatch.resolve(backend, device)
    flat = (words,) if target.is_floating_point() else ()
    if target.dim() != 1 + len(flat):
        target = target.reshape(-1, *flat)
    with autocast.off(device.type):
        if backend == "reference":
            form = exactly(function)
        else:
            form = as_pointwise(function, compute_dtype(linear_weight.dtype), device)
        if backend == "triton" and form.kind == "callable":
            # A kernel can only take a user's module as a table; nobody gets one without asking.
            if asked == "auto":
                backend = "chunked"
            else:
                form = tabulated(function, device)
        problem = Problem(
            latent_NKD=given.reshape(-1, components, given.shape[-1]),
            log_prior_NK=log_prior_NK,
            weight_VD=linear_weight,
            bias_V=linear_bias,
            target=target if target.is_floating_point() else target.long(),
            class_weight_V=weight,
            form=form,
            ignore_index=int(ignore_index),
            label_smoothing=float(label_smoothing),
            z_loss=float(z_loss),
            given=given,
        )
        loss = dispatch.loss(problem, reduction, backend)
    return loss.reshape(leading) if reduction == "none" else loss
