"""Clipping the gradient of all parameters together, whatever the number of knots."""

import math

import torch
from torch import (
    Tensor,
    _foreach_norm,  # pyright: ignore[reportPrivateImportUsage]
)

from uncork.lm.awd_lstm import LanguageModel
from uncork.lm.slope_unit import interval_ratio


@torch.no_grad()
def gradient_norm(model: LanguageModel) -> Tensor:
    """The norm of all gradients together. Nothing waits for the device.

    The slopes of a PLIF count by the function they make, not by their number (`slope_unit`): otherwise a
    coarse table, whose few slopes have large gradients, would shrink the step of all parameters. At 100,000
    knots on [-20, 20] this is the plain norm.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    norms = list(_foreach_norm([p.grad for p in parameters if p.grad is not None]))
    if model.function is not None:
        shrink = 1.0 / math.sqrt(interval_ratio(model.function))
        slopes = {id(p) for p in model.function.parameters()}
        norms = [n * shrink if id(p) in slopes else n for p, n in zip(parameters, norms, strict=True)]
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_factor(norm: Tensor, limit: float) -> Tensor:
    """What gradients of this norm are multiplied with so that it is at most `limit`, as torch does it."""
    return (limit / (norm + 1e-6)).clamp(max=1.0)
