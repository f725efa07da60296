"""What is particular to the kernels: which problems they take, their blocks, their sums per knot.

That they compute what every backend computes is the battery's business, which runs over them where they are
available: in Triton's interpreter with TRITON_INTERPRET=1, on a GPU with UNCORK_TEST_DEVICE=cuda, and in both
cases selected by `-k triton`.
"""

import contextlib

import pytest
import torch

import uncork
from tests import every_kernel
from tests.helpers import (
    CHUNKED,
    DEVICE,
    TRITON,
    assert_as_accurate_as_torch,
    make_case,
    our_loss,
    ours,
    over_functions,
    truth,
)
from uncork import functions
from uncork.ops.custom import PASSES


pytestmark = pytest.mark.skipif(
    bool(TRITON.missing),
    reason="needs TRITON_INTERPRET=1, as in the run of its own in `make test`, or UNCORK_TEST_DEVICE=cuda",
)

over_low_dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:]
)


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch refuses matrix products without it
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def pass_of(case):
    """The name of what the chunk loop runs for this case."""
    made = []
    make = PASSES["triton"]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PASSES, "triton", lambda: lambda *a: made.append(make(*a)) or made[-1])
        ours(case, TRITON)
    return {type(each).__name__ for each in made}


@pytest.mark.parametrize(
    "target",
    [{}, {"dense": True}, {"components": 2}, {"dense": True, "components": 2}],
    ids=["words", "dense", "mixture", "dense mixture"],
)
@over_low_dtypes
@over_functions
def test_the_kernels_are_what_runs(function, dtype, target):
    case = make_case((2,), 3, 5, function=function, dtype=dtype, z_loss=0.1, **target)
    assert pass_of(case) == {"DenseMixturePass" if len(target) == 2 else "TritonPass"}


@pytest.mark.parametrize(
    "other",
    [
        {"label_smoothing": 0.1},
        {"dense": True, "weight": True},
        {"dense": True, "label_smoothing": 0.1, "weight": True},
        {"components": 3, "label_smoothing": 0.1},
    ],
    ids=lambda option: "+".join(option),
)
def test_targets_spread_over_words_are_made_distributions_for_the_kernels(other):
    case = make_case((2,), 3, 5, function="plif7", dtype=torch.float32, **other)
    assert pass_of(case) == {"SpreadPass"}


def test_float64_falls_to_the_torch_pass():
    """That it is right is in the battery."""
    assert pass_of(make_case((2,), 3, 5, function="plif7", dtype=torch.float64)) == {"TorchPass"}


def test_memory_is_poisoned():
    """Every test of this folder runs so; here is the proof that what the kernels allocate is meant."""
    assert torch.empty(3, device=DEVICE).isnan().all()
    assert torch.zeros(3, device=DEVICE).new_empty(2, dtype=torch.float32).isnan().all()
    assert torch.empty_like(torch.zeros(3, device=DEVICE)).isnan().all()


@pytest.mark.parametrize(
    "target",
    [{}, {"dense": True}, {"components": 3}, {"dense": True, "components": 3}],
    ids=["words", "dense", "mixture", "dense mixture"],
)
@pytest.mark.parametrize("function", [None, "scale", "sigsoftmax", "softcap", "plif1001"])
def test_rows_of_several_blocks(function, target):
    """9,001 words: two full blocks or more, and a rest that is no multiple of anything.

    Chunks of two tokens: a product of one row is summed word after word on some CPUs, torch's own is not.
    """
    case = make_case((4,), 5, 9001, function=function, dtype=torch.float32, reduction="none", **target)
    assert_as_accurate_as_torch(case, TRITON, chunk=90_000)


@over_low_dtypes
@pytest.mark.parametrize("function", ["plif7", "plif1001", "plif1e5"])
def test_low_precision_in_several_blocks(function, dtype):
    """The gradient is written over the logits in half their width: no block may run over the next."""
    case = make_case((4,), 5, 9001, function=function, dtype=dtype, reduction="none")
    assert_as_accurate_as_torch(case, TRITON, chunk=90_000)


@pytest.mark.parametrize("knots", [2, 3, 1_000_000])
@pytest.mark.parametrize("components", [None, 2])
def test_any_number_of_knots(components, knots):
    plif = functions.PLIF(knots, 4.1, "random", seed=0)
    case = make_case((5,), 4, 17, components, function=plif, dtype=torch.float32)
    # A float32 logit may fall on either side of a knot: the smooth gradient of v is what must agree.
    right, found = truth(case), ours(case, TRITON)
    assert abs(found["loss"] - right["loss"]) < 2e-6 * (1 + abs(right["loss"]))
    total = right["function.v"].abs().sum()
    moved = (found["function.v"] - right["function.v"]).cumsum(0).abs().max()
    assert moved <= 1e-4 * total
    if knots < 10:
        assert (found["function.v"] - right["function.v"]).abs().sum() < 1e-5 * total


@pytest.mark.parametrize("spread", [60.0, 2000.0])
@pytest.mark.parametrize("function", ["plif7", "plif1001"])
def test_logits_far_outside_the_bound(function, spread):
    """Beyond the ends of the table the sums per knot take a way of their own."""
    case = make_case((6,), 5, 19, function=function, dtype=torch.float32, spread=spread, reduction="none")
    assert_as_accurate_as_torch(case, TRITON)


@pytest.mark.parametrize("function", ["plif7", "plif1001", "plif1e5", "tabulated"])
def test_every_logit_in_one_interval(function):
    """The worst contention: all logits equal, so that two knots collect every gradient."""
    tokens, words = (16, 33) if TRITON.slow else (1024, 5003)
    case = make_case((tokens,), 4, words, function=function, dtype=torch.float32)
    with torch.no_grad():
        case.input.fill_(0.25)
        case.weight.fill_(0.25)
        case.bias.fill_(0.0625)
    right, found = truth(case, TRITON), ours(case, TRITON)
    for name in [name for name in right if name.startswith("function.")]:
        # What cancels is as large as the probabilities themselves, which sum to 1.
        torch.testing.assert_close(found[name].double(), right[name], rtol=1e-5, atol=1e-6)


def test_strided_targets_and_weights():
    case = make_case((6,), 5, 12, dtype=torch.float32, weight=True)
    case.target = torch.tensor(3, device=DEVICE).expand(6)
    case.options["weight"] = case.options["weight"].repeat_interleave(2)[::2]
    assert_as_accurate_as_torch(case, TRITON)


def test_a_strangers_module_is_tabulated():
    """Off from the module itself by no more than the stated d/2 max|f''| in slope, d = 4e-4."""
    case = make_case(function="users_own", dtype=torch.float32)
    right, found = truth(case), ours(case, TRITON)
    assert abs(found["loss"] - right["loss"]) < 1e-6 * (1 + abs(right["loss"]))
    torch.testing.assert_close(found["input"].double(), right["input"], rtol=1e-3, atol=1e-5)


@over_functions
def test_everything_ignored_and_nothing_given(function):
    """Sums per knot have no size to be measured in when there is nothing to sum."""
    case = make_case((3,), function=function, dtype=torch.float32)
    case.target.fill_(-100)
    found = ours(case, TRITON)
    assert found["loss"].isnan()
    assert all((g == 0).all() for name, g in found.items() if name != "loss")
    empty = make_case((0,), function=function, dtype=torch.float32, reduction="sum")
    assert all((value == 0).all() for value in ours(empty, TRITON).values())


@pytest.mark.parametrize("reduction, components", [("mean", None), ("none", 3)], ids=str)
@over_functions
def test_deterministic_algorithms_repeat_bit_for_bit(function, reduction, components, deterministic):
    tokens = 4 if TRITON.slow else 300
    case = make_case(
        (tokens,), 8, 65, components, function=function, dtype=torch.float32, reduction=reduction, z_loss=0.01
    )
    first, second = ours(case, TRITON), ours(case, TRITON)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("function", ["scale", "plif7", "plif1001", "network"])
def test_deterministic_sums_are_right(function, deterministic):
    case = make_case((7,), 8, 65, function=function, dtype=torch.float32, weight=True)
    assert_as_accurate_as_torch(case, TRITON)


@pytest.mark.parametrize("components", [None, 2], ids=["softmax", "mixture"])
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("size", [1e3, 3e6, 1e12, 1e30])
def test_deterministic_sums_of_logits_at_any_distance(size, dense, components, deterministic):
    """However far beyond the table: what goes to its ends must not wrap around in an integer."""
    case = make_case((4,), 8, 13, components, function="plif7", dtype=torch.float32, dense=dense)
    with torch.no_grad():
        case.input.mul_(size)
    found = ours(case, TRITON)
    torch.use_deterministic_algorithms(False)
    expected = ours(case, CHUNKED)
    for name in expected:
        if name.startswith("function"):
            # The middle is a difference of the ends, in both.
            atol = 1e-6 * expected[name].abs().max().item()
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=atol)


@pytest.mark.parametrize("components", [None, 2], ids=["softmax", "mixture"])
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("where", ["input", "upstream"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("function", ["plif7", "network"])
def test_deterministic_sums_do_not_hide_what_is_not_finite(
    function, bad, where, dense, components, deterministic
):
    """A function trained alone has no other gradient by which a loss scaler could notice."""
    case = make_case(
        (4,), 8, 13, components, function=function, dtype=torch.float32, dense=dense, reduction="none"
    )
    with torch.no_grad():
        if where == "input":
            case.input[(2, *[0] * (case.input.dim() - 1))] = bad
    case.function.zero_grad()
    upstream_N = torch.ones(4, device=DEVICE)
    upstream_N[1] = bad if where == "upstream" else 1.0
    with TRITON.on():
        our_loss(case, TRITON.name).backward(upstream_N)
    assert not any(p.grad.isfinite().all() for p in case.function.parameters())


@pytest.mark.parametrize("factor", [1.0, -0.3])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_gradients_are_scaled_together(count, factor):
    from uncork.ops.triton.kernel_pass import scale_in_place

    dtypes = [torch.float32, torch.float64, torch.float16]
    given = [torch.randn(n + 4095, device=DEVICE).to(dtypes[n % 3]) for n in range(count)]
    upstream = torch.tensor(factor, device=DEVICE)
    wide = lambda x: x.to(torch.promote_types(x.dtype, torch.float32))
    expected = [(wide(x) * upstream.to(wide(x).dtype)).to(x.dtype) for x in given]
    scale_in_place(given, upstream)
    for x, right in zip(given, expected, strict=True):
        torch.testing.assert_close(x, right, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("dense", [False, True])
def test_a_frozen_scale_writes_nothing_of_its_own(components, dense):
    """Its derivatives have no memory then: what they would be written to belongs to something else."""
    case = make_case((6,), 5, 12, components, function="scale", dtype=torch.float32, dense=dense)
    case.function.requires_grad_(False)
    right, found = truth(case, TRITON), ours(case, TRITON)
    for name, value in right.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-6)


def test_other_launches_are_on_the_device_of_their_tensors_too(monkeypatch):
    from uncork.ops.triton.kernel_pass import scale_in_place
    from uncork.ops.triton.knots import knot_values

    given = []
    monkeypatch.setattr(torch.cuda, "device_of", lambda t: given.append(t) or contextlib.nullcontext())
    factor, v = torch.tensor(2.0, device=DEVICE), torch.randn(7, device=DEVICE, requires_grad=True)
    scale_in_place([torch.ones(3, device=DEVICE)], factor)
    knot_values(v, 2.0).sum().backward()
    assert [t.data_ptr() for t in given] == [factor.data_ptr(), v.data_ptr(), v.data_ptr()]


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("components", [None, 3])
def test_the_budget_holds_the_copy_of_dense_targets(components, given, strided, monkeypatch):
    """Kernels read rows of float32; others are copied, chunk by chunk."""
    from uncork.ops.triton import chunk_pass

    case = make_case((12,), words=20, components=components, dense=True, dtype=torch.float32)
    case.target = case.target.to(given)
    if strided:
        case.target = case.target.T.contiguous().T
    chunks, make = [], chunk_pass.make_pass

    def recording(*arguments):
        made = make(*arguments)
        run = made.run
        record = lambda part, *rest: chunks.append(len(part.latent_NKD)) or run(part, *rest)
        monkeypatch.setattr(made, "run", record)
        return made

    monkeypatch.setattr(chunk_pass, "make_pass", recording)
    with TRITON.on(1300):
        our_loss(case, TRITON.name)
    copied = strided or given != torch.float32
    # Logits, of mixtures two numbers more for each word, and the copy.
    per_word = 4 if components is None else 3 * 4 + 8
    assert max(chunks) * 20 * (per_word + 4 * copied) <= 1300


def test_backend_is_refused_where_it_cannot_run():
    x = torch.randn(2, 3, device="meta")
    with pytest.raises(ValueError, match="`backend` must be able to run"):
        uncork.linear_cross_entropy(x, x, torch.zeros(2, device="meta").long(), backend="triton")


def test_what_the_sanitizers_run_is_right(monkeypatch):
    monkeypatch.setattr(every_kernel, "DEVICE", DEVICE)
    monkeypatch.setattr(every_kernel, "LONG", 1301)
    every_kernel.losses()
    every_kernel.training_steps()
