"""A word for each interval of a table from which dL/dz is read: row_gradient.cu says what it holds."""

import torch
import triton
import triton.language as tl
from torch import Tensor


# Words that are copied together, 16 bytes. Behind those of the table are as many: the reference, and ones.
PIECE = 4
BLOCK = 1024


@triton.jit
def growth_kernel(knot_ptr, word_ptr, intervals, padded, per_step, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    """exp(f - reference) f' in the middle of each interval: a float32 with its rise in the last bits."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = tl.minimum(index, intervals - 1)
    left = tl.load(knot_ptr + known)
    right = tl.load(knot_ptr + known + 1)
    reference = tl.load(knot_ptr + intervals // 2)
    rise = right - left
    above = 0.5 * (left + right) - reference
    growth = (rise * per_step * tl.exp(above)).to(tl.float32)
    units = (tl.minimum(rise, 1.0) * 8192.0 + 0.5).to(tl.int32)
    # Read with the units as its last bits: round it to the nearest of those.
    bits = (((growth.to(tl.int32, bitcast=True) - units + 128) >> 8) << 8) | units
    # A product with a row's factor must be a normal number. At the ends f goes on, far from the knot.
    normal = ((growth > 1e-30) & (growth < 1e30)) | (rise == 0.0)
    fine = normal & (rise >= 0.0) & (units < 256) & (index > 0) & (index < intervals - 1)
    bits = tl.where(fine, bits, 0x7FFFFFFF)
    bits = tl.where(index > padded, 0x3F800000, bits)
    bits = tl.where(index == padded, reference.to(tl.float32).to(tl.int32, bitcast=True), bits)
    tl.store(word_ptr + index, bits, mask=index < padded + PIECE)


def growth(knot_values: Tensor, bound: float) -> Tensor:
    """Words up to a multiple of PIECE intervals, and the reference behind them."""
    intervals = knot_values.numel() - 1
    padded = -(-intervals // PIECE) * PIECE
    words = knot_values.new_empty(padded + PIECE, dtype=torch.int32)
    growth_kernel[(-(-len(words) // BLOCK),)](
        knot_values, words, intervals, padded, intervals / (2.0 * bound), BLOCK=BLOCK, PIECE=PIECE
    )
    return words
