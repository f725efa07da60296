"""Which gradients are given, when, how often, and that they are derivatives."""

import itertools

import pytest
import torch

import uncork
from tests.helpers import (
    ALL_FUNCTIONS,
    CHUNKED,
    DEVICE,
    ORDER,
    REFERENCE,
    Bend,
    assert_same,
    gradients,
    make_case,
    naive,
    naive_loss,
    naive_scores,
    our_loss,
    ours,
    over_backends,
    over_fused,
    truth,
)


over_reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
NAMES = ["input", "weight", "bias", "function"]


def freeze(case, wanted):
    """Leave gradients to the named arguments alone."""
    for name in ("input", "log_prior", "weight", "bias"):
        tensor = getattr(case, name)
        if tensor is not None:
            tensor.requires_grad_(name in wanted)
    if case.function is not None:
        case.function.requires_grad_("function" in wanted)
    return case


SUBSETS = [s for n in range(5) for s in itertools.combinations(NAMES, n)]


@pytest.mark.parametrize("wanted", SUBSETS, ids="+".join)
@pytest.mark.parametrize("function", ["scale", "plif1001", "users_own"])
@over_reductions
@over_backends
def test_every_subset_of_gradients(backend, reduction, function, wanted):
    case = freeze(make_case((7,), function=function, reduction=reduction), wanted)
    result = ours(case, backend)
    assert {name.split(".")[0] for name in result} == {"loss", *wanted}
    assert_same(result, truth(case, backend), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("wanted", SUBSETS, ids="+".join)
@over_reductions
@over_fused
def test_every_subset_of_gradients_float32(backend, reduction, wanted):
    """The compiled pass takes float32 only: its own switches."""
    case = freeze(make_case((7,), function="plif7", reduction=reduction, dtype=torch.float32), wanted)
    assert_same(ours(case, backend), truth(case, backend), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize(
    "wanted", [("log_prior",), ("input",), ("weight",), ("log_prior", "bias"), ()], ids=str
)
@over_reductions
@over_backends
def test_subsets_of_mixture_gradients(backend, reduction, wanted):
    for dtype, rtol in [(torch.float64, 1e-11), (torch.float32, 2e-6)]:
        case = make_case((7,), components=3, function="plif7", reduction=reduction, dtype=dtype)
        freeze(case, wanted)
        assert_same(ours(case, backend), truth(case, backend), rtol=rtol, atol=rtol / 100)


@over_backends
def test_partly_frozen_function(backend):
    """A user's module may freeze some of its parameters, and have some it does not use."""

    class Shifted(Bend):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.tensor(0.5), requires_grad=False)
            self.unused = torch.nn.Parameter(torch.ones(3))

        def forward(self, z):
            return super().forward(z + self.shift.to(z.dtype))

    case = make_case((7,), function=Shifted())
    with backend.on():
        our_loss(case, backend.name).backward()
    assert case.function.shift.grad is None
    assert case.function.unused.grad is None or not case.function.unused.grad.any()
    expected = case.to(torch.float64)
    expected.function.unused.requires_grad_(False)
    grad = truth(expected, backend)["function.raw"] / expected.upstream
    torch.testing.assert_close(case.function.raw.grad, grad, rtol=1e-11, atol=1e-13)


@over_reductions
@pytest.mark.parametrize("function", [None, "plif7", "users_own"])
@over_backends
def test_second_and_third_backward(backend, function, reduction):
    case = make_case((7,), function=function, reduction=reduction)
    expected = truth(case, backend)
    with backend.on():
        loss = our_loss(case, backend.name)
    for factor in (1.0, -0.5, 3.0):
        leaves = case.leaves()
        upstream = factor * case.upstream
        with backend.on():
            grads = torch.autograd.grad(loss, list(leaves.values()), upstream, retain_graph=True)
        scaled = {name: factor * expected[name] for name in leaves}
        assert_same(dict(zip(leaves, grads, strict=True)), scaled, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("function", [None, "users_own"])
@over_fused
def test_second_backward_after_the_weight_moved_raises(backend, function):
    """It would have to be computed from weights that are gone."""
    case = make_case((7,), function=function)
    with backend.on():
        loss = our_loss(case, backend.name)
        loss.backward(retain_graph=True)
        with torch.no_grad():
            case.weight.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@over_reductions
@over_backends
def test_gradients_accumulate(backend, reduction):
    """Two backward passes into .grad add up: nobody owns the first gradient's memory twice."""
    case = make_case((7,), function="plif7", reduction=reduction)
    case.upstream = torch.ones_like(case.upstream)
    expected = truth(case, backend)
    for _ in range(2):
        with backend.on():
            our_loss(case, backend.name).sum().backward()
    for name, leaf in case.leaves().items():
        torch.testing.assert_close(leaf.grad, 2 * expected[name], rtol=1e-9, atol=1e-12)


@over_reductions
@pytest.mark.parametrize("function", [None, "plif7", "users_own"])
@over_fused
def test_second_derivatives_raise(backend, function, reduction):
    case = make_case((4,), function=function, reduction=reduction)
    with backend.on():
        loss = our_loss(case, backend.name).sum()
        with pytest.raises(RuntimeError, match='second derivatives .* use backend="reference"'):
            torch.autograd.grad(loss, case.input, create_graph=True)


@pytest.mark.parametrize("function", [None, "plif7", "network", "users_own"])
def test_reference_has_second_derivatives(function):
    """The error of the fused losses sends people here."""
    case = make_case((2,), 2, 3, function=function)

    def loss(input, weight):
        case.input, case.weight = input, weight
        return our_loss(case, "reference")

    assert torch.autograd.gradgradcheck(loss, (case.input, case.weight))


@over_reductions
@pytest.mark.parametrize("function", [f for f in ALL_FUNCTIONS if f != "plif1e5"])
@pytest.mark.parametrize("backend", [REFERENCE, CHUNKED], ids=lambda b: b.id)
def test_gradcheck(backend, function, reduction):
    """Finite differences of the loss itself, for every leaf; PLIFs small enough to step through.

    Not over the kernels, which take no float64: `test_losses.test_float32` compares every function there.
    """
    case = make_case((3,), 2, 4, function=function, reduction=reduction)
    leaves = case.leaves()
    if function == "plif1001":
        leaves.pop("function.v")

    def loss(*_):
        # gradcheck moves the leaves in place, the function's parameters among them.
        return our_loss(case, backend.name)

    with backend.on():
        assert torch.autograd.gradcheck(loss, tuple(leaves.values()), nondet_tol=ORDER)


@over_reductions
@pytest.mark.parametrize("dense", [False, True])
@over_backends
def test_gradcheck_mixture(backend, dense, reduction):
    case = make_case(
        (3,), 2, 4, components=2, function="plif7", dense=dense, reduction=reduction, z_loss=0.1,
        label_smoothing=0.1, weight=True,
    )  # fmt: skip
    with backend.on():
        assert torch.autograd.gradcheck(
            lambda *_: our_loss(case, backend.name), tuple(case.leaves().values()), nondet_tol=ORDER
        )


@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("function", [None, "plif1001", "users_own"])
@over_backends
def test_batch_split_in_two(backend, function, components):
    """The sum over a batch is the sum over its halves, gradients included."""
    case = make_case((9,), components=components, function=function, reduction="sum")
    case.upstream = None
    whole = ours(case, backend)
    parts = []
    for chosen in (slice(0, 4), slice(4, 9)):
        half = case.to(torch.float64)
        half.input = half.input[chosen]
        half.target = half.target[chosen]
        if components:
            half.log_prior = half.log_prior[chosen]
        parts.append((half, chosen))
    for name in ("loss", "weight", "bias", *(n for n in whole if n.startswith("function."))):
        total = sum(self_contained(half, backend)[name] for half, _ in parts)
        assert_same({name: total}, {name: whole[name]}, rtol=1e-12, atol=1e-13)
    for half, chosen in parts:
        rows = self_contained(half, backend)["input"]
        assert_same({"input": rows}, {"input": whole["input"][chosen]}, rtol=1e-12, atol=1e-13)


def self_contained(case, backend):
    """A part's gradients; its slices become leaves of their own."""
    return ours(case.to(torch.float64), backend)


@pytest.mark.parametrize("chunk", [1, 200, 700, 10**9])
@pytest.mark.parametrize("function", [None, "scale", "plif7", "users_own"])
@over_fused
def test_the_chunk_does_not_matter(backend, function, chunk):
    case = make_case((23,), function=function, dtype=torch.float32, ignore_index=2)
    with backend.on(chunk):
        result = gradients(our_loss(case, backend.name), case)
    assert_same(result, truth(case, backend), rtol=2e-6, atol=1e-8)


@over_backends
def test_no_grad_and_inference_mode(backend):
    case = make_case((7,), function="plif7")
    expected = naive(case, backend)["loss"]
    with backend.on(), torch.no_grad():
        quiet = our_loss(case, backend.name)
    with backend.on(), torch.inference_mode():
        inferred = our_loss(case, backend.name)
    assert not quiet.requires_grad and not inferred.requires_grad
    torch.testing.assert_close(quiet, expected)
    torch.testing.assert_close(inferred.clone(), expected)


@over_backends
def test_gradient_reaches_what_made_the_input(backend):
    """The ops sit in the middle of a graph: input and weight need not be leaves."""
    case = make_case((7,), function="plif7")
    scale = torch.tensor(1.5, dtype=torch.float64, device=DEVICE, requires_grad=True)
    with backend.on():
        loss = uncork.linear_cross_entropy(
            case.input * scale, case.weight * scale, case.target, function=case.function, backend=backend.name
        )
        loss.backward()
    expected = case.to(torch.float64)
    expected.bias, factor = None, scale.detach().clone().requires_grad_()
    expected.input, expected.weight = expected.input * factor, expected.weight * factor
    naive_loss(expected, naive_scores(expected, backend)).backward()
    torch.testing.assert_close(scale.grad, factor.grad)
