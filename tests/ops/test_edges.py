"""Inputs that are legal and awkward: layouts, integer kinds, huge logits, autocast, NaN."""

import copy
import os
import tempfile

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import uncork
from tests.helpers import (
    CHUNKED,
    DEVICE,
    ORDER,
    REFERENCE,
    as_read,
    assert_same,
    gradients,
    make_case,
    our_loss,
    ours,
    over_backends,
    over_functions,
    over_fused,
    rms,
    truth,
)
from uncork.functions import PLIF, Scale
from uncork.ops import cpu_pass


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("components", [None, 2])
@over_backends
def test_non_contiguous(backend, components, dtype):
    """Transposed input and weight, a strided bias, an expanded target."""
    case = make_case((4, 3), 6, 10, components=components, function="plif7", dtype=dtype, reduction="none")
    case.target = case.target[0, 0].expand(4, 3)
    expected = truth(case, backend)
    strided = lambda t: torch.stack([t, t], -1)[..., 0]
    views = case.to(dtype)
    views.weight = case.weight.detach().T.contiguous().T.requires_grad_()
    views.input = strided(case.input.detach()).requires_grad_()
    views.bias = strided(case.bias.detach()).requires_grad_()
    assert not views.input.is_contiguous() and not views.weight.is_contiguous()
    rtol = 1e-11 if dtype == torch.float64 else 2e-6
    assert_same(ours(views, backend), expected, rtol=rtol, atol=rtol / 100)


@over_backends
def test_expanded_input(backend):
    """One hidden state for every token: its gradient is the sum over tokens."""
    case = make_case((1,), function="plif7")
    one = case.input
    case.input, case.target = one.expand(6, -1), torch.arange(6, device=DEVICE)
    loss = our_loss(case, backend.name)
    (grad,) = torch.autograd.grad(loss, one)
    rows = case.to(torch.float64)
    rows.upstream = None
    torch.testing.assert_close(grad, truth(rows, backend)["input"].sum(0, keepdim=True))


@pytest.mark.parametrize("function", [None, Scale(1.3), Scale(0.7)], ids=["identity", "above", "below"])
@pytest.mark.parametrize("size", [60.0, 1e3, 1e5, 1e8, 1e18, 1e30])
@over_backends
def test_a_word_that_is_certain_costs_nothing(backend, size, function):
    """However large the logits: the highest cancels exactly."""
    weight = torch.tensor([[1.0], [-1.0], [0.5]], device=DEVICE, requires_grad=True)
    function = copy.deepcopy(function)
    function = function if function is None else function.to(DEVICE)
    with backend.on():
        loss = uncork.linear_cross_entropy(
            torch.tensor([[size]], device=DEVICE), weight, torch.zeros(1, dtype=torch.int64, device=DEVICE),
            function=function, backend=backend.name,
        )  # fmt: skip
        loss.backward()
    assert 0.0 <= loss.item() < 1e-5 and weight.grad is not None and weight.grad.isfinite().all()


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.int64])
@over_backends
def test_integer_kinds(backend, kind):
    case = make_case((7,), function="plif7")
    expected = ours(case, backend)
    case.target = case.target.to(kind)
    assert_same(ours(case, backend), expected, rtol=ORDER, atol=ORDER)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@over_functions
@over_backends
def test_huge_logits(backend, function, reduction):
    """Logits of +-1e4 overflow exp by far: losses and gradients stay finite and right."""
    case = make_case((6,), function=function, dtype=torch.float32, reduction=reduction)
    with torch.no_grad():
        case.weight.mul_(1e4)
    if function == "plif1e5":  # 20 beyond the bound is where logits are; 500 bounds are not
        case.function = PLIF(1000, 2e4, "random", seed=0, device=DEVICE)
    found, right = ours(case, backend), truth(case, backend)
    assert all(torch.isfinite(g).all() for g in found.values())
    assert rms(found["loss"] - right["loss"]) <= 1e-5 * rms(right["loss"])


@over_functions
@over_backends
def test_equal_logits(backend, function):
    """Every word equally likely, every logit in one interval of the table."""
    words = 503
    case = make_case((8,), 3, words, function=function, dtype=torch.float32)
    with torch.no_grad():
        case.weight.zero_()
        case.bias.fill_(0.37)
    case.upstream = None
    found = ours(case, backend)
    torch.testing.assert_close(found["loss"].cpu(), torch.tensor(float(words)).log(), rtol=2e-7, atol=0)
    assert_same(found, truth(case, backend), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("function", [None, "plif7", "softcap", "users_own"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@over_backends
def test_autocast(backend, reduction, function):
    """Under autocast operands are bfloat16, as for `linear`; the rest stays float32 and beats torch's own."""
    case = make_case((33,), 20, 50, function=function, dtype=torch.float32, reduction=reduction)
    right = truth(case, backend)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        found = ours(case, backend)
        scores = linear(case.input, case.weight, case.bias)
        assert scores.dtype == torch.bfloat16
        function = as_read(case.function, backend)
        scores = scores if function is None else function(scores)
        loss = cross_entropy(scores.float(), case.target, reduction=reduction)
        torchs = gradients(loss, case)
    assert found["loss"].dtype == torch.float32
    for name, value in right.items():
        assert found[name].dtype == torchs[name].dtype
        assert rms(found[name] - value) <= 1.5 * rms(torchs[name] - value) + 1e-3 * rms(value), name


@over_backends
def test_autocast_equals_bfloat16(backend):
    case = make_case((7,), function="plif7", dtype=torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        cast = ours(case, backend)["loss"]
    assert torch.equal(cast, ours(case.to(torch.bfloat16, torch.float32), backend)["loss"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("function", [None, "scale", "softcap", "plif7", "plif1e5", "network", "users_own"])
@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@over_backends
def test_nonfinite_input_neither_crashes_nor_hides(backend, dtype, components, function, bad):
    case = make_case((5,), components=components, function=function, dtype=dtype, reduction="none")
    with torch.no_grad():
        case.input[(2, *[0] * (case.input.dim() - 1))] = bad
    found = ours(case, backend)
    clean = [0, 1, 3, 4]
    assert torch.isfinite(found["loss"][clean]).all()
    assert torch.isfinite(found["input"][clean]).all()
    if bad != bad:
        assert found["loss"][2].isnan()


@pytest.mark.parametrize("function", [None, "plif7", "users_own"])
@over_backends
def test_detect_nonfinite(backend, function):
    case = make_case((5,), function=function, dtype=torch.float32)
    with uncork.detect_nonfinite():
        ours(case, backend)
    with torch.no_grad():
        case.input[2, 0] = torch.nan
    ours(case, backend)
    with uncork.detect_nonfinite(), pytest.raises(FloatingPointError, match="finite.* token 2, .*`input`"):
        ours(case, backend)


@over_fused
def test_detect_nonfinite_names_word_and_component(backend):
    case = make_case((5,), components=3, dtype=torch.float32)
    with torch.no_grad():
        case.bias[7] = torch.inf
    with uncork.detect_nonfinite(), pytest.raises(FloatingPointError, match="component 0, word 7 .inf"):
        ours(case, backend)


class Clipped(nn.Module):
    """A stranger's function; without limits it is the identity."""

    limits: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limits", torch.tensor([-torch.inf, torch.inf]))

    def forward(self, z):
        return z.clamp(self.limits[0].to(z.dtype), self.limits[1].to(z.dtype))


@over_backends
def test_a_function_may_hold_infinity_in_a_buffer(backend):
    case = make_case((5,))
    expected = ours(case, backend)
    case.function = Clipped().to(DEVICE)
    assert_same(ours(case, backend), expected, rtol=1e-11, atol=1e-12)


class Cast(nn.Module):
    """A stranger's function that returns another dtype than it is given."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, z):
        return (self.factor.to(z.dtype) * z).to(self.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@over_backends
def test_a_function_may_return_another_dtype(backend, dtype):
    """Its values are rounded as that dtype does, and the loss goes on in the dtype of the logits."""
    case = make_case((9,), dtype=torch.float32)
    case.function = Cast(torch.float32).to(DEVICE)
    expected = ours(case, backend)
    case.function = Cast(dtype).to(DEVICE)
    found = ours(case, backend)
    assert {name: g.dtype for name, g in found.items()} == {name: g.dtype for name, g in expected.items()}
    step = max(torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=8 * step, atol=8 * step)
    if not backend.tabulates:  # the slopes of a table whose values are rounded are of any size
        assert_same(found, ours(case, REFERENCE), rtol=4 * step, atol=0)


@over_fused
def test_low_precision_results(backend):
    """bfloat16 in: a float32 loss, gradients in the dtype of what they belong to."""
    case = make_case((7,), function="plif7", dtype=torch.bfloat16)
    found = ours(case, backend)
    assert found["loss"].dtype == torch.float32
    assert found["weight"].dtype == found["input"].dtype == torch.bfloat16
    assert found["function.v"].dtype == torch.float32


def test_a_system_without_user_numbers(monkeypatch, tmp_path):
    """Windows: whose folder it is cannot be told, so what is compiled goes into a new one."""
    monkeypatch.delattr(os, "getuid")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cpu_pass._build.cache_clear()
    try:
        case = make_case((5,), dtype=torch.float32)
        assert_same(ours(case, CHUNKED), truth(case, CHUNKED), rtol=2e-6, atol=2e-7)
        assert cpu_pass._cache_folder().parent == tmp_path
    finally:
        cpu_pass._build.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@over_backends
def test_targets_may_be_ignored_with_any_value(backend, dtype):
    """An ignore_index beyond the vocabulary, and targets that are out of range only where ignored."""
    case = make_case((6,), reduction="none", ignore_index=10**6, dtype=dtype)
    case.target[2] = 10**6
    assert ours(case, backend)["loss"][2] == 0
