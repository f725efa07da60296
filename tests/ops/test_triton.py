"""The GPU kernels, in Triton's interpreter or on a GPU.

The interpreter is chosen when Triton is imported, so these tests need a run of their own: see the Makefile.
On a GPU: UNCORK_TEST_DEVICE=cuda pytest tests/ops/test_triton.py
"""

import os

import pytest
import torch

import uncork
from tests.helpers import (
    TRITON,
    assert_as_accurate_as_torch,
    assert_same,
    gradients,
    make_case,
    naive,
    our_loss,
    ours,
    rms,
    truth,
)
from uncork import functions
from uncork.ops import triton
from uncork.ops.custom import PASSES
from uncork.ops.torch_pass import TorchPass


DEVICE = os.environ.get("UNCORK_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(
    bool(triton.available(torch.device(DEVICE))),
    reason="needs TRITON_INTERPRET=1, as in the run of its own in `make test`, or UNCORK_TEST_DEVICE=cuda",
)

IN_KERNEL = ["identity", "scale", "sigsoftmax", "generalized", "softcap", "plif7", "plif1001", "network"]
over_functions = pytest.mark.parametrize("function", IN_KERNEL)


def on_device(case):
    """The same case on the device under test, with leaves of its own."""
    if DEVICE == "cpu":
        return case
    move = lambda t: None if t is None else t.detach().to(DEVICE).requires_grad_(t.requires_grad)
    case.input, case.weight, case.bias = move(case.input), move(case.weight), move(case.bias)
    case.log_prior, case.target = move(case.log_prior), case.target.to(DEVICE)
    case.function = case.function and case.function.to(DEVICE)
    case.options = {k: v.to(DEVICE) if torch.is_tensor(v) else v for k, v in case.options.items()}
    case.upstream = case.upstream.to(DEVICE)
    return case


def test_the_kernels_are_what_runs():
    case = on_device(make_case(function="plif7", dtype=torch.float32))
    problem_pass = []
    make = PASSES["triton"]()

    def spy(*arguments):
        problem_pass.append(make(*arguments))
        return problem_pass[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PASSES, "triton", lambda: spy)
        our_loss(case, "triton")
    assert [type(p).__name__ for p in problem_pass] == ["TritonPass"]


def assert_accurate_over_seeds(make):
    """As `assert_as_accurate_as_torch`, errors added up over several problems.

    Numbers as rough as bfloat16 are right by luck now and then.
    """
    error, allowed = {}, {}
    for seed in range(5):
        case = on_device(make(seed))
        right, torchs, found = truth(case, False), naive(case, False), ours(case, TRITON)
        for name, value in right.items():
            error[name] = error.get(name, 0.0) + rms(found[name] - value) ** 2
            step = torch.finfo(case.input.dtype).eps * rms(value)
            allowed[name] = allowed.get(name, 0.0) + (2 * rms(torchs[name] - value) + step) ** 2
    for name in error:
        assert error[name] <= allowed[name], f"{name}: {error[name] ** 0.5} > {allowed[name] ** 0.5}"


@over_functions
@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_as_accurate_as_torch(function, components, dtype):
    options = {"weight": True, "z_loss": 0.01, "ignore_index": 4, "reduction": "none"}
    if dtype == torch.float32:
        case = make_case((7,), 6, 29, components, function, dtype=dtype, **options)
        assert_as_accurate_as_torch(on_device(case), TRITON, chunk=1200)
        return
    assert_accurate_over_seeds(
        lambda seed: make_case((4,), 6, 29, components, function, dtype=dtype, seed=seed, **options)
    )


@over_functions
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_reductions(function, reduction):
    case = make_case((2, 3), 5, 13, function=function, dtype=torch.float32, reduction=reduction)
    assert_as_accurate_as_torch(on_device(case), TRITON)


@over_functions
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_dense_targets(function, dtype):
    options = {"dense": True, "z_loss": 0.02, "reduction": "none"}
    make = lambda seed: make_case((6,), 5, 23, function=function, dtype=dtype, seed=seed, **options)
    assert not isinstance(_pass_of(on_device(make(0))), TorchPass)
    if dtype == torch.float32:
        assert_as_accurate_as_torch(on_device(make(0)), TRITON, chunk=500)
    else:
        assert_accurate_over_seeds(make)


def test_odd_sizes_in_several_blocks():
    """507 words are more than one block of a small launch; 123 is no power of anything."""
    case = make_case((9,), 123, 507, function="plif1001", dtype=torch.float32, spread=1.0)
    assert_as_accurate_as_torch(on_device(case), TRITON, chunk=8_000)


@pytest.mark.parametrize("knots", [2, 3, 1_000_000])
def test_any_number_of_knots(knots):
    plif = functions.PLIF(knots, 4.1, "random", seed=0)
    case = make_case((5,), 4, 17, dtype=torch.float32)
    case.function = plif
    # A float32 logit may fall on either side of a knot: the smooth gradient of v is what must agree.
    case = on_device(case)
    right, found = truth(case), ours(case, TRITON)
    assert abs(found["loss"] - right["loss"]) < 2e-5 * (1 + abs(right["loss"]))
    total = right["function.v"].abs().sum()
    assert (found["function.v"] - right["function.v"]).abs().sum() < (1e-4 if knots < 10 else 0.05) * total


def test_logits_far_outside_the_bound():
    case = make_case((6,), 5, 19, function="plif1001", dtype=torch.float32, spread=60.0)
    assert_as_accurate_as_torch(on_device(case), TRITON)


def test_every_logit_in_one_interval():
    """The worst contention: all logits equal, so that two knots collect every gradient."""
    case = make_case((16,), 4, 33, function="plif7", dtype=torch.float32)
    with torch.no_grad():
        case.input.fill_(0.25)
        case.weight.fill_(0.25)
        case.bias.zero_()
    case = on_device(case)
    right, found = truth(case), ours(case, TRITON)
    # What cancels is as large as the probabilities themselves, which sum to 1.
    torch.testing.assert_close(found["function.v"].double(), right["function.v"], rtol=1e-5, atol=1e-6)


def test_strided_targets_and_weights():
    case = on_device(make_case((6,), 5, 12, dtype=torch.float32, weight=True))
    case.target = torch.tensor(3, device=DEVICE).expand(6)
    case.options["weight"] = case.options["weight"].repeat_interleave(2)[::2]
    assert_as_accurate_as_torch(case, TRITON)


def test_frozen_function_and_partial_gradients():
    for frozen in ("function", "input", "weight"):
        case = make_case(function="plif1001", dtype=torch.float32)
        if frozen == "function":
            case.function.requires_grad_(False)
        else:
            getattr(case, frozen).requires_grad_(False)
        assert_as_accurate_as_torch(on_device(case), TRITON)


@pytest.mark.parametrize(
    "option", [{"label_smoothing": 0.1}, {"dense": True, "components": 2}, {"dtype": torch.float64}]
)
def test_what_no_kernel_takes_still_works(option):
    case = on_device(make_case(function="plif7", **({"dtype": torch.float32} | option)))
    if case.input.dtype == torch.float64:  # where torch may hit zero error, a bound of its own
        assert_same(ours(case, TRITON), truth(case, False), rtol=1e-13, atol=1e-15)
    else:
        assert_as_accurate_as_torch(case, TRITON)


def test_other_cases_fall_to_the_torch_pass():
    case = make_case(function="plif7", dtype=torch.float64)
    assert isinstance(_pass_of(on_device(case)), TorchPass)


def _pass_of(case):
    made = []
    make = PASSES["triton"]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PASSES, "triton", lambda: lambda *a: made.append(make(*a)) or made[-1])
        our_loss(case, "triton")
    return made[0]


def test_a_strangers_module_is_tabulated():
    """Off from the module itself by no more than the stated d/2 max|f''| in slope, d = 4e-4."""
    case = on_device(make_case(function="users_own", dtype=torch.float32))
    right, found = truth(case), ours(case, TRITON)
    assert abs(found["loss"] - right["loss"]) < 1e-6 * (1 + abs(right["loss"]))
    torch.testing.assert_close(found["input"].double(), right["input"], rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns of what a GPU does in silence
def test_ignored_and_empty():
    case = make_case(function="plif7", dtype=torch.float32)
    case.target.fill_(-100)
    case = on_device(case)
    found = gradients(our_loss(case, "triton"), case)
    assert found["loss"].isnan()
    assert all((g == 0).all() for name, g in found.items() if name != "loss")
    empty = on_device(make_case((0,), function="plif7", dtype=torch.float32, reduction="sum"))
    assert our_loss(empty, "triton") == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_logits_are_nan_and_nothing_else():
    case = make_case(function="plif7", dtype=torch.float32)
    with torch.no_grad():
        case.input[2] = torch.nan
    case.options["reduction"] = "none"
    case.upstream = torch.ones(9)
    loss = our_loss(on_device(case), "triton")
    assert loss[2].isnan() and loss[[0, 1, 3, 4, 5, 6, 7, 8]].isfinite().all()


def test_deterministic_sums_repeat_bit_for_bit():
    case = on_device(make_case((32,), 8, 65, function="plif1001", dtype=torch.float32))
    torch.use_deterministic_algorithms(True)
    try:
        first, second = ours(case, TRITON), ours(case, TRITON)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_backend_is_refused_where_it_cannot_run():
    with pytest.raises(ValueError, match="`backend` must be able to run"):
        x = torch.randn(2, 3, device="meta")
        uncork.linear_cross_entropy(x, x, torch.zeros(2, device="meta").long(), backend="triton")
