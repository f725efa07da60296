"""The chunked loss as a plain `autograd.Function`: what runs when nothing is being compiled.

It does what the custom ops do with less overhead per call, and it can take a function known only as a
callable, which is evaluated exactly, by autograd on the chunk.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uncork.ops import chunked, custom, validate
from uncork.ops.chunked import Needs
from uncork.ops.pointwise import Pointwise
from uncork.ops.problem import Problem


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, problem: Problem, reduction: str, needs: Sequence[bool], size: int, backend: str, *tensors
    ):
        validate.values(problem)
        # All tensors are saved by autograd, which frees them after the backward pass and notices when one
        # has been written to; of the problem only the rest is kept.
        ctx.form, ctx.options = problem.form, (problem.ignore_index, problem.label_smoothing, problem.z_loss)
        if problem.form.kind != "callable":  # whose parameters belong to the call
            ctx.form = Pointwise(problem.form.kind, problem.form.constants)
        ctx.shape_NKD = problem.latent_NKD.shape
        ctx.reduction, ctx.needs, ctx.size, ctx.backend = reduction, needs, size, backend
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
            problem = _saved_problem(ctx)
            if ctx.reduction != "none":
                upstream = custom.row_scale(problem, ctx.reduction) * upstream
                upstream = upstream.expand(len(problem.latent_NKD))
            make = custom.PASSES[ctx.backend]()
            given = chunked.run(problem, upstream, Needs(*ctx.needs), ctx.size, make).gradients
        four, function = given[:4], given[4:]
        missing = len(ctx.needs_input_grad) - OPTIONS - OPERANDS - len(function)
        return (*[None] * OPTIONS, *four, None, None, *function, *[None] * missing)


# Arguments of `_Loss.forward`: options, then the operands of a problem, of which the target and the class
# weights have no gradient, then the function's tensors.
OPTIONS, OPERANDS = 5, 6


def _saved_problem(ctx) -> Problem:
    """The problem again; raises if one of its tensors has been written to since the forward pass."""
    latent, log_prior, weight, bias, target, class_weight, *tensors = ctx.saved_tensors
    form = ctx.form if ctx.form.kind == "callable" else replace(ctx.form, tensors=tuple(tensors))
    shared = (log_prior, weight, bias, target, class_weight, form, *ctx.options)
    return Problem(latent.reshape(ctx.shape_NKD), *shared, given=latent)


def loss(problem: Problem, reduction: str, needs: Sequence[bool], size: int, backend: str) -> Tensor:
    """The loss of a problem."""
    # As they were given: to a view of them, autograd would have to take a step back.
    four = (problem.given_latent, problem.log_prior_NK, problem.weight_VD, problem.bias_V)
    tensors = (*four, problem.target, problem.class_weight_V, *problem.form.tensors)
    answer = _Loss.apply(problem, reduction, needs, size, backend, *tensors)
    assert isinstance(answer, Tensor)
    return answer


def loss_outside_graph(problem: Problem, reduction: str, needs: Sequence[bool], size: int) -> Tensor:
    """The same, where torch.compile must break its graph: no op or kernel can take a callable."""
    run: Any = loss
    if "torch._dynamo" in sys.modules:  # outside the graph, but not to be compiled piece by piece either
        run = torch.compiler.disable(loss)
    return run(problem, reduction, needs, size, "chunked")


# What torch.compiler.disable sets; that function itself would import the whole compiler, two seconds of it.
vars(loss_outside_graph).update(
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="this function is evaluated by autograd on each chunk; for "
    "torch.compile(fullgraph=True) wrap it in uncork.functions.Tabulated.",
)
