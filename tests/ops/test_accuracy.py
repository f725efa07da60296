"""Low precision, judged as no worse than torch itself in the same dtype, against float64."""

from statistics import median

import pytest
import torch

from tests.helpers import (
    CHUNKED,
    DEVICE,
    assert_as_accurate_as_torch,
    gradients,
    make_case,
    naive,
    our_loss,
    ours,
    over_backends,
    over_fused,
    rms,
    truth,
)


SIZE = {"leading": (63,), "width": 123, "words": 507}


def problems(backend, dtype, **keywords):
    """One problem; several small ones where a loss that is one number would be compared with a lucky one.

    That is so where a backend, like torch, takes logits in a low dtype. One number per token needs no luck.
    """
    if not backend.narrow or keywords.get("reduction") == "none":
        # The odd size once for every function and dtype is enough for the interpreter.
        fewer = {"leading": (21,)} if backend.slow and keywords.get("dense") else {}
        return make_case(**(SIZE | keywords | fewer), dtype=dtype)
    small = SIZE | keywords | {"leading": (5,)}
    return [make_case(**small, dtype=dtype, seed=seed) for seed in range(4 if dtype.itemsize < 4 else 1)]


@pytest.mark.parametrize(
    "function", [None, "scale", "sigsoftmax", "softcap", "plif7", "plif1001", "users_own"]
)
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@over_backends
def test_single(backend, dtype, reduction, dense, function):
    cases = problems(backend, dtype, function=function, dense=dense, reduction=reduction)
    assert_as_accurate_as_torch(cases, backend, chunk=6_000 if backend.narrow else 60_000)


@pytest.mark.parametrize("function", [None, "plif7"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@over_backends
def test_mixture(backend, dtype, reduction, function):
    size = {"leading": (21,), "width": 23, "words": 207, "components": 3}
    cases = problems(backend, dtype, **size, function=function, reduction=reduction)
    assert_as_accurate_as_torch(cases, backend, chunk=6_000 if backend.narrow else 60_000)


def test_the_gradient_of_a_temperature():
    """One number, a sum of terms that cancel: judged by many problems, without the allowance for that."""
    errors = {"ours": [], "torch": []}
    for seed in range(15):
        case = make_case((64,), words=1000, function="scale", dtype=torch.float32, seed=seed)
        right = truth(case, CHUNKED)["function.v"]
        found = {"ours": gradients(our_loss(case, "chunked"), case), "torch": naive(case, CHUNKED)}
        for whose, grads in found.items():
            errors[whose].append(((grads["function.v"] - right) / right).abs().item())
    assert median(errors["ours"]) <= 2.0 * median(errors["torch"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@over_backends
def test_large_bias(backend, dtype):
    """A bias that dominates the logits: peers' tests use 0.01 and have missed a wrong bias gradient."""
    assert_as_accurate_as_torch(problems(backend, dtype, spread=8.0), backend, chunk=60_000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@over_backends
def test_confident_targets(backend, dtype):
    """p_y close to 1: p_y - 1 must be formed before any rounding to the low dtype."""
    case = make_case(**SIZE, dtype=dtype, bias=False)
    with torch.no_grad():
        case.input.copy_(case.weight[case.target] * 3.0)
    assert_as_accurate_as_torch(case, backend, chunk=60_000)


@over_fused
def test_the_weight_gradient_is_summed_in_float32(backend):
    """bfloat16 sums would lose a digit or two over hundreds of chunks: the error must not grow with them."""
    case = make_case((300 if backend.slow else 1024,), 8, 37, dtype=torch.bfloat16, reduction="sum")
    case.upstream = None
    right = truth(case)["weight"]
    few, many = 10**9, 1200 if backend.narrow else 1  # a budget that holds the float32 sum itself
    errors = {}
    for chunk in (many, few):
        with backend.on(chunk):
            found = gradients(our_loss(case, backend.name), case)["weight"]
        errors[chunk] = rms(found - right)
    rounded = rms(right.bfloat16() - right)
    assert errors[many] <= 1.05 * errors[few]
    if not backend.narrow:  # what is left is the rounding of the result itself
        assert errors[many] <= 1.05 * rounded
    # The claim is not vacuous: summing in bfloat16 is worse by a factor that grows with the tokens.
    total = torch.zeros_like(right, dtype=torch.bfloat16)
    for row in _token_weight_gradients(case):
        total += row.bfloat16()
    assert rms(total - right) > (5 if backend.slow else 10) * errors[many]


def _token_weight_gradients(case):
    wide = case.to(torch.float64)
    p = torch.softmax(wide.input @ wide.weight.T + wide.bias, -1).detach()
    p[torch.arange(len(p), device=p.device), wide.target] -= 1
    return torch.einsum("nv,nd->nvd", p, wide.input.detach())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@over_backends
def test_the_upstream_gradient_is_not_rounded(backend, reduction):
    """A loss divided by three: rounded to bfloat16, the third would make every gradient 0.2 % too large."""
    case = make_case((21,), 123, 507, dtype=torch.bfloat16, reduction=reduction)
    case.upstream = torch.tensor(1 / 3, device=DEVICE)
    found, right = ours(case, backend), truth(case)
    for name in ("input", "weight", "bias"):
        along = (found[name] * right[name]).sum() / right[name].square().sum()
        assert abs(along - 1) <= 1e-3, name


@pytest.mark.parametrize("function", ["scale", "plif7", "plif1001"])
@over_fused
def test_function_gradients_do_not_drift(backend, function):
    """One interval may collect half a million float32 terms: sums in float64 keep the last digits."""
    case = make_case((100 if backend.slow else 1000,), 4, 503, function=function, dtype=torch.float32)
    with torch.no_grad():
        case.weight.mul_(1 / 16)  # all logits close together
        case.bias.mul_(1 / 16)
    with backend.on(100_000):
        found = gradients(our_loss(case, backend.name), case)
    name = "function.v"
    right = truth(case)[name]
    assert rms(found[name] - right) <= 3e-6 * rms(right)
