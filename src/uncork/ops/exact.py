"""The chunked loss for a function known only as a callable: evaluated exactly, by autograd on the chunk.

A custom op takes tensors only, so this is a plain `autograd.Function`; torch.compile breaks its graph here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from uncork.ops import chunked, custom, validate
from uncork.ops.chunked import Needs
from uncork.ops.problem import Problem


class _ExactLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, problem: Problem, reduction: str, needs: Sequence[bool], size: int, *tensors):
        validate.values(problem)
        ctx.problem, ctx.reduction, ctx.needs, ctx.size = problem, reduction, needs, size
        ctx.save_for_backward(*tensors)
        ctx.gradients = None
        if reduction == "none":
            return chunked.run(problem, None, Needs(), size).loss_N
        loss, ctx.gradients = custom.loss_and_gradients(problem, reduction, needs, size, "chunked")
        return loss

    @staticmethod
    def backward(ctx, *grads):
        (upstream,) = grads
        custom.refuse_double_backward(upstream)
        given, ctx.gradients = ctx.gradients, None
        if given is not None:
            given = custom.scaled_in_place(given, upstream)
        else:
            _ = ctx.saved_tensors  # raises if one of them has been modified since
            if ctx.reduction != "none":
                upstream = custom.row_scale(ctx.problem, ctx.reduction) * upstream
            outcome = chunked.run(ctx.problem, upstream, Needs(*ctx.needs), ctx.size)
            given = custom.gradient_list(outcome)
        four = [g if need else None for g, need in zip(given[:4], ctx.needs, strict=False)]
        tensors = given[4:] if ctx.needs[-1] else [None] * len(ctx.problem.form.tensors)
        return (None, None, None, None, *four, *tensors)


@torch.compiler.disable(
    reason="this function is evaluated by autograd on each chunk; for torch.compile(fullgraph=True) "
    "wrap it in uncork.functions.Tabulated."
)
def loss(problem: Problem, reduction: str, needs: Sequence[bool], size: int) -> Tensor:
    """The loss of a problem whose function is a callable."""
    four = (problem.latent_NKD, problem.log_prior_NK, problem.weight_VD, problem.bias_V)
    answer = _ExactLoss.apply(problem, reduction, needs, size, *four, *problem.form.tensors)
    assert isinstance(answer, Tensor)
    return answer
