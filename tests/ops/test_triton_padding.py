"""A vocabulary that is no multiple of 16 bytes: products run over a few words more, which change nothing.

By default this is done on a GPU alone, and not for words as few as these; here it is done everywhere.
"""

import pytest
import torch

import uncork
from tests.helpers import (
    CHUNKED,
    DEVICE,
    TRITON,
    assert_as_accurate_as_torch,
    gradients,
    make_case,
    our_loss,
    ours,
    truth,
)
from uncork.functions import PLIF
from uncork.ops import matmul


pytestmark = pytest.mark.skipif(
    bool(TRITON.missing),
    reason="needs TRITON_INTERPRET=1, as in the run of its own in `make test`, or UNCORK_TEST_DEVICE=cuda",
)

WIDTH = 8
over_dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:]
)
over_targets = pytest.mark.parametrize(
    "target",
    [{}, {"dense": True}, {"components": 3}, {"dense": True, "components": 3}],
    ids=["words", "dense", "mixture", "dense mixture"],
)


@pytest.fixture(autouse=True)
def products(monkeypatch):
    """Every vocabulary is padded; the (rows, words) of the products of logits, as they are made."""
    shapes = []
    original = matmul.logits

    def spied(x_RD, weight, bias, out):
        assert len(weight) == out.shape[1] and (bias is None or len(bias) == out.shape[1])
        shapes.append(tuple(out.shape))
        return original(x_RD, weight, bias, out)

    monkeypatch.setattr(matmul, "logits", spied)
    monkeypatch.setitem(matmul.PADDED_FROM, DEVICE.type, 0)
    return shapes


def padded_of(words, dtype):
    return -(-words // 8) * 8 if dtype.itemsize == 2 else -(-words // 4) * 4


@over_targets
@over_dtypes
@pytest.mark.parametrize("function", [None, "scale", "sigsoftmax", "softcap", "plif7", "plif1001"])
def test_loss_and_gradients(function, dtype, target, products):
    """Several problems in a low dtype: torch may hit a gradient by luck, and one that is one number often."""
    options = target | {"function": function, "dtype": dtype, "z_loss": 0.1, "reduction": "none"}
    problems = 1 if dtype.itemsize == 4 else 16 if function == "scale" else 4
    cases = [make_case((5,), WIDTH, 11, seed=seed, **options) for seed in range(problems)]
    assert_as_accurate_as_torch(cases, TRITON, chunk=100)
    assert {words for _, words in products} == {padded_of(11, dtype)}
    assert max(rows for rows, _ in products) < 5 * target.get("components", 1)  # several chunks


@pytest.mark.parametrize("words", [1, 3, 7, 9, 13, 15, 17])
@pytest.mark.parametrize("function", [None, "plif7"])
@over_dtypes
def test_any_rest(dtype, function, words, products):
    options = {"bias": False, "weight": True, "reduction": "none"}
    case = make_case((3,), WIDTH, words, function=function, dtype=dtype, **options)
    case.target[1] = -100
    assert_as_accurate_as_torch(case, TRITON)
    assert {words for _, words in products} == {padded_of(words, dtype)}


@over_dtypes
@pytest.mark.parametrize("function", [None, "plif1001", "plif1e5"])
def test_rows_of_several_blocks(function, dtype, products):
    case = make_case((4,), WIDTH, 9001, function=function, dtype=dtype, reduction="none")
    assert_as_accurate_as_torch(case, TRITON, chunk=90_000)
    assert {words for _, words in products} == {padded_of(9001, dtype)}


@over_dtypes
@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("function", [None, "plif7"])
def test_deterministic_sums(function, components, dtype, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        case = make_case((5,), WIDTH, 11, components, function=function, dtype=dtype, reduction="none")
        assert_as_accurate_as_torch(case, TRITON)
        first, second = ours(case, TRITON), ours(case, TRITON)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("function", [None, "scale", "plif7", "plif1e5"])
@over_dtypes
def test_an_ignored_vector_may_hold_anything(dtype, function, components, bad):
    """Its logits are NaN, those of padding too; its gradient, and theirs, is nothing."""
    case = make_case((5,), WIDTH, 11, components, function=function, dtype=dtype)
    case.target[2] = -100
    with torch.no_grad():
        case.input[2] = bad
    assert (ours(case, TRITON)["input"][2] == 0).all()


@pytest.mark.parametrize("function", [None, "plif7"])
@over_dtypes
def test_logits_far_below_zero_and_masked_words(dtype, function):
    """Where a column of zeros would be the highest of its row."""
    case = make_case((5,), WIDTH, 11, function=function, dtype=dtype, reduction="none")
    with torch.no_grad():
        case.bias.sub_(1000.0)
    assert_as_accurate_as_torch(case, TRITON)
    with torch.no_grad():
        case.bias[3:6] = -torch.inf
        case.target.fill_(1)
    found = ours(case, TRITON)
    assert all(torch.isfinite(value).all() for value in found.values())
    assert (found["weight"][3:6] == 0).all() and (found["bias"][3:6] == 0).all()


@over_dtypes
@pytest.mark.parametrize("chunk", [1, 10**6], ids=["chunks", "one_chunk"])
def test_gradients_are_tensors_as_any(dtype, chunk):
    """Of the shape and layout of the parameters, in memory hardly larger, and no views to autograd."""
    case = make_case((5,), WIDTH, 11, dtype=dtype)
    with TRITON.on(chunk):
        our_loss(case, TRITON.name).backward()
    for leaf in (case.weight, case.bias):
        grad = leaf.grad
        assert grad.shape == leaf.shape and grad.stride() == leaf.stride() and grad.is_contiguous()
        assert grad.storage_offset() == 0 and grad.dtype == leaf.dtype
        assert grad.untyped_storage().nbytes() <= padded_of(11, dtype) * grad[0].nbytes
        assert not grad._is_view()
        grad.detach_().mul_(2.0)
    with TRITON.on(chunk):
        found = gradients(our_loss(case, TRITON.name), case)
    assert not found["weight"]._is_view() and not found["bias"]._is_view()


def test_losses_without_gradients(products):
    case = make_case((5,), WIDTH, 11, function="plif7", dtype=torch.bfloat16, reduction="none")
    with torch.no_grad(), TRITON.on():
        loss = our_loss(case, TRITON.name)
    torch.testing.assert_close(loss.double(), truth(case)["loss"], rtol=1e-5, atol=1e-5)
    assert {words for _, words in products} == {16}


def test_nothing_is_found_wrong_with_padding():
    """What looks for logits that are not finite looks at the words alone."""
    case = make_case((2,), WIDTH, 11, dtype=torch.float32)
    with uncork.detect_nonfinite():
        ours(case, TRITON)
    with torch.no_grad():
        case.input[1, 0] = torch.inf
    with uncork.detect_nonfinite(), pytest.raises(FloatingPointError, match="11 of 22 "):
        ours(case, TRITON)


def test_the_pass_in_torch_is_as_before(products):
    """Its gradient is a tensor of its own, with no room behind a row."""
    case = make_case((2,), WIDTH, 11, dtype=torch.float64)
    assert_as_accurate_as_torch(case, TRITON)
    assert_as_accurate_as_torch(case, CHUNKED)
    assert {words for _, words in products} == {11}


@pytest.mark.traced
@pytest.mark.parametrize("components", [None, 2])
def test_the_custom_op_keeps_the_rules_of_torch(components):
    """What is returned has the shapes and strides that the op announces."""
    from torch.library import opcheck

    from uncork.ops import custom
    from uncork.ops.pointwise import as_pointwise
    from uncork.ops.problem import Problem

    case = make_case((5,), WIDTH, 11, components, function=PLIF(7, 2.0), dtype=torch.float32)
    latent = case.input if components else case.input[:, None]
    form = as_pointwise(case.function, torch.float32, latent.device)
    problem = Problem(
        latent.detach().requires_grad_(), case.log_prior, case.weight, case.bias, case.target, None, form,
        -100, 0.0, 0.0,
    )  # fmt: skip
    flat = custom.flattened(problem)
    needs = [True, components is not None, True, True, True]
    tensors = [t.detach().requires_grad_() for t in flat[4]]
    opcheck(custom.reduced_loss, (*flat[:4], tensors, *flat[5:], "mean", needs, 500, "triton"))
