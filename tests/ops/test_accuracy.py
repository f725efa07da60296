"""Low precision, judged as no worse than torch itself in the same dtype, against float64."""

import pytest
import torch

from tests.helpers import (
    CHUNKED,
    CHUNKED_TORCH,
    assert_as_accurate_as_torch,
    gradients,
    make_case,
    our_loss,
    over_backends,
    rms,
    truth,
)


SIZE = {"leading": (63,), "width": 123, "words": 507}


@pytest.mark.parametrize(
    "function", [None, "scale", "sigsoftmax", "softcap", "plif7", "plif1001", "users_own"]
)
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@over_backends
def test_single(backend, dtype, reduction, dense, function):
    case = make_case(**SIZE, function=function, dense=dense, reduction=reduction, dtype=dtype)
    assert_as_accurate_as_torch(case, backend, chunk=60_000)


@pytest.mark.parametrize("function", [None, "plif7"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@over_backends
def test_mixture(backend, dtype, reduction, function):
    case = make_case((21,), 23, 207, components=3, function=function, reduction=reduction, dtype=dtype)
    assert_as_accurate_as_torch(case, backend, chunk=60_000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@over_backends
def test_large_bias(backend, dtype):
    """A bias that dominates the logits: peers' tests use 0.01 and have missed a wrong bias gradient."""
    case = make_case(**SIZE, dtype=dtype, spread=8.0)
    assert_as_accurate_as_torch(case, backend, chunk=60_000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@over_backends
def test_confident_targets(backend, dtype):
    """p_y close to 1: p_y - 1 must be formed before any rounding to the low dtype."""
    case = make_case(**SIZE, dtype=dtype, bias=False)
    with torch.no_grad():
        case.input.copy_(case.weight[case.target] * 3.0)
    assert_as_accurate_as_torch(case, backend, chunk=60_000)


@pytest.mark.parametrize("backend", [CHUNKED, CHUNKED_TORCH], ids=lambda b: b.id)
def test_the_weight_gradient_is_summed_in_float32(backend):
    """bfloat16 sums would lose a digit or two over hundreds of chunks: the error must not grow with them."""
    case = make_case((1024,), 8, 37, dtype=torch.bfloat16, reduction="sum")
    case.upstream = None
    right = truth(case)["weight"]
    errors = {}
    for chunk in (1, 10**9):
        with backend.on(chunk):
            found = gradients(our_loss(case, backend.name), case)["weight"]
        errors[chunk] = rms(found - right)
    rounded = rms(right.bfloat16() - right)
    assert errors[1] <= 1.05 * errors[10**9]
    # What is left is the rounding of the result itself.
    assert errors[1] <= 1.05 * rounded
    # The claim is not vacuous: summing in bfloat16 is an order of magnitude worse.
    total = torch.zeros_like(right, dtype=torch.bfloat16)
    for row in _token_weight_gradients(case):
        total += row.bfloat16()
    assert rms(total - right) > 10 * errors[1]


def _token_weight_gradients(case):
    wide = case.to(torch.float64)
    p = torch.softmax(wide.input @ wide.weight.T + wide.bias, -1).detach()
    p[torch.arange(len(p)), wide.target] -= 1
    return torch.einsum("nv,nd->nvd", p, wide.input.detach())


@pytest.mark.parametrize("function", ["scale", "plif7", "plif1001"])
@pytest.mark.parametrize("backend", [CHUNKED, CHUNKED_TORCH], ids=lambda b: b.id)
def test_function_gradients_do_not_drift(backend, function):
    """One interval may collect half a million float32 terms: sums in float64 keep the last digits."""
    case = make_case((1000,), 4, 503, function=function, dtype=torch.float32)
    with torch.no_grad():
        case.weight.mul_(1 / 16)  # all logits close together
        case.bias.mul_(1 / 16)
    with backend.on(100_000):
        found = gradients(our_loss(case, backend.name), case)
    name = "function.v"
    right = truth(case)[name]
    assert rms(found[name] - right) <= 3e-6 * rms(right)
