"""Statistics of rows under a table, from a window of it, compressed, in shared memory; see row_stats.cu."""

import functools

from torch import Tensor

from uncork.ops.problem import Problem
from uncork.ops.triton import nvrtc
from uncork.ops.triton.compressed import shared_bytes, window_width
from uncork.ops.triton.window_sums import SharedSums


SOURCE = nvrtc.TABLE_GRADIENT.with_name("row_stats.cu")
THREADS = 1024
# Words that a block reads in one round, the rounds it reads ahead at the most, and the bytes of shared memory
# that it needs beside the window.
ROUND, ROUNDS, OWN_BYTES = 4 * THREADS, 4, 4352


class RowStats:
    """The compressed table of the sums, and what it gives: what `row_kernel` would, but for the rounding."""

    def __init__(self, sums: SharedSums, pairs: Tensor) -> None:
        assert sums.codes is not None
        self.sums, self.pairs = sums, pairs
        self.codes, self.bases = sums.codes
        room = nvrtc.chip(pairs.device).shared_memory_per_block_optin
        self.width = window_width(sums.intervals, room - OWN_BYTES)

    def write(self, problem: Problem, logits_NKV: Tensor, target: Tensor, row_sums: Tensor) -> None:
        """Highest f, sum of exponentials and, of targets that are words, f there."""
        self.sums.start(logits_NKV)
        tokens, components, words = logits_NKV.shape
        rows, shared = tokens * components, shared_bytes(self.width)
        rounds = -(-words // ROUND)
        quads = -(-rounds // -(-rounds // ROUNDS))  # no more than the row needs, in equal batches
        # Four logits at a time where every row starts at a multiple of 16 bytes.
        aligned = logits_NKV.stride(1) % 4 == 0 and logits_NKV.storage_offset() % 4 == 0
        _kernel(aligned, quads, shared, logits_NKV.device.index)(
            (min(self.sums.blocks, rows), 1, 1),
            (THREADS, 1, 1),
            [
                logits_NKV, logits_NKV.stride(1), target, row_sums, self.pairs, self.codes, self.bases,
                self.sums.window, self.width, rows, components, words, self.sums.intervals,
                int(problem.dense), problem.ignore_index, float(self.sums.bound),
            ],
            shared_mem=shared,
        )  # fmt: skip


@functools.cache
def _kernel(aligned: bool, quads: int, shared: int, device: int):
    options = {"THREADS": THREADS, "QUADS": quads}
    return nvrtc.compiled(SOURCE, f"row_stats<{str(aligned).lower()}>", options, shared, device)
