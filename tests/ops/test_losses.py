"""Value and every gradient against the naive loss: function x backend x target x option x reduction."""

import pytest
import torch

from tests.helpers import (
    ALL_FUNCTIONS,
    assert_as_accurate_as_torch,
    assert_same,
    make_case,
    ours,
    over_backends,
    over_functions,
    truth,
)


OPTIONS = {
    "plain": {},
    "class_weights": {"weight": True},
    "ignored": {"ignore_index": 3},  # a word inside [0, V)
    "smoothed": {"label_smoothing": 0.15},
    "z_loss": {"z_loss": 0.03},
    "all_but_smoothed": {"weight": True, "ignore_index": 3, "z_loss": 0.03},  # all that kernels take
    "all": {"weight": True, "ignore_index": 3, "label_smoothing": 0.15, "z_loss": 0.03},
}


def options(name, dense):
    """Distributions have no word to ignore."""
    return {k: v for k, v in OPTIONS[name].items() if not (dense and k == "ignore_index")}


over_options = pytest.mark.parametrize("option", OPTIONS)
over_targets = pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
over_reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


@over_reductions
@over_options
@over_targets
@over_functions
@over_backends
def test_float64(backend, function, dense, option, reduction):
    case = make_case((2, 5), function=function, dense=dense, reduction=reduction, **options(option, dense))
    assert_same(ours(case, backend), truth(case, backend), rtol=1e-11, atol=1e-13)


@over_reductions
@over_options
@over_targets
@pytest.mark.parametrize("function", [None, *ALL_FUNCTIONS])
@over_backends
def test_float32(backend, function, dense, option, reduction):
    case = make_case(
        (2, 3) if backend.slow else (2, 5), function=function, dense=dense, reduction=reduction,
        dtype=torch.float32, **options(option, dense),
    )  # fmt: skip
    assert_as_accurate_as_torch(case, backend, chunk=200 if backend.slow else 300)


@over_reductions
@over_options
@over_targets
@pytest.mark.parametrize("function", [None, "plif1001", "users_own"])
@over_backends
def test_mixture_float64(backend, function, dense, option, reduction):
    case = make_case(
        (2, 3), components=4, function=function, dense=dense, reduction=reduction, **options(option, dense)
    )
    assert_same(ours(case, backend), truth(case, backend), rtol=1e-11, atol=1e-13)


@over_reductions
@over_options
@over_targets
@pytest.mark.parametrize("function", [None, "scale", "sigsoftmax", "softcap", "plif1001", "users_own"])
@over_backends
def test_mixture_float32(backend, function, dense, option, reduction):
    case = make_case(
        (2, 3), components=4, function=function, dense=dense, reduction=reduction, dtype=torch.float32,
        **options(option, dense),
    )  # fmt: skip
    assert_as_accurate_as_torch(case, backend)


@pytest.mark.parametrize("leading", [(), (1,), (6,), (2, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("components", [None, 3])
@over_reductions
@over_backends
def test_leading_shapes(backend, reduction, components, leading):
    case = make_case(leading, components=components, function="plif7", reduction=reduction)
    result = ours(case, backend)
    assert result["loss"].shape == (leading if reduction == "none" else ())
    assert_same(result, truth(case, backend), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("function", [None, *ALL_FUNCTIONS])
@over_backends
def test_odd_sizes(backend, function, bias):
    """63 tokens, 507 words, width 123, in several chunks."""
    case = make_case((63,), 123, 507, function=function, bias=bias, dtype=torch.float32)
    assert_as_accurate_as_torch(case, backend, chunk=30_000)
