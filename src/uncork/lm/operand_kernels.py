"""What persistent layers need around products, each one pass over memory. Importing this imports Triton.

An input operand is [x, 1, 1, 0 ...], a weight operand [weight, high, low, 0 ...], where high + low is the sum
of both biases to 2^-17 of itself: the product adds the bias, and its gradient is a column of the weight's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from uncork.lm.persistent import padded


# Of a tile: 1,150 leave little of one unused. Widths and pitches are constants of the kernels, or Triton
# could not tell how many neighbours a thread may read at once.
COLUMNS = 128


def input_operand(source_ND: Tensor, mask_BD: Tensor | None) -> Tensor:
    """Rows of any pitch, times the mask of their stream (row n has n mod B), and two columns of ones."""
    mask_BD = None if mask_BD is None else mask_BD.contiguous()
    return _operand(_rows(source_ND), mask_BD, None, None)


def weight_operand(weight_GD: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    """The weight with the sum of the biases as two columns."""
    return _operand(_rows(weight_GD), None, bias_ih.contiguous(), bias_hh.contiguous())


def dropped(weight_GH: Tensor, p: float, seed: Tensor | None) -> Tensor:
    """The recurrent matrix (4H, H) in bfloat16, a share p of its entries left out if there is a seed."""
    if seed is None:
        return weight_GH.to(torch.bfloat16).contiguous()
    weight_GH = weight_GH.contiguous()
    out_GH = torch.empty_like(weight_GH, dtype=torch.bfloat16)
    square, block = weight_GH.shape[1] ** 2, 512
    with torch.cuda.device_of(out_GH):
        drop_kernel[(triton.cdiv(square, block),)](
            weight_GH, out_GH, seed, p, 1.0 / (1.0 - p), SQUARE=square, BLOCK=block, num_warps=4
        )
    return out_GH


def dropped_gradient(product_GP: Tensor, width: int, p: float, seed: Tensor | None) -> Tensor:
    """The gradient of what `dropped` was given: the first columns of a product, where it kept the entries."""
    return _gradient(product_GP, width, p, seed, None, None)


def weight_gradients(product_GP: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of what `weight_operand` was given, from that of its result."""
    dbias_ih, dbias_hh = (product_GP.new_empty(product_GP.shape[0]) for _ in range(2))
    return _gradient(product_GP, width, 0.0, None, dbias_ih, dbias_hh), dbias_ih, dbias_hh


def _rows(given: Tensor) -> Tensor:
    return given if given.stride(1) == 1 else given.contiguous()


def _operand(
    source_ND: Tensor, mask_BD: Tensor | None, bias_ih: Tensor | None, bias_hh: Tensor | None
) -> Tensor:
    (rows, width), at_once = source_ND.shape, 16
    out_NP = source_ND.new_empty(rows, padded(width + 2), dtype=torch.bfloat16)
    with torch.cuda.device_of(out_NP):
        operand_kernel[(triton.cdiv(rows, at_once), triton.cdiv(out_NP.shape[1], COLUMNS))](
            source_ND, mask_BD, bias_ih, bias_hh, out_NP, rows,
            WIDTH=width, PITCH=source_ND.stride(0), PADDED=out_NP.shape[1],
            STREAMS=1 if mask_BD is None else mask_BD.shape[0],
            MASKED=mask_BD is not None, BIASED=bias_ih is not None, ROWS=at_once, COLUMNS=COLUMNS,
            num_warps=4,
        )  # fmt: skip
    return out_NP


def _gradient(
    product_GP: Tensor,
    width: int,
    p: float,
    seed: Tensor | None,
    dbias_ih: Tensor | None,
    dbias_hh: Tensor | None,
) -> Tensor:
    gates, pitch = product_GP.shape
    units, at_once = gates // 4, 4
    out_GD = product_GP.new_empty(gates, width)
    with torch.cuda.device_of(out_GD):
        gradient_kernel[(triton.cdiv(units, at_once), triton.cdiv(width, COLUMNS))](
            product_GP, out_GD, dbias_ih, dbias_hh, seed, p, 1.0 / (1.0 - p),
            UNITS=units, WIDTH=width, PITCH=pitch, DROPPED=seed is not None, BIASED=dbias_ih is not None,
            ROWS=at_once, COLUMNS=COLUMNS, num_warps=4,
        )  # fmt: skip
    return out_GD


@triton.jit
def operand_kernel(
    source_ptr, mask_ptr, bias_ih_ptr, bias_hh_ptr, out_ptr, rows,
    WIDTH: tl.constexpr, PITCH: tl.constexpr, PADDED: tl.constexpr, STREAMS: tl.constexpr,
    MASKED: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of an operand."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    there = row < rows
    far = row.to(tl.int64)
    given = there & (column < WIDTH)
    value = tl.load(source_ptr + far * PITCH + column, mask=given, other=0.0).to(tl.float32)
    if MASKED:
        value *= tl.load(mask_ptr + (row % STREAMS) * WIDTH + column, mask=given, other=0.0).to(tl.float32)
    if BIASED:
        last = there & ((tl.program_id(1) + 1) * COLUMNS > WIDTH)
        bias = tl.load(bias_ih_ptr + row, mask=last, other=0.0).to(tl.float32)
        bias += tl.load(bias_hh_ptr + row, mask=last, other=0.0).to(tl.float32)
        high = bias.to(tl.bfloat16).to(tl.float32)
        value = tl.where(column == WIDTH, high, value)
        value = tl.where(column == WIDTH + 1, bias - high, value)
    else:
        value = tl.where((column == WIDTH) | (column == WIDTH + 1), 1.0, value)
    tl.store(out_ptr + far * PADDED + column, value.to(tl.bfloat16), mask=there & (column < PADDED))


@triton.jit
def draws_of_gates(seed_ptr, place):
    """Numbers in [0, 1) for the entries at `place` of each gate's part of the recurrent matrix.

    Seven of Philox's rounds pass the known tests; the usual ten have a margin.
    """
    return tl.rand4x(tl.load(seed_ptr), place, 7)


@triton.jit
def drop_kernel(weight_ptr, out_ptr, seed_ptr, p, scale, SQUARE: tl.constexpr, BLOCK: tl.constexpr):
    """A stretch of each gate's part of the matrix."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < SQUARE
    draws = draws_of_gates(seed_ptr, place)
    for gate in tl.static_range(4):
        value = tl.load(weight_ptr + gate * SQUARE + place, mask=there, other=0.0).to(tl.float32)
        value = tl.where(draws[gate] < p, 0.0, value * scale)
        tl.store(out_ptr + gate * SQUARE + place, value.to(tl.bfloat16), mask=there)


@triton.jit
def gradient_kernel(
    product_ptr, out_ptr, dbias_ih_ptr, dbias_hh_ptr, seed_ptr, p, scale,
    UNITS: tl.constexpr, WIDTH: tl.constexpr, PITCH: tl.constexpr,
    DROPPED: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of each gate's part of a gradient without padding; of the first tiles, also the bias's."""
    unit = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    there = unit < UNITS
    given = there & (column < WIDTH)
    if DROPPED:
        draws = draws_of_gates(seed_ptr, unit * WIDTH + column)
    for gate in tl.static_range(4):
        row = gate * UNITS + unit
        value = tl.load(product_ptr + row * PITCH + column, mask=there & (column < PITCH), other=0.0)
        if DROPPED:
            value = tl.where(draws[gate] < p, 0.0, value * scale)
        tl.store(out_ptr + row * WIDTH + column, value, mask=given)
        if BIASED:
            first = there & (tl.program_id(1) == 0)
            dbias = tl.load(product_ptr + row * PITCH + WIDTH, mask=first, other=0.0)
            tl.store(dbias_ih_ptr + row, dbias, mask=first)
            tl.store(dbias_hh_ptr + row, dbias, mask=first)
