"""The chunked loss as a plain `autograd.Function`: what runs when nothing is being compiled.

It does what the custom ops do with less overhead per call, and it can take a function known only as a
callable, which is evaluated exactly, by autograd on the chunk.
"""

import sys
from collections.abc import Sequence
from typing import Any

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
            return custom.loss_of_tokens(problem, size, backend)
        loss, outcome = custom.loss_and_gradients(problem, reduction, needs, size, backend)
        if any(needs):
            ctx.gradients = outcome.gradients
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
                upstream = upstream.expand(len(ctx.problem.latent_NKD))
            make = custom.PASSES[ctx.backend]()
            given = chunked.run(ctx.problem, upstream, Needs(*ctx.needs), ctx.size, make).gradients
        tensors = [None] * (4 + len(ctx.problem.form.tensors) - len(given))
        return (None, None, None, None, None, *given, *tensors)


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
    run: Any = loss
    if "torch._dynamo" in sys.modules:  # outside the graph, but not to be compiled piece by piece either
        run = torch.compiler.disable(loss)
    return run(problem, reduction, needs, size, backend)


# What torch.compiler.disable sets; that function itself would import the whole compiler, two seconds of it.
vars(loss_outside_graph).update(
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="this function is evaluated by autograd on each chunk; for "
    "torch.compile(fullgraph=True) wrap it in uncork.functions.Tabulated.",
)
