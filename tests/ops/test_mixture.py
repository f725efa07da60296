"""Mixtures: one component is the plain loss, several are the naive formula, far tails are not floored."""

import pytest
import torch
from torch.nn.functional import linear, nll_loss

import uncork
from tests.helpers import (
    DEVICE,
    assert_as_accurate_as_torch,
    assert_same,
    make_case,
    naive,
    ours,
    over_backends,
    over_fused,
    truth,
)
from uncork import ops
from uncork.ops.scores import over_components


over_reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


@over_reductions
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function", [None, "plif7", "users_own"])
@over_backends
def test_one_component_is_the_plain_loss(backend, function, dtype, dense, reduction):
    case = make_case(
        (7,), components=1, function=function, dense=dense, reduction=reduction, dtype=dtype, z_loss=0.01
    )
    case.log_prior = torch.zeros_like(case.log_prior).requires_grad_()
    mixed = ours(case, backend)
    assert mixed.pop("log_prior").shape == (7, 1)
    case.input, case.log_prior = case.input.detach()[:, 0].clone().requires_grad_(), None
    single = ours(case, backend)
    mixed["input"] = mixed["input"][:, 0]
    rtol = 1e-12 if dtype == torch.float64 else 2e-6
    assert_same(mixed, single, rtol=rtol, atol=rtol / 100)


@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@over_backends
def test_the_prior_of_one_component_counts(backend, dtype, dense):
    """Though it has nothing to share: what is passed is added."""
    case = make_case((3,), components=1, dense=dense, reduction="none", dtype=dtype)
    case.log_prior = torch.tensor([[-0.5], [0.0], [-2.0]], dtype=dtype, device=DEVICE).requires_grad_()
    rtol = 1e-12 if dtype == torch.float64 else 2e-6
    assert_same(ours(case, backend), naive(case), rtol=rtol, atol=rtol)


@over_backends
def test_equals_the_mixture_of_softmaxes(backend):
    """-log sum_k pi_k p_k(y), written with probabilities."""
    case = make_case((6,), components=3, bias=True, reduction="none")
    p = linear(case.input, case.weight, case.bias).softmax(-1)
    mixture = (case.log_prior.exp()[..., None] * p).sum(-2)
    expected = nll_loss(mixture.log(), case.target, reduction="none")
    with backend.on():
        loss = uncork.mixture_cross_entropy(
            case.input, case.log_prior, case.weight, case.target, linear_bias=case.bias,
            reduction="none", backend=backend.name,
        )  # fmt: skip
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("far", [30.0, 80.0, 1000.0])
@over_backends
def test_no_floor_under_probabilities(backend, far, dtype):
    """Published code adds 1e-8 to the probability, which ends the loss at 18.4 and its gradient with it."""
    words, width = 5, 3
    here = {"dtype": dtype, "device": DEVICE}
    weight = torch.zeros(words, width, **here)
    bias = torch.zeros(words, **here)
    bias[0] = -far
    latent = torch.randn(4, 2, width, **here)
    log_prior = torch.full((4, 2), 0.5, **here).log()
    target = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    bias.requires_grad_()
    with backend.on():
        loss = uncork.mixture_cross_entropy(
            latent, log_prior, weight, target, linear_bias=bias, backend=backend.name
        )
        loss.backward()
    expected = far + torch.tensor(words - 1 + torch.exp(torch.tensor(-far)).item()).double().log()
    torch.testing.assert_close(loss.double().cpu(), expected, rtol=1e-6, atol=0)
    # The reference's responsibilities are differences of numbers of the size of the loss.
    rough = far * torch.finfo(dtype).eps if backend.exact else 0.0
    torch.testing.assert_close(bias.grad[0].cpu(), torch.tensor(-1.0, dtype=dtype), rtol=1e-6 + rough, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@over_backends
def test_a_component_that_is_off(backend, dtype):
    """A prior of -inf, a component given no mass at all: its row adds nothing and nothing becomes NaN."""
    case = make_case((5,), components=3, dtype=dtype)
    prior = case.log_prior.detach().clone()
    prior[:, 1] = -torch.inf
    case.log_prior = prior.log_softmax(-1)
    found = ours(case, backend)
    rest = case.to(dtype)
    rest.input = case.input.detach()[:, [0, 2]].clone().requires_grad_()
    rest.log_prior = case.log_prior[:, [0, 2]]
    expected = ours(rest, backend)
    assert not found["input"][:, 1].any()
    found["input"] = found["input"][:, [0, 2]]
    rtol = 1e-12 if dtype == torch.float64 else 2e-6
    assert_same(found, expected, rtol=rtol, atol=rtol / 100)


@over_backends
def test_one_component_explains_everything(backend):
    """Responsibilities of 1 and of exp(-200): the gradient goes to the component that said the word."""
    case = make_case((4,), components=2, dtype=torch.float32, spread=0.1)
    with torch.no_grad():
        case.input.zero_()
        case.input[:, 0, 0] = 1.0
        case.weight.zero_()
        case.weight[:, 0] = -200.0
        case.weight[case.target, 0] = 0.0
        case.bias.zero_()
    found, right = ours(case, backend), truth(case)
    assert_same(found, right, rtol=1e-6, atol=1e-8)
    assert right["input"][:, 1].abs().max() > 0


@pytest.mark.parametrize("components", [2, 15])
@pytest.mark.parametrize("function", [None, "plif1001"])
@over_backends
def test_odd_sizes(backend, function, components):
    case = make_case(
        (63 // components + 5,), 123, 207, components=components, function=function, dtype=torch.float32
    )
    assert_as_accurate_as_torch(case, backend, chunk=100_000)


@over_fused
def test_prior_of_another_dtype(backend):
    """Mixture weights stay in float32 beside bfloat16 latents."""
    case = make_case((5,), components=3, function="plif7", dtype=torch.bfloat16)
    case.log_prior = case.log_prior.detach().float().requires_grad_()
    found = ours(case, backend)
    assert found["log_prior"].dtype == torch.float32 and found["input"].dtype == torch.bfloat16
    assert_same(
        {"log_prior": found["log_prior"]}, {"log_prior": truth(case)["log_prior"].float()}, 1e-5, 1e-7
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("function", [None, "plif7", "users_own"])
def test_scores_are_minus_the_reference_loss_of_every_word(function, components, masked):
    case = make_case((2, 3), components=components, function=function)
    words = len(case.weight)
    if masked:
        with torch.no_grad():
            case.bias[words - 1] = -torch.inf
    shared = (case.input, case.log_prior, case.weight)
    scores = ops.mixture_scores(*shared, case.bias, case.function)
    naive = linear(case.input, case.weight, case.bias)
    naive = (naive if function is None else case.function(naive)).log_softmax(-1) + case.log_prior[..., None]
    torch.testing.assert_close(scores, naive.logsumexp(-2), rtol=1e-14, atol=1e-14)
    assert torch.equal(scores[..., -1].isinf(), torch.full((2, 3), masked, device=DEVICE))
    for word in range(words):
        loss = uncork.mixture_cross_entropy(
            *shared, torch.full((2, 3), word, device=DEVICE), linear_bias=case.bias,
            function=case.function, reduction="none", backend="reference",
        )  # fmt: skip
        torch.testing.assert_close(scores[..., word], -loss, rtol=1e-12, atol=1e-12)


def test_scores_of_a_component_that_is_not_finite():
    case = make_case((4,), components=3, dtype=torch.float32)
    with torch.no_grad():
        case.input[2, 1, 0] = torch.nan
    shared = (case.input, case.log_prior, case.weight, case.bias, None)
    assert ops.mixture_scores(*shared)[2].isnan().all()
    with uncork.detect_nonfinite(), pytest.raises(FloatingPointError, match="token 2, component 1, word 0"):
        ops.mixture_scores(*shared)


def test_scores_need_a_prior_for_each_component():
    """One that broadcasts would be another mixture."""
    case = make_case((4,), components=3)
    with pytest.raises(ValueError, match=r"`log_prior` must have the leading shape.*\(4, 3\), got \(4, 1\)"):
        ops.mixture_scores(case.input, case.log_prior[:, :1], case.weight, case.bias, None)


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("components", [2, 15])
def test_the_sum_over_components_is_as_close_to_float64_as_torchs(components, spread):
    log_p = (spread * torch.randn(50, components, 31, device=DEVICE)).log_softmax(-1)
    upstream = torch.randn(50, 31, device=DEVICE)

    def gradient(sum_over, dtype):
        leaf = log_p.to(dtype).requires_grad_()
        return torch.autograd.grad((sum_over(leaf) * upstream).sum(), leaf)[0].double()

    by_torch = lambda x: x.logsumexp(-2)
    torch.testing.assert_close(over_components(log_p), by_torch(log_p), rtol=1e-6, atol=0)
    right = gradient(by_torch, torch.float64)
    error = lambda sum_over: (gradient(sum_over, torch.float32) - right).square().mean()
    assert error(over_components) <= error(by_torch)
