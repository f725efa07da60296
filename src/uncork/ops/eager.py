"""The chunked loss as a plain `autograd.Function`: what runs when nothing is being compiled.

It does what the custom ops do with less overhead per call, and it can take a function known only as a
callable, which is evaluated exactly, by autograd on the chunk.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from uncork.ops import chunked, custom, validate
from uncork.ops.chunked import Needs
from uncork.ops.problem import Problem


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, problem: Problem, reduction: str, needs: Sequence[bool], size: int, backend: str, *tensors
    ):
        validate.values(problem)
        ctx.problem, ctx.reduction, ctx.needs = problem, reduction, needs
        ctx.size, ctx.backend = size, backend
        ctx.save_for_backward(*tensors)
        ctx.gradients = None
        if reduction == "none":
            return chunked.run(problem, None, Needs(), size, custom.PASSES[backend]()).loss_N
        loss, given = custom.loss_and_gradients(problem, reduction, needs, size, backend)
        if any(needs):
            ctx.gradients = given
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
            make = custom.PASSES[ctx.backend]()
            given = custom.gradient_list(
                chunked.run(ctx.problem, upstream, Needs(*ctx.needs), ctx.size, make)
            )
        four = [g if need else None for g, need in zip(given[:4], ctx.needs, strict=False)]
        tensors = given[4:] if ctx.needs[-1] else [None] * len(ctx.problem.form.tensors)
        return (None, None, None, None, None, *four, *tensors)


def loss(problem: Problem, reduction: str, needs: Sequence[bool], size: int, backend: str) -> Tensor:
    """The loss of a problem."""
    four = (problem.latent_NKD, problem.log_prior_NK, problem.weight_VD, problem.bias_V)
    answer = _Loss.apply(problem, reduction, needs, size, backend, *four, *problem.form.tensors)
    assert isinstance(answer, Tensor)
    return answer


def loss_outside_graph(
    problem: Problem, reduction: str, needs: Sequence[bool], size: int, backend: str
) -> Tensor:
    """The same, where torch.compile must break its graph: a custom op cannot take a callable."""
    return loss(problem, reduction, needs, size, backend)


# What torch.compiler.disable sets; that function itself would import the whole compiler, two seconds of it.
vars(loss_outside_graph).update(
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="this function is evaluated by autograd on each chunk; for "
    "torch.compile(fullgraph=True) wrap it in uncork.functions.Tabulated.",
)
