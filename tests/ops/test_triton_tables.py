"""The kernels that build a table and collect its gradient, against plain torch in float64."""

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from tests.backends import DEVICE, TRITON
from tests.ops import compressed


pytestmark = pytest.mark.skipif(
    bool(TRITON.missing),
    reason="needs TRITON_INTERPRET=1, as in the run of its own in `make test`, or UNCORK_TEST_DEVICE=cuda",
)


def plain_knots(v, bound):
    rise = softplus(v.double(), threshold=40.0) * (2.0 * bound / v.numel())
    return torch.cat([rise.new_zeros(1), rise.cumsum(0)]) - bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("intervals", "bound"), [(2, 20.0), (7, 3.3), (1024, 20.0), (5001, 13.37)])
def test_knot_values_and_their_gradient(intervals, bound, dtype):
    from uncork.ops.triton.knots import knot_values

    torch.manual_seed(0)
    v = (4.0 * torch.randn(intervals, device=DEVICE)).to(dtype).requires_grad_()
    upstream = torch.randn(intervals + 1, dtype=torch.float64, device=DEVICE)
    expected = plain_knots(v, bound)
    (right,) = torch.autograd.grad(expected, v, upstream)
    found = knot_values(v, bound)
    (grad,) = torch.autograd.grad(found, v, upstream)
    assert found.dtype == torch.float64 and grad.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-12)
    # The interpreter cuts off to bfloat16 where a GPU rounds: one step of the dtype, not half of one.
    torch.testing.assert_close(grad, right, rtol=max(torch.finfo(dtype).eps, 1e-12), atol=1e-12)


def test_knot_values_have_second_derivatives():
    from uncork.ops.triton.knots import knot_values

    torch.manual_seed(0)
    v = torch.randn(5, dtype=torch.float64, device=DEVICE, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda v: knot_values(v, 2.0), v)


@pytest.mark.parametrize("bound", [20.0, 1.3])
@pytest.mark.parametrize("intervals", [2, 3, 127, 5000, 5001])
def test_a_compressed_table_is_read_back(intervals, bound):
    """Slopes to 2^-12 and values to 2^-13 of their group's rise, unless they are marked as not held."""
    from uncork.ops.triton.compressed import compress

    random = np.random.default_rng(0)
    slopes = 10.0 ** random.uniform(-6.0, 3.0, intervals)
    slopes[random.random(intervals) < 0.1] = 0.0
    slopes[random.random(intervals) < 0.01] *= -1.0
    step = 2.0 * bound / intervals
    half = intervals // 2
    slopes[:half] = np.minimum(slopes[:half], 0.05 / (32 * step))  # gentle, and before f is high
    knots = np.concatenate([[0.0], np.cumsum(slopes * step)]) - bound
    pairs = torch.empty(intervals, 2, device=DEVICE)
    on_device = torch.from_numpy(knots).to(DEVICE)
    both_words = pairs.view(torch.int64).squeeze(1)
    codes, bases = (x.cpu().numpy() for x in compress(on_device, bound, both_words))
    both = np.stack([knots[:-1], np.diff(knots) / step], 1)
    np.testing.assert_allclose(pairs.cpu().numpy(), both, rtol=3e-7, atol=1e-38)
    assert len(codes) % 128 == 0 and len(bases) == len(codes) // 32
    value, slope = (x.astype(float) / np.log2(np.e) for x in compressed.read(codes, bases))
    held = ~np.isnan(slope)
    assert not held[[0, intervals - 1]].any() and not held[intervals:].any()
    value, slope, held = value[:intervals], slope[:intervals], held[:intervals]
    assert not (held & (slopes < 0)).any()
    right = knots[:-1] + (0.5 * slopes * step if intervals % 2 else 0.0)
    groups = np.array_split(right, range(32, intervals, 32))
    rise = np.repeat([np.ptp(part) for part in groups], [len(part) for part in groups])
    # Between the powers of 2 a unit is up to twice as coarse; float32 has its own.
    allowed = 2.0**-13 * rise * 1.02 + 4e-7 * np.abs(right)
    assert (np.abs(value - right) <= allowed)[held].all()
    assert (np.abs(slope - np.abs(slopes)) <= 1.001 * 2.0**-12 * slopes + 1e-38)[held].all()
    # Held is all but what falls, the ends, and groups that rise by 1/8 of log2(e) f or so.
    inner = (np.arange(intervals) > 0) & (np.arange(intervals) < intervals - 1)
    assert held[inner & (slopes >= 0) & (1.01 * rise + 2.0**-11 * np.abs(right) < 1.38 / 16)].all()
    assert held.any() or intervals < 4


@pytest.mark.parametrize("bound", [20.0, 1.3])
@pytest.mark.parametrize("intervals", [2, 3, 127, 5000, 5001])
def test_growth_of_the_exponential_is_read_back(intervals, bound):
    """exp(f - reference) f' in the middle of intervals to 2^-16 and their rise to 2^-14, unless not held."""
    from uncork.ops.triton.growth import growth

    step = 2.0 * bound / intervals
    rise = np.abs(np.random.default_rng(0).normal(0.0, 0.02, intervals)) * min(1.0, 200.0 * step)
    rise[::5], rise[1::7], rise[3::50] = 0.0, 0.0311, 0.2  # flat, steep and too steep
    rise[intervals // 2 + 1 :: 11] *= -1.0
    knots = np.concatenate([[-bound], -bound + np.cumsum(rise)])
    words = growth(torch.from_numpy(knots).to(DEVICE), bound).cpu().numpy()
    padded = -(-intervals // 4) * 4
    assert len(words) == padded + 4
    reference, *ones = words[padded:].view(np.float32)
    assert reference == np.float32(knots[intervals // 2]) and ones == [1.0, 1.0, 1.0]
    found = words[:intervals].view(np.float32).astype(float)
    inner = (np.arange(intervals) > 0) & (np.arange(intervals) < intervals - 1)
    above = 0.5 * (knots[1:] + knots[:-1]) - knots[intervals // 2]
    right = rise / step * np.exp(above)
    held = (
        inner & (rise >= 0.0) & (rise < 255.5 / 8192) & ((rise == 0.0) | ((right > 1e-30) & (right < 1e30)))
    )
    assert np.array_equal(~np.isnan(found), held) and np.isnan(words[intervals:padded].view(np.float32)).all()
    assert (
        held.any() or bound > 2.0 or intervals < 100
    )  # such knots are too high, or too far apart == (intervals > 2)
    assert (np.abs(found - right) <= 2.0**-16 * right)[held].all()
    assert (np.abs((words[:intervals] & 255) / 8192 - rise) <= 2.0**-14)[held].all()
    # What the test of the CUDA source reads is the same, but for an exponential's last bit.
    same = compressed.growth_words(knots, bound).view(np.int32)
    assert np.array_equal(np.isnan(same.view(np.float32)), np.isnan(words.view(np.float32)))
    assert (np.abs(same.astype(np.int64) - words) <= 256).all()


@pytest.mark.parametrize(("words", "apart"), [(4001, 1), (4096, 1), (4097, 2), (9001, 3)])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("mean", [-50.0, -18.0, 4.0, 50.0])
def test_the_window_lies_around_the_first_row(mean, spread, words, apart):
    """Of a long row, logits at equal distances serve."""
    from uncork.ops.triton.table_kernels import window_kernel

    torch.manual_seed(0)
    z = mean + spread * torch.randn(2, words, device=DEVICE)
    z[0, ::7] = float("-inf")
    window = torch.empty(2, dtype=torch.int32, device=DEVICE)
    window_kernel[(1,)](z, window, 100_000, 16_384, 20.0, words=words, BLOCK=4096)
    some = z[0, ::apart].double()
    inside = some[some.abs() <= 20.0]
    middle = ((inside.mean().item() if len(inside) else 0.0) + 20.0) * 2500.0
    assert abs(window[0].item() - min(max(middle - 8192.0, 0.0), 100_000 - 16_384)) <= 2.0
    assert abs(window[1].item() - middle) <= 2.0


def test_a_window_of_a_row_of_nan_is_inside_the_table():
    from uncork.ops.triton.table_kernels import window_kernel

    window = torch.empty(2, dtype=torch.int32, device=DEVICE)
    z = torch.full((1, 100), float("nan"), device=DEVICE)
    window_kernel[(1,)](z, window, 100_000, 16_384, 20.0, words=100, BLOCK=128)
    assert window.tolist() == [50_000 - 8_192, 50_000]


@pytest.mark.parametrize("origin", [0, 50, 83])
def test_all_sums_are_collected(origin):
    from uncork.ops.triton.table_kernels import collect_kernel

    torch.manual_seed(0)
    blocks, width, intervals, per_step = 5, 37, 120, 2.5
    staging = torch.randn(blocks, width, device=DEVICE)
    spill = torch.randn(3, intervals, 2, device=DEVICE)
    beyond = torch.randn(2, dtype=torch.float64, device=DEVICE)
    found = torch.full((intervals + 1,), float("nan"), dtype=torch.float64, device=DEVICE)
    collect_kernel[(-(-(intervals + 1) // 32),)](
        staging, spill, beyond, torch.tensor([origin], dtype=torch.int32, device=DEVICE), found,
        width, staging.stride(0), intervals, per_step, blocks=blocks, SPILLS=3, ROWS=4, BLOCK=32,
    )  # fmt: skip
    expected = torch.zeros(intervals + 1 + width, dtype=torch.float64, device=DEVICE)
    expected[:intervals] += spill[:, :, 0].double().sum(0)
    expected[1 : intervals + 1] += spill[:, :, 1].double().sum(0)
    expected[origin : origin + width] += staging.double().sum(0)
    expected = expected[: intervals + 1]
    pull = torch.stack([-beyond[0], beyond[0], -beyond[1], beyond[1]]) * per_step
    expected[[0, 1, -2, -1]] += pull
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
