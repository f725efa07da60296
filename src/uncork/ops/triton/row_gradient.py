"""dL/dz of long rows in half precision, with a window of a table of its own in shared memory.

The CUDA source says how; here the kernel is launched.
"""

import functools

import torch
from torch import Tensor

from uncork.ops.triton import nvrtc
from uncork.ops.triton.growth import PIECE, growth
from uncork.ops.triton.window_sums import OUTPUTS, WindowSums


SOURCE = nvrtc.TABLE_GRADIENT.with_name("row_gradient.cu")
THREADS, EACH = 1024, 8


class RowGradient:
    """The table, and the gradient it gives; `way` of the sums is "before"."""

    def __init__(self, knot_values: Tensor, pairs: Tensor, bound: float) -> None:
        self.pairs, self.bound, self.intervals = pairs, bound, len(pairs)
        self.words = growth(knot_values, bound)
        room = nvrtc.chip(pairs.device).shared_memory_per_block_optin // 4
        # A piece stands for what is outside the window.
        self.width = min(room // PIECE * PIECE, len(self.words)) - PIECE

    def write(
        self, logits_NKV: Tensor, dlogits_NKV: Tensor, target: Tensor, row_factors: Tensor, sums: WindowSums
    ) -> None:
        """dL/dz over the logits, from the token kernel's statistics and around the window of the sums."""
        tokens, _, words = logits_NKV.shape
        shared = 4 * (self.width + PIECE)
        # Four logits at a time where every row starts at a multiple of 16 bytes.
        aligned = logits_NKV.stride(1) % 4 == 0 and logits_NKV.storage_offset() % 4 == 0
        _kernel(dlogits_NKV.dtype, aligned, shared, logits_NKV.device.index)(
            (min(sums.blocks, tokens), 1, 1),
            (THREADS, 1, 1),
            [
                logits_NKV, dlogits_NKV, logits_NKV.stride(1), dlogits_NKV.stride(1), target, row_factors,
                self.pairs, self.words, sums.window, min(sums.width, self.intervals), self.width,
                tokens, words, self.intervals, float(self.bound),
            ],
            shared_mem=shared,
        )  # fmt: skip


@functools.cache
def _kernel(dtype: torch.dtype, aligned: bool, shared: int, device: int):
    name = f"row_gradient<{OUTPUTS[dtype]}, {str(aligned).lower()}>"
    return nvrtc.compiled(SOURCE, name, {"THREADS": THREADS, "EACH": EACH}, shared, device)
