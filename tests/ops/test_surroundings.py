"""What surrounds a call: torch's defaults, tensors written to after it, loss scales, values on a device."""

import contextlib
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import uncork
from tests.helpers import (
    ALL_BACKENDS,
    CHUNKED,
    CHUNKED_TORCH,
    DEVICE,
    REFERENCE,
    TRITON,
    assert_same,
    gradients,
    make_case,
    our_loss,
    ours,
    over_backends,
    over_fused,
    rms,
    truth,
)
from uncork.functions import PLIF
from uncork.ops import chunked, validate


missing = pytest.mark.skipif(bool(TRITON.missing), reason=f"no Triton kernels: {TRITON.missing}")
over_triton = pytest.mark.parametrize("backend", [pytest.param(TRITON, marks=missing, id=TRITON.id)])


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("function", [None, "scale", "plif7"])
@over_backends
def test_the_default_dtype_changes_nothing(backend, function, components, default):
    case = make_case((9,), function=function, components=components, dtype=torch.float32)
    expected = ours(case, backend)
    with default_dtype(default):
        found = ours(case, backend)
    assert {name: g.dtype for name, g in found.items()} == {name: g.dtype for name, g in expected.items()}
    assert_same(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", [CHUNKED, CHUNKED_TORCH], ids=lambda b: b.id)
def test_the_default_device_changes_nothing(backend):
    case = make_case((9,), function="plif7", components=2, dtype=torch.float32)
    expected = ours(case, backend)
    with backend.on(), torch.device("meta"):
        found = gradients(our_loss(case, backend.name), case)
    assert_same(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("function", [None, "sigsoftmax", "plif7"])
@over_backends
def test_an_ignored_token_beside_a_masked_first_word(backend, function, components, dtype):
    """Word 0 stands in for an ignored target inside; that it is masked must not be noticed."""
    case = make_case((9,), function=function, components=components, dtype=dtype)
    case.target = case.target.clamp(min=1)
    ignored = case.to(dtype)
    with torch.no_grad():
        for each in (case, ignored):
            assert each.bias is not None
            each.bias[0] = -torch.inf
    ignored.target[::3] = -100
    kept = torch.arange(9, device=DEVICE) % 3 != 0
    case.input = case.input.detach()[kept].requires_grad_()
    case.target = case.target[kept]
    if case.log_prior is not None:
        case.log_prior = case.log_prior.detach()[kept].requires_grad_()
    found, expected = ours(ignored, backend), ours(case, backend)
    for name in ("input", "log_prior"):
        if name in found:
            assert not found[name][~kept].any()
            found[name] = found[name][kept]
    assert all(torch.isfinite(g).all() for g in expected.values())
    rtol = 1e-10 if dtype == torch.float64 else 1e-5
    assert_same(found, expected, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("name", ["input", "target", "class weight", "weight"])
@over_fused
def test_what_is_written_to_before_the_backward_pass_is_noticed(backend, name):
    case = make_case((9,), dtype=torch.float32, reduction="none", weight=True)
    with backend.on():
        loss = our_loss(case, backend.name).sum()
        given = {"input": case.input, "target": case.target, "weight": case.weight}
        with torch.no_grad():
            (case.options["weight"] if name == "class weight" else given[name]).mul_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@over_backends
def test_a_loss_that_is_kept_does_not_keep_its_tensors(backend):
    case = make_case((9,), function="plif7", dtype=torch.float32)
    hidden = case.input.detach().clone()  # frozen: nothing else holds it
    alive = weakref.ref(hidden)
    with backend.on():
        loss = uncork.linear_cross_entropy(
            hidden, case.weight, case.target, function=case.function, backend=backend.name
        )
    loss.backward()
    del hidden
    gc.collect()
    assert alive() is None and loss.isfinite()


@pytest.mark.parametrize("tokens, words", [(20_000, 16), (60, 100_000)])
@over_fused
def test_float16_is_right_under_a_loss_scale(backend, tokens, words):
    """A probability over the number of tokens is nothing in float16; scaled by 2^16 it is."""
    if backend.slow and tokens > words:
        pytest.skip("a token is a program, and an interpreter takes long over so many")
    case = make_case((tokens,), 4, words, dtype=torch.float16, spread=0.1)
    case.upstream = torch.tensor(65536.0, device=DEVICE)
    with backend.on(2**24):
        found = gradients(our_loss(case, backend.name), case)
    right = truth(case, backend)
    # As torch itself does it: the scale is there before anything is rounded to float16.
    plain = case.to(torch.float16)
    logits = linear(plain.input, plain.weight, plain.bias).float()
    (cross_entropy(logits, plain.target) * 65536.0).backward()
    for name, torchs in (("input", plain.input), ("weight", plain.weight), ("bias", plain.bias)):
        assert torchs is not None and torchs.grad is not None
        error, allowed = (rms(g.double() - right[name]) for g in (found[name], torchs.grad))
        assert error <= 3.0 * allowed, name


@pytest.mark.parametrize("compiled", [False, True], ids=["called", "compiled"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@over_fused
def test_a_float16_gradient_whose_sum_over_tokens_is_too_large(backend, reduction, compiled):
    """Sixty tokens of 3000 each add up to more than float16 holds; their mean does not."""
    input = torch.full((60, 1), 3000.0, device=DEVICE, dtype=torch.float16)
    weight = torch.zeros(4, 1, device=DEVICE, dtype=torch.float16, requires_grad=True)
    target = torch.zeros(60, device=DEVICE, dtype=torch.int64)

    def loss(weight):
        both = {"reduction": reduction, "backend": backend.name}
        return uncork.linear_cross_entropy(input, weight, target, **both) / (60 if reduction == "sum" else 1)

    with backend.on(2**24):
        (torch.compile(loss, backend="aot_eager") if compiled else loss)(weight).backward()
    assert weight.grad is not None
    expected = torch.tensor([-2250.0, 750.0, 750.0, 750.0], device=DEVICE)
    torch.testing.assert_close(weight.grad[:, 0].float(), expected)


@over_backends
def test_a_float16_mean_of_nothing(backend):
    case = make_case((5,), dtype=torch.float16)
    case.target = case.target * 0 - 100
    found = ours(case, backend)
    assert found["loss"].isnan() and all(not g.any() for name, g in found.items() if name != "loss")


@pytest.mark.parametrize("backend", [CHUNKED, REFERENCE], ids=lambda b: b.id)
def test_a_function_that_works_in_place(backend):
    case = make_case((9,), function=nn.LeakyReLU(0.1), dtype=torch.float64)
    expected = ours(case, REFERENCE)
    case.function = nn.LeakyReLU(0.1, inplace=True)
    assert_same(ours(case, backend), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": True}], ids=str)
@pytest.mark.parametrize("function", [None, "plif7"])
@pytest.mark.parametrize(
    "backend",
    [b for b in ALL_BACKENDS if b.id in ("reference", "chunked_torch", "triton")],
    ids=lambda b: b.id,
)
def test_a_target_out_of_range_shows_where_no_value_is_read(backend, function, options, monkeypatch):
    """On a GPU nothing waits for the target; its loss is NaN, and that of the others is what it was."""
    shared = {"dtype": torch.float32, "ignore_index": -100}
    case = make_case((6,), function=function, reduction="none", **shared, **options)
    expected = ours(case, backend)["loss"]
    case.target[:4] = torch.tensor([-1, 11, 2**40, -100], device=DEVICE)
    monkeypatch.setattr(validate, "values", lambda problem: None)
    found = ours(case, backend)["loss"]
    assert found[:3].isnan().all() and found[3] == 0.0
    torch.testing.assert_close(found[4:], expected[4:])
    mean = make_case((6,), function=function, reduction="mean", **shared, **options)
    mean.target = case.target
    assert ours(mean, backend)["loss"].isnan()


@pytest.mark.parametrize(
    ("function", "z_loss"),
    [(PLIF(7, 2.0, "random", seed=1), 0.01), (PLIF(7, 5.0), 1.0)],
    ids=["masked", "steep"],
)
@over_triton
def test_sums_in_fixed_order_have_room_for_z_loss(backend, function, z_loss):
    """Their unit is chosen by how large a sum can be: masked words must not enter, and a steep f must."""
    case = make_case((9,), 5, 11, function="plif7", dtype=torch.float32, z_loss=z_loss)
    with torch.no_grad():
        if z_loss == 1.0:
            function.v.fill_(200.0)
        else:
            case.bias[3] = -torch.inf
            case.target[case.target == 3] = 0
    case.function = function.to(DEVICE)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        found = ours(case, backend)
    finally:
        torch.use_deterministic_algorithms(before)
    expected = ours(case, REFERENCE)
    assert_same(found, expected, rtol=1e-4, atol=1e-4 * float(expected["function.v"].abs().max()))


def test_a_budget_of_the_default_size_is_a_budget():
    """Without one, chunks may exceed the default where that is faster."""
    default = chunked.in_bytes(chunked.budget(), "cuda")
    problem: Any = SimpleNamespace(latent_NKD=SimpleNamespace(shape=(8192, 1, 4096), is_cuda=True))
    chunk_pass: Any = SimpleNamespace(bytes_per_logit=4, fixed_bytes=0)
    rows = lambda free: chunked._chunk_length(problem, chunk_pass, default, free, 300_000)
    assert chunked.budget() == chunked.DEFAULT and rows(True) * 4 * 300_000 > default
    with uncork.chunk_bytes(default):
        assert chunked.budget() == default and rows(False) * 4 * 300_000 <= default


@over_fused
def test_the_current_device_is_that_of_the_input(backend, monkeypatch):
    """Kernels are launched on the current one, in the backward pass too."""
    given = []
    monkeypatch.setattr(torch.cuda, "device_of", lambda t: given.append(t) or contextlib.nullcontext())
    case = make_case((9,), reduction="none")
    with backend.on():
        loss = our_loss(case, backend.name)
        assert [t.data_ptr() for t in given] == [case.input.data_ptr()]
        loss.sum().backward()
    assert [t.data_ptr() for t in given] == [case.input.data_ptr()] * 2


class Separable(nn.Module):
    """A user's own module that happens to have a layer named as our functions' method."""

    def __init__(self) -> None:
        super().__init__()
        self.pointwise = nn.Linear(1, 1, bias=False)

    def forward(self, z):
        return z * self.pointwise.weight.abs()[0, 0]


def test_a_module_with_a_layer_of_that_name_is_a_module():
    case = make_case((5,), function=Separable(), dtype=torch.float32)
    with CHUNKED.on():
        found = gradients(our_loss(case, "chunked"), case)
    with REFERENCE.on():
        expected = gradients(our_loss(case, "reference"), case)
    assert_same(found, expected, rtol=1e-5, atol=1e-6)


def test_numbers_of_numpy_are_numbers():
    case = make_case((5,), ignore_index=3, label_smoothing=0.25)
    expected = ours(case, CHUNKED)
    case.options |= {"ignore_index": np.int64(3), "label_smoothing": np.float32(0.25)}
    assert_same(ours(case, CHUNKED), expected, rtol=0, atol=0)


@over_fused
def test_transforms_of_torch_func_name_the_backend_that_knows_them(backend):
    case = make_case((5,), dtype=torch.float64)
    loss = lambda name: lambda x: uncork.linear_cross_entropy(x, case.weight, case.target, backend=name)
    with backend.on(), pytest.raises(RuntimeError, match='torch.func.*backend="reference"'):
        torch.func.grad(loss(backend.name))(case.input)
    found = torch.func.grad(loss("reference"))(case.input.detach())
    (expected,) = torch.autograd.grad(loss("reference")(case.input), case.input)
    torch.testing.assert_close(found, expected)
