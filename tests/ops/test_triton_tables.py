"""The kernels that build a table and collect its gradient, against plain torch in float64."""

import pytest
import torch
from torch.nn.functional import softplus

from tests.backends import DEVICE, TRITON


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
    spill = torch.randn(intervals, 2, device=DEVICE)
    beyond = torch.randn(2, dtype=torch.float64, device=DEVICE)
    found = torch.full((intervals + 1,), float("nan"), dtype=torch.float64, device=DEVICE)
    collect_kernel[(-(-(intervals + 1) // 32),)](
        staging, spill, beyond, torch.tensor([origin], dtype=torch.int32, device=DEVICE), found,
        width, staging.stride(0), intervals, per_step, blocks=blocks, ROWS=4, BLOCK=32,
    )  # fmt: skip
    expected = torch.zeros(intervals + 1 + width, dtype=torch.float64, device=DEVICE)
    expected[:intervals] += spill[:, 0]
    expected[1 : intervals + 1] += spill[:, 1]
    expected[origin : origin + width] += staging.double().sum(0)
    expected = expected[: intervals + 1]
    pull = torch.stack([-beyond[0], beyond[0], -beyond[1], beyond[1]]) * per_step
    expected[[0, 1, -2, -1]] += pull
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
