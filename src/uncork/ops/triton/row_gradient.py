"""dL/dz of long rows in half precision, with a window of the table, compressed, in shared memory.

The CUDA source says how a table is read; here it is compressed, and the kernel launched.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from uncork.ops.triton import nvrtc
from uncork.ops.triton.table_kernels import wide
from uncork.ops.triton.window_sums import OUTPUTS, WindowSums


SOURCE = nvrtc.TABLE_GRADIENT.with_name("row_gradient.cu")
THREADS, EACH = 1024, 8
# Intervals that share a base, and how many intervals a window is a multiple of: 16 bytes of bases.
GROUP, PIECE = 32, 128
# In half precision the rounding of the result hides that of the table.
DTYPES = (torch.bfloat16, torch.float16)


@triton.jit
def compress_kernel(
    knot_ptr, code_ptr, base_ptr, intervals, per_step, GROUPS: tl.constexpr, GROUP: tl.constexpr
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
    fine = (exponent <= 128) & (slope >= 0.0) & (slope < 1e30)
    fine = fine & (index > 0) & (index < intervals - 1)
    bits = tl.where(fine, tl.maximum(bits, 0), 0x7FFFF)
    tl.store(code_ptr + index, (number << 10) | (bits >> 9) | ((bits & 511) << 23))
    tl.store(base_ptr + group[:, None], base)


class RowGradient:
    """The compressed table, and the gradient it gives; `way` of the sums is "before"."""

    def __init__(self, knot_values: Tensor, pairs: Tensor, bound: float) -> None:
        self.pairs, self.bound, self.intervals = pairs, bound, len(pairs)
        device = pairs.device
        room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
        self.width = window_width(self.intervals, room)
        self.codes, self.bases = compress(knot_values, bound)

    def write(
        self, logits_NKV: Tensor, dlogits_NKV: Tensor, target: Tensor, stats: Tensor, sums: WindowSums
    ) -> None:
        """dL/dz over the logits, from the token kernel's statistics and around the window of the sums."""
        tokens, _, words = logits_NKV.shape
        shared = shared_bytes(self.width)
        # Four logits at a time where every row starts at a multiple of 16 bytes.
        aligned = logits_NKV.stride(1) % 4 == 0 and logits_NKV.storage_offset() % 4 == 0
        _kernel(dlogits_NKV.dtype, aligned, shared, logits_NKV.device.index)(
            (min(sums.blocks, tokens), 1, 1),
            (THREADS, 1, 1),
            [
                logits_NKV, dlogits_NKV, logits_NKV.stride(1), dlogits_NKV.stride(1), target, stats,
                self.pairs, self.codes, self.bases, sums.window, min(sums.width, self.intervals), self.width,
                tokens, words, self.intervals, float(self.bound),
            ],
            shared_mem=shared,
        )  # fmt: skip


def compress(knot_values: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Codes and bases, up to a multiple of PIECE intervals."""
    intervals = knot_values.numel() - 1
    padded = -(-intervals // PIECE) * PIECE
    codes = knot_values.new_empty(padded, dtype=torch.int32)
    bases = knot_values.new_empty(padded // GROUP, dtype=torch.int32)
    groups = PIECE // GROUP
    compress_kernel[(padded // PIECE,)](
        knot_values, codes, bases, intervals, intervals / (2.0 * bound), GROUPS=groups, GROUP=GROUP
    )
    return codes, bases


def shared_bytes(width: int) -> int:
    """Of a window's codes and bases, and 16 bytes more of each for what is outside it."""
    return 4 * width + 4 * width // GROUP + 32


def window_width(intervals: int, room: int) -> int:
    """The intervals that fit into so many bytes, or all."""
    per_piece = shared_bytes(PIECE) - shared_bytes(0)
    return min((room - shared_bytes(0)) // per_piece, -(-intervals // PIECE)) * PIECE


@functools.cache
def _kernel(dtype: torch.dtype, aligned: bool, shared: int, device: int):
    name = f"row_gradient<{OUTPUTS[dtype]}, {str(aligned).lower()}>"
    return nvrtc.compiled(SOURCE, name, {"THREADS": THREADS, "EACH": EACH}, shared, device)
