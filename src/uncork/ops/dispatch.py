"""From arguments to a backend: the one table of backends, and what "auto" means."""

import torch
from torch import Tensor

from uncork.ops import chunked, custom, eager, reference, table, triton, validate
from uncork.ops.problem import Problem


def _chunked_loss(problem: Problem, reduction: str, backend: str) -> Tensor:
    # Forward-mode derivatives too: in a compiled graph the loss would be taken for a constant.
    if torch._C._are_functorch_transforms_active() or table.in_forward_mode():
        raise RuntimeError(
            "torch.func transforms (grad, vmap, jvp) and forward-mode derivatives are not computed by this "
            'backend; use backend="reference", or autograd.'
        )
    if problem.latent_NKD.dtype == torch.float16 and reduction != "none":
        # Float16 has room for a gradient only with the loss scale in it, which comes with the backward pass:
        # until then none is made.
        loss_N = _chunked_loss(problem, "none", backend)
        # An ignored token's loss is 0, and 0 * (1/0) is the NaN torch gives when all are ignored.
        return loss_N.sum() * custom.row_scale(problem, reduction)
    needs = _needs(problem)
    size = chunked.budget()
    if problem.form.kind == "callable":
        return eager.loss_outside_graph(problem, reduction, needs, size)
    if custom.is_plain(problem.latent_NKD):
        return eager.loss(problem, reduction, needs, size, backend)
    arguments = custom.flattened(problem)
    if reduction == "none":
        return custom.token_losses(*arguments, needs, size, backend)
    return custom.reduced_loss(*arguments, reduction, needs, size, backend)[0]


def _reference_loss(problem: Problem, reduction: str, backend: str) -> Tensor:
    # Reading values would break a graph, and a transform of torch.func has none to read.
    if not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
        validate.values(problem)
    return reference.loss(problem, reduction)


BACKENDS = {"reference": _reference_loss, "chunked": _chunked_loss, "triton": _chunked_loss}


def resolve(backend: str, device: torch.device) -> str:
    """The name of the backend that will run; asking for one that cannot raises."""
    if backend == "auto":
        on_gpu = device.type == "cuda" and not triton.obstacle(device)
        return "triton" if on_gpu else "chunked"
    if not isinstance(backend, str) or backend not in BACKENDS:
        names = ", ".join(["auto", *BACKENDS])
        raise ValueError(f'`backend` must be one of {names}, got {backend!r}. "auto" chooses by the device.')
    if backend == "triton" and (reason := triton.obstacle(device)):
        raise ValueError(f'`backend` must be able to run: {reason}, got \'triton\'. Use "auto" or "chunked".')
    return backend


def loss(problem: Problem, reduction: str, backend: str) -> Tensor:
    """Run the problem on a backend."""
    return BACKENDS[backend](problem, reduction, backend)


def _needs(problem: Problem) -> list[bool]:
    """Which gradients will be asked for: latent, log_prior, weight, bias, the function's tensors."""
    four = (problem.latent_NKD, problem.log_prior_NK, problem.weight_VD, problem.bias_V)
    wanted = [t is not None and t.requires_grad for t in four]
    wanted.append(any(t.requires_grad for t in problem.form.tensors))
    return [torch.is_grad_enabled() and want for want in wanted]
