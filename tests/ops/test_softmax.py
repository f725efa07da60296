"""With no function the loss is torch's: linear, then torch.nn.functional.cross_entropy."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

import uncork
from tests.helpers import make_case, over_backends
from uncork.functions import Identity


OPTIONS = {
    "plain": {},
    "weights": {"weight": True},
    "smoothing": {"label_smoothing": 0.2},
    "ignored": {"ignore_index": 3},
    "all": {"weight": True, "label_smoothing": 0.2, "ignore_index": 3},
}
over_reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


def options(name, dense):
    """Distributions have no word to ignore: torch refuses, and so do we."""
    return {k: v for k, v in OPTIONS[name].items() if not (dense and k == "ignore_index")}


def torchs(case):
    """Loss and gradients by torch; the shape it wants is (N, V)."""
    scores = linear(case.input, case.weight, case.bias).flatten(0, -2)
    target = case.target.flatten(0, -2) if case.target.is_floating_point() else case.target.flatten()
    loss = cross_entropy(scores, target, **case.options)
    return loss, torch.autograd.grad(loss.sum(), [case.input, case.weight, case.bias])


def ours(case, backend, function=None):
    with backend.on():
        loss = uncork.linear_cross_entropy(
            case.input, case.weight, case.target, linear_bias=case.bias, function=function,
            backend=backend.name, **case.options,
        )  # fmt: skip
        return loss, torch.autograd.grad(loss.sum(), [case.input, case.weight, case.bias])


def assert_equal_to_torch(case, backend, function=None, **tolerance):
    expected, grads = torchs(case)
    loss, found = ours(case, backend, function)
    torch.testing.assert_close(loss.flatten(), expected.flatten(), equal_nan=True, **tolerance)
    for ours_, torchs_ in zip(found, grads, strict=True):
        torch.testing.assert_close(ours_, torchs_, equal_nan=True, **tolerance)


@over_reductions
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("function", [None, Identity()], ids=["none", "identity"])
@over_backends
def test_float64(backend, function, dense, option, reduction):
    case = make_case((2, 5), dense=dense, reduction=reduction, **options(option, dense))
    assert_equal_to_torch(case, backend, function, rtol=1e-12, atol=1e-13)


@over_reductions
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@over_backends
def test_float32(backend, dense, option, reduction):
    case = make_case(
        (33,), 17, 101, dense=dense, reduction=reduction, dtype=torch.float32, **options(option, dense)
    )
    assert_equal_to_torch(case, backend, rtol=2e-6, atol=1e-6)


@over_reductions
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@over_backends
def test_all_ignored(backend, dtype, reduction):
    """NaN for "mean" with gradients of exactly zero, 0 for the others: torch's answer."""
    case = make_case((6,), dtype=dtype, reduction=reduction)
    case.target.fill_(-100)
    assert_equal_to_torch(case, backend, rtol=0, atol=0)
    loss, grads = ours(case, backend)
    assert loss.isnan().all() if reduction == "mean" else not loss.any()
    assert not any(g.any() for g in grads)


@over_reductions
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("leading", [(0,), (2, 0)], ids=str)
@over_backends
def test_empty_batch(backend, leading, dtype, reduction):
    case = make_case(leading, dtype=dtype, reduction=reduction)
    assert_equal_to_torch(case, backend, rtol=0, atol=0)


@over_reductions
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@over_backends
def test_weight_of_a_word_is_zero(backend, dtype, reduction):
    """Words of weight 0 add nothing and are not counted in the mean."""
    case = make_case((12,), dtype=dtype, reduction=reduction, weight=True)
    case.options["weight"][case.target[:6]] = 0.0
    assert_equal_to_torch(case, backend, rtol=2e-6, atol=1e-6)


@over_backends
def test_the_mean_is_over_tokens_that_count(backend):
    case = make_case((10,), ignore_index=-1, reduction="sum")
    case.target[[0, 3, 4]] = -1
    total, _ = ours(case, backend)
    case.options["reduction"] = "mean"
    mean, _ = ours(case, backend)
    torch.testing.assert_close(mean * 7, total)


@over_reductions
@over_backends
def test_one_word_and_two(backend, reduction):
    for words in (1, 2):
        case = make_case((5,), words=words, reduction=reduction)
        assert_equal_to_torch(case, backend, rtol=1e-12, atol=1e-13)
