"""Words masked by a bias of minus infinity do not exist: in losses, in gradients, in a learned function's."""

import copy

import pytest
import torch

import uncork
from tests.helpers import DEVICE, REFERENCE, assert_same, make_case, ours, over_backends, over_fused
from uncork import functions


def assert_masked_words_do_not_exist(backend, function, dtype, words, components=None, dense=False):
    """The others share the mass, and gradients, a learned function's too, are those without these words."""
    case = make_case((9,), 5, words, components, function=function, dtype=dtype, dense=dense)
    kept = torch.arange(words, device=case.bias.device) % 3 != 1
    numbers = kept.cumsum(0) - 1
    if dense:
        target = case.target * kept / (case.target * kept).sum(-1, keepdim=True)
        right_target = target[:, kept]
    else:
        target = case.target.where(kept[case.target], 0)
        right_target = numbers[target]

    def gradients_of(weight, bias, target):
        leaves = [t.detach().clone().requires_grad_() for t in (case.input, weight, bias)]
        function = copy.deepcopy(case.function)
        options = {"linear_bias": leaves[2], "function": function, "backend": backend.name}
        with backend.on():
            if components is None:
                loss = uncork.linear_cross_entropy(*leaves[:2], target, **options)
            else:
                prior = case.log_prior.detach()
                loss = uncork.mixture_cross_entropy(leaves[0], prior, leaves[1], target, **options)
        parameters = [] if function is None else list(function.parameters())
        return loss, torch.autograd.grad(loss, [*leaves, *parameters])

    bias = torch.where(kept, case.bias.detach(), float("-inf"))
    loss, found = gradients_of(case.weight, bias, target)
    right_loss, right = gradients_of(case.weight[kept], bias[kept], right_target)
    torch.testing.assert_close(loss, right_loss)
    assert not found[1][~kept].any() and not found[2][~kept].any()
    shared = (found[0], found[1][kept], found[2][kept], *found[3:])
    for got, expected in zip(shared, right, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("words", [31, 301])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "function", [None, "sigsoftmax", "scale", "plif7", "plif1001", "network_skip", "network_exact"]
)
@over_backends
def test_words_masked_by_a_bias_of_minus_infinity_do_not_exist(backend, function, dtype, words):
    assert_masked_words_do_not_exist(backend, function, dtype, words)


@pytest.mark.parametrize(("components", "dense"), [(3, False), (3, True), (None, True)])
@pytest.mark.parametrize("function", [None, "scale", "plif7"])
@over_backends
def test_they_do_not_under_mixtures_and_distributions_either(backend, function, components, dense):
    assert_masked_words_do_not_exist(backend, function, torch.float32, 31, components, dense)


@over_fused
def test_the_table_of_a_bounded_network_falls_without_bound_and_so_masks(backend):
    assert_masked_words_do_not_exist(backend, "network", torch.float32, 301)


FLAT = {
    "28 units": lambda: functions.MonotoneNetwork(28, knots=2000),
    "31 units": lambda: functions.MonotoneNetwork(31, knots=2000),  # falls by a rounding at its right end
    "bound 60": lambda: functions.MonotoneNetwork(10, knots=2000, bound=60.0),
    "soft cap": lambda: functions.Tabulated(functions.SoftCap(0.5), knots=2000),
}


@over_fused
@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_table_that_is_flat_at_its_start_masks_too(backend, name, dtype):
    """Its first slope is 0 to rounding, or just below, and 0 times minus infinity would be NaN."""
    assert_masked_words_do_not_exist(backend, FLAT[name](), dtype, 31)


def masked_target(function, components, dtype, weight, dense=False, **options):
    """Word 3 is masked, of some weight, and the target of two tokens of five; or of all if dense."""
    case = make_case((5,), 5, 9, components, function=function, dtype=dtype, dense=dense, **options)
    with torch.no_grad():
        case.bias[3] = -torch.inf
    if not dense:
        case.target = torch.tensor([3, 1, 2, 3, 0], device=DEVICE)
        case.options["weight"] = torch.ones(9, dtype=case.bias.dtype, device=DEVICE)
        case.options["weight"][3] = weight
    return case


def over_masked_targets(test):
    test = pytest.mark.parametrize("function", [None, "scale", "sigsoftmax", "plif7"])(test)
    test = pytest.mark.parametrize("components", [None, 3])(test)
    test = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)(test)
    return over_backends(test)


@pytest.mark.parametrize(("reduction", "z_loss"), [("none", 0.0), ("mean", 0.1)])
@over_masked_targets
def test_a_masked_word_of_weight_0_adds_0(backend, function, components, dtype, reduction, z_loss):
    case = masked_target(function, components, dtype, 0.0, reduction=reduction, z_loss=z_loss)
    found, expected = ours(case, backend), ours(case, REFERENCE)
    assert all(torch.isfinite(g).all() for g in expected.values())
    if reduction == "none":
        assert found["loss"][0] == 0 and found["loss"][3] == 0
        assert not found["input"][[0, 3]].any()
    rtol = 1e-5 if dtype == torch.float32 else 2e-2
    assert_same(found, expected, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize(("dense", "z_loss"), [(False, 0.0), (False, 0.1), (True, 0.1)])
@over_masked_targets
def test_the_loss_of_a_masked_target_is_infinite(backend, function, components, dtype, dense, z_loss):
    """Gradients stay finite, but for those of a learned function, which are not defined."""
    case = masked_target(function, components, dtype, 1.0, dense, reduction="none", z_loss=z_loss)
    case.upstream = torch.tensor([0.5, 0.7, 1.1, -0.3, 0.9], device=DEVICE)
    found, expected = ours(case, backend), ours(case, REFERENCE)
    infinite = torch.ones(5, dtype=torch.bool, device=DEVICE) if dense else case.target == 3
    for loss_N in (found.pop("loss"), expected.pop("loss")):
        assert torch.equal(loss_N == torch.inf, infinite) and not loss_N.isnan().any()
    for given in (found, expected):
        given.pop("function.v", None)
        assert all(torch.isfinite(g).all() for g in given.values())
    rtol = 1e-5 if dtype == torch.float32 else 2e-2
    assert_same(found, expected, rtol=rtol, atol=rtol / 10)


@over_masked_targets
def test_a_mean_of_words_of_weight_0_is_nan_without_gradients(backend, function, components, dtype):
    case = masked_target(function, components, dtype, 1.0)
    case.options["weight"].zero_()
    found = ours(case, backend)
    assert found.pop("loss").isnan()
    assert not any(g.any() for g in found.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@over_backends
def test_a_bias_of_minus_infinity_under_a_cap(backend, dtype):
    """f is bounded, so the word keeps some mass; its slope is 0 there, and no gradient is NaN."""
    case = make_case((6,), words=9, function="softcap", dtype=dtype)
    case.target = case.target % 8
    with torch.no_grad():
        case.bias[8] = -torch.inf
    found = ours(case, backend)
    assert all(torch.isfinite(g).all() for g in found.values())
    assert not found["weight"][8].any()
