"""The chunked loss as torch custom ops, so that autograd, torch.compile and export see one opaque call.

`reduced_loss` writes gradients during the forward pass ("mean" and "sum"); `token_losses` cannot know the
gradient of each token's loss beforehand and computes them in the backward pass by `gradients`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from uncork.ops import chunked, triton, validate
from uncork.ops.chunked import Needs, Outcome
from uncork.ops.pointwise import Pointwise
from uncork.ops.problem import Problem, compute_dtype


# What all three ops take first: the five arguments a gradient may be asked for, then the rest of a `Problem`.
SHARED = (
    "Tensor latent, Tensor? log_prior, Tensor weight, Tensor? bias, Tensor[] tensors, "
    "Tensor target, Tensor? class_weight, str kind, float[] constants, "
    "int ignore_index, float label_smoothing, float z_loss"
)
NUM_DIFFERENTIABLE, NUM_TENSORS, NUM_SHARED = 5, 7, 12
# Tensors with values; a fake or wrapped one, as tracing uses, needs the custom op.
PLAIN = (Tensor, nn.Parameter)


def _triton_pass() -> chunked.MakePass:
    from uncork.ops.triton.chunk_pass import make_pass

    return make_pass


# What the chunk loop does with a chunk of logits, by backend; Triton is imported when asked for.
PASSES: dict[str, Callable[[], chunked.MakePass]] = {
    "chunked": lambda: chunked.make_pass,
    "triton": _triton_pass,
}


def is_plain(x: Tensor) -> bool:
    """Whether a tensor has values, and nothing is being compiled."""
    return type(x) in PLAIN and not torch.compiler.is_compiling()


def flattened(problem: Problem) -> tuple[Any, ...]:
    """A problem as the arguments named in `SHARED`."""
    form = problem.form
    return (
        problem.latent_NKD,
        problem.log_prior_NK,
        problem.weight_VD,
        problem.bias_V,
        list(form.tensors),
        problem.target,
        problem.class_weight_V,
        form.kind,
        list(form.constants),
        problem.ignore_index,
        problem.label_smoothing,
        problem.z_loss,
    )


def _problem(latent, log_prior, weight, bias, tensors, target, class_weight, kind, constants, *options):
    form = Pointwise(kind, (constants[0], constants[1]), tuple(tensors))
    return Problem(latent, log_prior, weight, bias, target, class_weight, form, *options)


def loss_and_gradients(
    problem: Problem, reduction: str, needs: Sequence[bool], size: int, backend: str
) -> tuple[Tensor, Outcome]:
    """The reduced loss, and its gradients."""
    scale = row_scale(problem, reduction)
    scale_N = scale.expand(problem.latent_NKD.shape[0])
    outcome = chunked.run(problem, scale_N, Needs(*needs), size, PASSES[backend]())
    assert outcome.loss_N is not None
    # An ignored token's loss is 0, and 0 * (1/0) is the NaN torch gives when all are ignored.
    return outcome.loss_N.sum() * scale, outcome


def loss_of_tokens(problem: Problem, size: int, backend: str) -> Tensor:
    """The loss of each token alone."""
    loss_N = chunked.run(problem, None, Needs(), size, PASSES[backend]()).loss_N
    assert loss_N is not None
    return loss_N


def row_scale(problem: Problem, reduction: str) -> Tensor:
    """The derivative of the reduced loss by any token's loss."""
    if reduction == "mean":
        return problem.denominator().reciprocal()
    return torch.ones((), dtype=problem.dtype, device=problem.latent_NKD.device)


def gradient_list(outcome: Outcome) -> list[Tensor]:
    """Gradients in the order of the arguments; an empty tensor where none was asked: an op knows no None."""
    assert outcome.loss_N is not None
    return [outcome.loss_N.new_empty(0) if g is None else g for g in outcome.gradients]


def _fake_gradients(arguments: Sequence[Any], needs: Sequence[bool]) -> list[Tensor]:
    *four, tensors = arguments[:NUM_DIFFERENTIABLE]
    none = lambda: four[0].new_empty(0, dtype=compute_dtype(four[0].dtype))
    given = [
        none() if t is None or not need else t.new_empty(t.shape)
        for t, need in zip(four, needs[:4], strict=True)
    ]
    return given + ([t.new_empty(t.shape) for t in tensors] if needs[-1] else [])


@torch.library.custom_op(
    "uncork::reduced_loss",
    mutates_args=(),
    schema=f"({SHARED}, str reduction, bool[] needs, int size, str backend) -> Tensor[]",
)
def reduced_loss(*arguments):
    """[loss, gradients of latent, log_prior, weight, bias, tensors...]."""
    problem = _problem(*arguments[:NUM_SHARED])
    validate.values(problem)
    loss, outcome = loss_and_gradients(problem, *arguments[NUM_SHARED:])
    return [loss, *gradient_list(outcome)]


@torch.library.custom_op(
    "uncork::gradients",
    mutates_args=(),
    schema=f"({SHARED}, Tensor row_scale, bool[] needs, int size, str backend) -> Tensor[]",
)
def gradients(*arguments):
    """Gradients for a given upstream gradient of each token's loss."""
    row_scale_N, needs, size, backend = arguments[NUM_SHARED:]
    problem = _problem(*arguments[:NUM_SHARED])
    return gradient_list(chunked.run(problem, row_scale_N, Needs(*needs), size, PASSES[backend]()))


@torch.library.custom_op(
    "uncork::token_losses",
    mutates_args=(),
    schema=f"({SHARED}, bool[] needs, int size, str backend) -> Tensor",
)
def token_losses(*arguments):
    """The loss of each token; its backward pass is `gradients`, with the upstream gradient folded in."""
    problem = _problem(*arguments[:NUM_SHARED])
    validate.values(problem)
    _, size, backend = arguments[NUM_SHARED:]
    return loss_of_tokens(problem, size, backend)


@reduced_loss.register_fake
def _(*arguments):
    latent = arguments[0]
    loss = latent.new_empty((), dtype=compute_dtype(latent.dtype))
    return [loss, *_fake_gradients(arguments, arguments[-3])]


@gradients.register_fake
def _(*arguments):
    return _fake_gradients(arguments, arguments[-3])


@token_losses.register_fake
def _(*arguments):
    latent = arguments[0]
    return latent.new_empty(len(latent), dtype=compute_dtype(latent.dtype))


def _setup(ctx, inputs, output) -> None:
    *four, tensors, target, class_weight = inputs[:NUM_TENSORS]
    ctx.num_tensors = len(tensors)
    ctx.save_for_backward(*four, target, class_weight, *tensors)
    ctx.options = inputs[NUM_TENSORS:NUM_SHARED]
    *ctx.reduction, ctx.needs, ctx.size, ctx.backend = inputs[NUM_SHARED:]
    if isinstance(output, list):
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        # Not saved tensors: the first backward pass scales them in place and gives them away.
        ctx.gradients = output[1:]


def _saved_arguments(ctx) -> tuple[Any, ...]:
    latent, log_prior, weight, bias, target, class_weight, *tensors = ctx.saved_tensors
    return (latent, log_prior, weight, bias, tensors, target, class_weight, *ctx.options)


def _backward_reduced(ctx, grads: list[Tensor | None]):
    upstream = grads[0]
    if upstream is None:
        return _as_returned(ctx, None)
    refuse_double_backward(upstream)
    if ctx.gradients is None:  # the graph was retained, and the first pass gave its gradients away
        arguments = _saved_arguments(ctx)
        scale = row_scale(_problem(*arguments), *ctx.reduction) * upstream
        scale_N = scale.expand(len(arguments[0]))
        return _as_returned(ctx, gradients(*arguments, scale_N, ctx.needs, ctx.size, ctx.backend))
    given, ctx.gradients = scaled_in_place(ctx.gradients, upstream), None
    return _as_returned(ctx, given)


def _backward_tokens(ctx, upstream_N: Tensor):
    refuse_double_backward(upstream_N)
    given = gradients(*_saved_arguments(ctx), upstream_N, ctx.needs, ctx.size, ctx.backend)
    return _as_returned(ctx, given)


def _as_returned(ctx, given: Sequence[Tensor | None] | None):
    """One entry per argument of the op, None where there is no gradient."""
    num_options = NUM_SHARED - NUM_DIFFERENTIABLE + len(ctx.reduction) + 3
    if given is None:
        return (None, None, None, None, [None] * ctx.num_tensors, *[None] * num_options)
    four = [g if need else None for g, need in zip(given[:4], ctx.needs[:4], strict=True)]
    tensors = given[4:] if ctx.needs[-1] else [None] * ctx.num_tensors
    return (*four, list(tensors), *[None] * num_options)


def scaled_in_place(given: Sequence[Tensor | None], upstream: Tensor) -> list[Tensor | None]:
    """Every gradient times the upstream one; free, or nearly, when that is 1."""
    if not is_plain(upstream):  # a tracer would see a result of the forward pass change
        return [(g * upstream).to(g.dtype) if g is not None and g.numel() else g for g in given]
    if upstream.is_cuda and not triton.obstacle(upstream.device):
        from uncork.ops.triton.kernel_pass import scale_in_place

        scale_in_place([g for g in given if g is not None and g.numel()], upstream)
    elif not (upstream.is_cpu and upstream.item() == 1.0):
        # As a number without dimensions the upstream gradient is not rounded to the dtype of a low gradient.
        for g in given:
            if g is not None and g.numel():
                g.mul_(upstream)
    return list(given)


def refuse_double_backward(upstream: Tensor) -> None:
    """Gradients of gradients would silently be wrong: say so."""
    if torch.is_grad_enabled() and is_plain(upstream):
        raise RuntimeError(
            "second derivatives (create_graph=True) are not computed by this backend; "
            'use backend="reference".'
        )


reduced_loss.register_autograd(_backward_reduced, setup_context=_setup)
token_losses.register_autograd(_backward_tokens, setup_context=_setup)
