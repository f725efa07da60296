"""A table in half the bytes: compressed.cu says what a code and a base hold; here they are made.

A table that does not fit a cache is read twice as well; and what fits shared memory is twice as wide.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from uncork.ops import matmul
from uncork.ops.triton.table_kernels import pair_of, wide


# Intervals that share a base, and how many intervals a window is a multiple of: 16 bytes of bases.
GROUP, PIECE = 32, 128
# In half precision the rounding of the result hides that of the table.
DTYPES = (torch.bfloat16, torch.float16)
# The steepest groups that are held, by the power of 2, plus 127, that their rise stays below. A value is
# right to 2^-14 of it: to 2^-17, which is little to TF32 and to sums per knot, and 2^-19 with slopes near 1
# and the 100,000 knots of PLIF.
STEEPEST = tl.constexpr(124)
# Tables with fewer intervals fit a cache as they are, and with wider ones are not held.
MANY, NARROW = 32_768, 1e-3


@triton.jit
def compress_kernel(
    knot_ptr,
    code_ptr,
    base_ptr,
    pairs_ptr,
    intervals,
    per_step,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Of log2(e) f: a base for each group of intervals, and a code for each interval.

    base: a float32, below all values of the group, whose last 9 bits are those of an exponent e.
    code: the value is base + 2^e (1 + n / 2^13), n in bits 22 to 10; bits 9 to 0 and then 31 to 23 are the
    first of the slope, without its sign.
    """
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    index = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    known = tl.minimum(index, intervals - 1)
    left = tl.load(knot_ptr + known)
    right = tl.load(knot_ptr + known + 1)
    log2_e = wide(1.4426950216293335, 1.9259629911e-8, left)
    # At the left knot; of an odd number of intervals, among which the middle of one is 0, in the middle.
    value = (left + (right - left) * (0.5 * (intervals % 2))) * log2_e
    slope = ((right - left) * log2_e * per_step).to(tl.float32)

    lowest = tl.min(value, 1)[:, None]
    highest = tl.max(value, 1)[:, None]
    # Room for the group's rise, and for a base that keeps 14 of its own bits, wherever it then is.
    room = tl.maximum(((highest - lowest) * 1.01 + tl.abs(lowest) * 0.00048828125).to(tl.float32), 1e-18)
    exponent = (room.to(tl.int32, bitcast=True) >> 23) + 1
    reach = (tl.minimum(exponent, 254) << 23).to(tl.float32, bitcast=True).to(tl.float64)
    below = lowest - reach - (tl.abs(lowest) + reach) * 0.0001220703125
    base = (below.to(tl.float32).to(tl.int32, bitcast=True) & -512) | (exponent & 255)
    from_base = value - base.to(tl.float32, bitcast=True).to(tl.float64)
    number = ((from_base / reach - 1.0) * 8192.0 + 0.5).to(tl.int32)
    number = tl.minimum(tl.maximum(number, 0), 8191)

    # The slope is read with the number's first bits behind its own: round it to the nearest of those.
    bits = (slope.to(tl.int32, bitcast=True) - (number >> 1) + 2048) >> 12
    # Too steep: a step of the number would show in the result. At the ends f goes on, far from the knot.
    fine = (exponent <= STEEPEST) & (slope >= 0.0) & (slope < 1e30)
    fine = fine & (index > 0) & (index < intervals - 1)
    bits = tl.where(fine, tl.maximum(bits, 0), 0x7FFFF)
    tl.store(code_ptr + index, (number << 10) | (bits >> 9) | ((bits & 511) << 23))
    tl.store(base_ptr + group[:, None], base)
    tl.store(pairs_ptr + index, pair_of(left, right, per_step), mask=index < intervals)


def worth_it(dtype: torch.dtype, intervals: int, bound: float) -> bool:
    """Whether gradients in `dtype` are rounded more than a compressed table is, and this one gains by it."""
    rounded = dtype in DTYPES or matmul.in_tf32(dtype)
    return rounded and MANY <= intervals <= 2**21 and 2.0 * bound / intervals <= NARROW


def compress(knot_values: Tensor, bound: float, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and bases, up to a multiple of PIECE intervals; and `pairs`, in the same launch."""
    intervals = knot_values.numel() - 1
    padded = -(-intervals // PIECE) * PIECE
    codes = knot_values.new_empty(padded, dtype=torch.int32)
    bases = knot_values.new_empty(padded // GROUP, dtype=torch.int32)
    compress_kernel[(padded // PIECE,)](
        knot_values, codes, bases, pairs, intervals, intervals / (2.0 * bound),
        GROUPS=PIECE // GROUP, GROUP=GROUP,
    )  # fmt: skip
    return codes, bases


def shared_bytes(width: int) -> int:
    """Of a window's codes and bases, and 16 bytes more of each for what is outside it."""
    return 4 * width + 4 * width // GROUP + 32


def window_width(intervals: int, room: int) -> int:
    """The intervals that fit into so many bytes, or all."""
    per_piece = shared_bytes(PIECE) - shared_bytes(0)
    return min((room - shared_bytes(0)) // per_piece, -(-intervals // PIECE)) * PIECE
