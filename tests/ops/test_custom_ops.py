"""Every custom op keeps torch's rules: schema, fake implementation, autograd registration."""

from typing import Any

import pytest
import torch
from torch.library import opcheck

import uncork
from tests.helpers import gradients, make_case, our_loss
from uncork.ops import custom, table
from uncork.ops.pointwise import as_pointwise
from uncork.ops.problem import Problem, compute_dtype


pytestmark = pytest.mark.traced

# opcheck also runs AOT autograd, with static and with dynamic shapes, and compares with eager.
SAMPLES = {
    "softmax": {},
    "softmax_no_bias": {"bias": False},
    "scale": {"function": "scale"},
    "plif": {"function": "plif7", "label_smoothing": 0.1, "z_loss": 0.1},
    "dense": {"dense": True, "weight": True},
    "mixture": {"components": 3, "function": "plif7"},
    "bfloat16": {"dtype": torch.bfloat16},
    "float64": {"dtype": torch.float64, "function": "softcap"},
    "empty": {"leading": (0,)},
}


def arguments(needs=None, **keywords):
    """A case as the ops take it, and which gradients are wanted."""
    keywords = {"leading": (5,), "dtype": torch.float32} | keywords
    case = make_case(**keywords)
    latent = case.input if case.log_prior is not None else case.input[:, None]
    form = as_pointwise(case.function, compute_dtype(latent.dtype), latent.device)
    opts = case.options
    problem = Problem(
        latent.detach().requires_grad_(), case.log_prior, case.weight, case.bias, case.target,
        opts.get("weight"), form, -100, opts.get("label_smoothing", 0.0), opts.get("z_loss", 0.0),
    )  # fmt: skip
    flat = custom.flattened(problem)
    tensors = [t.detach().requires_grad_() for t in flat[4]]
    everything = [True, case.log_prior is not None, True, case.bias is not None, bool(tensors)]
    return (*flat[:4], tensors, *flat[5:]), everything if needs is None else needs


@pytest.mark.parametrize("sample", SAMPLES)
def test_reduced_loss(sample):
    # The mean of nothing is NaN, which opcheck does not find equal to itself.
    reduction = "sum" if sample == "empty" else "mean"
    flat, needs = arguments(**SAMPLES[sample])
    opcheck(custom.reduced_loss, (*flat, reduction, needs, 500, "chunked"))


@pytest.mark.parametrize("sample", SAMPLES)
def test_token_losses(sample):
    flat, needs = arguments(**SAMPLES[sample])
    opcheck(custom.token_losses, (*flat, needs, 500, "chunked"))


@pytest.mark.parametrize("sample", SAMPLES)
def test_gradients(sample):
    flat, needs = arguments(**SAMPLES[sample])
    detach = lambda t: t.detach() if isinstance(t, torch.Tensor) else t
    flat = tuple([detach(t) for t in a] if isinstance(a, list) else detach(a) for a in flat)
    latent: Any = flat[0]
    scale = torch.rand(len(latent), dtype=compute_dtype(latent.dtype))
    opcheck(custom.gradients, (*flat, scale, needs, 500, "chunked"))


@pytest.mark.parametrize("wanted", range(5))
def test_fewer_gradients(wanted):
    """The fake implementation must know which gradients are left out."""
    needs = [i == wanted for i in range(5)]
    flat, _ = arguments(components=2, function="plif7")
    keep = lambda t, i: t.detach().requires_grad_(needs[i])
    flat = (*(keep(t, i) for i, t in enumerate(flat[:4])), [keep(t, 4) for t in flat[4]], *flat[5:])
    opcheck(custom.reduced_loss, (*flat, "mean", needs, 500, "chunked"))
    opcheck(custom.token_losses, (*flat, needs, 500, "chunked"))


@pytest.mark.parametrize("shape", [(), (7,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_piecewise_linear(dtype, shape):
    x = (3 * torch.randn(shape, dtype=dtype)).requires_grad_()
    values = torch.rand(9, dtype=torch.float64).cumsum(0).requires_grad_()
    opcheck(table.piecewise_linear_op, (x, values, 2.0))
    opcheck(table.piecewise_linear_backward, (torch.randn_like(x), x, values, 2.0))


def losses_and_gradients(op, flat, *rest, upstream=None):
    """Of an op called as it is: the loss, and the gradients of all its differentiable arguments."""
    leaves = [t for t in (*flat[:4], *flat[4]) if t is not None]
    loss = op(*flat, *rest)
    loss = loss[0] if isinstance(loss, list) else loss
    upstream = torch.ones_like(loss) if upstream is None else upstream
    for _ in range(2):  # the second pass, over a retained graph, must give the same
        yield loss, torch.autograd.grad(loss, leaves, upstream, retain_graph=True)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s != "empty"])
def test_ops_equal_the_plain_path(sample):
    """torch.compile runs the ops, everything else a plain autograd function: both give the same."""
    keywords = {"leading": (5,), "dtype": torch.float32} | SAMPLES[sample]
    for reduction in ("mean", "none"):
        case = make_case(**keywords, reduction=reduction)
        with uncork.chunk_bytes(500):
            expected = gradients(our_loss(case, "chunked"), case)
        flat, needs = arguments(**keywords)
        op, rest = (custom.reduced_loss, ("mean",)) if reduction == "mean" else (custom.token_losses, ())
        results = losses_and_gradients(op, flat, *rest, needs, 500, "chunked", upstream=case.upstream)
        for loss, found in results:
            torch.testing.assert_close(loss, expected["loss"])
            torch.testing.assert_close(found[0].reshape(case.input.shape), expected["input"])
            torch.testing.assert_close(found[2 if case.log_prior is not None else 1], expected["weight"])


def test_ops_refuse_second_derivatives():
    flat, needs = arguments()
    loss = custom.reduced_loss(*flat, "mean", needs, 500, "chunked")[0]
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(loss, flat[0], create_graph=True)
