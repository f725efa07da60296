"""The passes around a persistent layer's products, in Triton's interpreter or on a GPU, against torch's."""

import pytest
import torch

from tests.helpers import DEVICE
from tests.lm.persistent_on_cpu import PlainOperands
from uncork.lm.persistent import padded
from uncork.ops import triton


pytestmark = pytest.mark.skipif(
    bool(triton.obstacle(DEVICE)),
    reason="needs TRITON_INTERPRET=1, as in the run of its own in `make test`, or UNCORK_TEST_DEVICE=cuda",
)
WIDTHS = [5, 123, 126, 127, 400, 1150]  # 126 and 127: the columns of biases end a tile, or are in two


class Plain(PlainOperands):
    """With the interpreter's rounding: it cuts off to bfloat16 where a GPU takes the nearest."""

    @staticmethod
    def narrow(t):
        return (
            t.bfloat16()
            if DEVICE.type == "cuda"
            else (t.view(torch.int32) & ~0xFFFF).view(t.dtype).bfloat16()
        )


@pytest.fixture
def operands():
    from uncork.lm import operand_kernels

    return operand_kernels


def seed_of(number):
    """As drawn for several layers: not at the start of its memory."""
    return torch.tensor([0, number], device=DEVICE)[1]


def same(ours, theirs):
    assert ours.dtype == theirs.dtype and ours.is_contiguous()
    assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("source", ["float32", "apart", "bfloat16 apart", "transposed"])
def test_input_operand(operands, width, masked, source):
    streams, steps = 3, 7
    x_ND = torch.randn(steps * streams, width + 5)
    if "bfloat16" in source:
        x_ND = x_ND.bfloat16()
    mask_BD = torch.randint(2, (streams, width)) / 0.7 if masked else None
    given = x_ND.to(DEVICE)[:, :width]
    if source == "float32":
        given = given.contiguous()
    elif source == "transposed":
        given = given.t().contiguous().t()
    ours = operands.input_operand(given, None if mask_BD is None else mask_BD.to(DEVICE))
    same(ours, Plain.input_operand(x_ND[:, :width], mask_BD))
    assert ours.shape == (21, padded(width + 2))
    assert (ours[:, width : width + 2] == 1).all() and not ours[:, width + 2 :].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_weight_operand(operands, width):
    weight_GD, bias_ih, bias_hh = torch.randn(24, width), torch.randn(24), torch.randn(24)
    ours = operands.weight_operand(*(t.to(DEVICE) for t in (weight_GD, bias_ih, bias_hh)))
    same(ours, Plain.weight_operand(weight_GD, bias_ih, bias_hh))
    bias = bias_ih.double() + bias_hh.double()
    error = ours[:, width : width + 2].double().sum(1).cpu() - bias
    share = 2.0**-17 if DEVICE.type == "cuda" else 2.0**-15
    assert (error.abs() <= share * bias.abs() + 1e-7).all()
    assert (error != 0).any(), "or two columns would be one too many"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_product_of_operands_has_the_bias_and_its_gradient(operands, width):
    x_ND, weight_GD, bias_ih, bias_hh = torch.randn(21, width), torch.randn(8, width), *torch.randn(2, 8)
    x = operands.input_operand(x_ND.to(DEVICE), None).double().cpu()
    weight = operands.weight_operand(*(t.to(DEVICE) for t in (weight_GD, bias_ih, bias_hh))).double().cpu()
    low_x, low_weight = (Plain.narrow(t).double() for t in (x_ND, weight_GD))
    exact_NG = low_x @ low_weight.T + bias_ih + bias_hh
    torch.testing.assert_close(x @ weight.T, exact_NG, rtol=0.0, atol=1e-4)
    dgates_NG = torch.randn(21, 8, dtype=torch.float64)
    product_GP = (dgates_NG.T @ x).float()
    dweight, dbias_ih, dbias_hh = operands.weight_gradients(product_GP.to(DEVICE), width)
    same(dweight, product_GP[:, :width])
    torch.testing.assert_close(dweight.cpu(), (dgates_NG.T @ low_x).float())
    torch.testing.assert_close(dbias_ih.cpu(), dgates_NG.sum(0).float())
    same(dbias_hh, dbias_ih.cpu())
    assert dbias_ih.data_ptr() != dbias_hh.data_ptr()


@pytest.mark.parametrize(("size", "p"), [(5, 0.5), (50, 0.2), (123, 0.5), (123, 0.2), (400, 0.2)])
def test_a_dropped_matrix_and_its_gradient_have_one_mask(operands, size, p):
    weight_GH = torch.rand(4 * size, size) + 0.5
    seed = seed_of(2**62 + 12345)
    dropped = operands.dropped(weight_GH.to(DEVICE), p, seed).cpu()
    kept = dropped != 0
    same(dropped, Plain.narrow(weight_GH * (kept * (1.0 / (1.0 - p)))))
    product_GP = torch.rand(4 * size, padded(size)) + 0.5
    gradient = operands.dropped_gradient(product_GP.to(DEVICE), size, p, seed)
    same(gradient, product_GP[:, :size] * (kept * (1.0 / (1.0 - p))))


@pytest.mark.parametrize("size", [5, 123, 400])
def test_without_a_seed_nothing_is_dropped(operands, size):
    weight_GH, product_GP = torch.randn(4 * size, size), torch.randn(4 * size, padded(size))
    same(operands.dropped(weight_GH.to(DEVICE), 0.0, None), weight_GH.bfloat16())
    same(operands.dropped_gradient(product_GP.to(DEVICE), size, 0.0, None), product_GP[:, :size].contiguous())


def test_masks_are_of_independent_draws(operands):
    """Of all entries, of any gate's and over seeds that differ in either half; 5 standard deviations."""
    size, p = 200, 0.3
    ones_GH = torch.ones(4 * size, size, device=DEVICE)
    seeds = (3, 4, 3 + 2**40)
    drops = [(operands.dropped(ones_GH, p, seed_of(seed)) == 0).double().cpu() for seed in seeds]
    square = size * size
    deviation = (p * (1 - p) / square) ** 0.5
    for drop in drops:
        assert drop.mean().item() == pytest.approx(p, abs=5 * deviation / 2)
        by_row = (drop.mean(1) - p) / (p * (1 - p) / size) ** 0.5
        assert by_row.abs().max() < 6 and by_row.std().item() == pytest.approx(1.0, abs=0.2)
    masks = [gate for drop in drops for gate in drop.chunk(4)]
    masks += [drops[0].chunk(4)[0].roll(1, axis) for axis in (0, 1)]
    for number, one in enumerate(masks):
        assert one.mean().item() == pytest.approx(p, abs=5 * deviation)
        for other in masks[:number]:
            together = (one * other).mean().item() - one.mean().item() * other.mean().item()
            assert abs(together) < 5 * p * (1 - p) / size


def test_an_operand_of_many_rows(operands):
    """Several programs along rows, the last of them not full."""
    x_ND, mask_BD = torch.randn(205, 150), torch.randint(2, (5, 150)) * 2.0
    ours = operands.input_operand(x_ND.to(DEVICE), mask_BD.to(DEVICE))
    same(ours, Plain.input_operand(x_ND, mask_BD))
