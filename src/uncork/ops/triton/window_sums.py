"""Sums per knot of a table function with a window of the table in each block's shared memory.

Two CUDA kernels, compiled at first use by the NVRTC that comes with torch: `CountedSums` for long rows and
narrow intervals, `SharedSums` for everything else. Their sources say how they work.
"""

import functools

import torch
from torch import Tensor

from uncork.ops.problem import Problem
from uncork.ops.triton import nvrtc, table_kernels
from uncork.ops.triton.sums import Sums


OUTPUTS = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16", torch.float16: "__half"}
# Knots in shared memory at the most; the rest of it is cache for the table, or holds a part of it.
WINDOW = 32_768
# Words for the bases of a compressed table at the most. Where one is used, sums have this share of the shared
# memory, and its codes the rest: measured at the sizes of Penn.
BASES, SUMS_SHARE = 4096, (3, 7)
# A counting block: threads, the logits each has on the way, words of shared memory at the most, and how many
# of these per thread are the window's; lists of the logits outside it take the rest.
THREADS, EACH, WORDS, OWN = 1024, 8, 57_344, 48
# Counting rows costs a pass over the window for each: worth it for rows of this many words.
LONG_ROW = 32_768
# Copies of the sums outside the window, and how many intervals all of them may have.
MOST_SPILLS, SPILLED_INTERVALS = 8, 2**20
# The widest interval in which f is as good as linear under the exponential.
NARROW = 2e-3


class WindowSums(Sums):
    """What the two ways share: the window, sums outside it, and the blocks' sums on their way to the end."""

    def __init__(self, intervals: int, bound: float, width: int, device: torch.device) -> None:
        super().__init__(intervals, bound)
        self.blocks = nvrtc.chip(device).multi_processor_count
        self.width = width
        # In float32, to which a block may add thousands of times: several copies keep what each loses small.
        self.spills = max(1, min(MOST_SPILLS, SPILLED_INTERVALS // intervals))
        self.spill = torch.zeros(self.spills * 2 * intervals, dtype=torch.float32, device=device)
        self.beyond = torch.zeros(2, dtype=torch.float64, device=device)
        self.staging: Tensor | None = None
        self.window = torch.empty(2, dtype=torch.int32, device=device)

    def _start(self, logits_NKV: Tensor) -> bool:
        """Whether this is the first chunk; on it, choose the window, which must be the same for all."""
        if self.staging is not None:
            return False
        rows, words = logits_NKV.shape[0] * logits_NKV.shape[1], logits_NKV.shape[2]
        self.blocks = min(self.blocks, rows)
        self.staging = logits_NKV.new_empty(self.blocks, self.width, dtype=torch.float32)
        table_kernels.window_kernel[(1,)](
            logits_NKV,
            self.window,
            self.intervals,
            min(self.width - 1, self.intervals),
            self.bound,
            words=words,
            BLOCK=8192,
            num_warps=16,
        )
        return True

    def knot_gradient(self) -> Tensor:
        knots = torch.empty(self.intervals + 1, dtype=torch.float64, device=self.spill.device)
        staging = self.spill if self.staging is None else self.staging
        table_kernels.collect_kernel[(-(-(self.intervals + 1) // 128),)](
            staging, self.spill, self.beyond, self.window, knots,
            self.width, staging.stride(0), self.intervals, self.intervals / (2.0 * self.bound),
            blocks=0 if self.staging is None else self.blocks, SPILLS=self.spills, ROWS=32, BLOCK=128,
        )  # fmt: skip
        return knots


class SharedSums(WindowSums):
    """Fixed-point sums of a window of knots; see table_gradient.cu.

    With `codes`, those of `uncork.ops.triton.compressed` and their bases, f is read from them.
    """

    way = "after"
    codes: tuple[Tensor, Tensor] | None = None
    empty = True  # nothing has been summed yet, and the blocks' memory not been cleared

    def __init__(self, intervals: int, bound: float, device: torch.device) -> None:
        self.room = (nvrtc.chip(device).shared_memory_per_block_optin - 1024) // 4
        most = min(WINDOW, self.room - BASES)
        super().__init__(intervals, bound, min(intervals + 1, most), device)
        self.copies = min(32, most // self.width)

    def read_from(self, codes: Tensor, bases: Tensor) -> None:
        """Use a compressed table, and leave it more of the shared memory."""
        self.codes = codes, bases
        self.width = min(self.width, self.room * SUMS_SHARE[0] // SUMS_SHARE[1])

    def start(self, logits_NKV: Tensor) -> None:
        """Choose the window, if this is the first chunk, for a kernel that needs it before `after` does."""
        self._start(logits_NKV)

    def after(
        self,
        logits: Tensor,
        dlogits: Tensor,
        target: Tensor,
        row_factors: Tensor,
        pairs: Tensor,
        tops: Tensor | None = None,
    ) -> None:
        self._start(logits)
        first, self.empty = self.empty, False
        tokens, components, words = logits.shape
        codes, bases = (pairs, pairs) if self.codes is None else self.codes
        coarse = self.codes is not None
        held = self._held(len(bases)) if coarse else (0, 0)
        shared = 4 * (self.width * self.copies + sum(held))
        kind = 2 if tops is not None else int(target.is_floating_point())
        most = 5 if kind == 0 else 6 if coarse else 8  # logits per thread that registers have room for
        tiles = -(-words // (1024 * most))
        each = -(-words // (1024 * tiles))  # no more than the row needs, in equal tiles
        kernel = _gradient_kernel(
            dlogits.dtype, kind, coarse, each, self.spills, held, shared, logits.device.index
        )
        kernel(
            (min(self.blocks, tokens * components), 1, 1),
            (1024, 1, 1),
            [
                logits, dlogits, logits.stride(1), dlogits.stride(1), target, target,
                target if tops is None else tops, row_factors, pairs, codes, bases, self.window, self.staging,
                self.spill, self.beyond, tokens * components, components, words, self.intervals, self.width,
                self.copies, int(first), float(self.bound),
            ],
            shared_mem=shared,
        )  # fmt: skip

    def _held(self, bases: int) -> tuple[int, int]:
        """How many bases and codes of a compressed table shared memory has room for beside the sums."""
        held = bases if bases <= BASES else 0
        return held, min(self.intervals, self.room - self.width * self.copies - held)


class CountedSums(WindowSums):
    """Integer counts of a row's logits in a window of intervals; see table_counts.cu."""

    way = "before"

    def __init__(self, intervals: int, bound: float, device: torch.device) -> None:
        room = nvrtc.chip(device).shared_memory_per_block_optin - 2048
        self.words = min(WORDS, room // 4)
        self.own = self.words * OWN // WORDS // 8 * 8  # whole batches, with less shared memory too
        super().__init__(intervals, bound, THREADS * self.own, device)

    @staticmethod
    def suits(problem: Problem, intervals: int, bound: float) -> bool:
        """Whether rows are long and intervals narrow enough, and targets plain words."""
        return (
            problem.one_word
            and problem.latent_NKD.shape[1] == 1
            and LONG_ROW <= problem.weight_VD.shape[0] < 2**22
            and 2.0 * bound / intervals <= NARROW
            and intervals <= 2**21
            and abs(problem.ignore_index) < 2**31
        )

    def before(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor, pairs: Tensor) -> Tensor:
        if self._start(logits_NKV):
            assert self.staging is not None
            self.staging.zero_()  # blocks add to it from the first row on
        tokens, _, words = logits_NKV.shape
        weight = problem.class_weight_V
        row_sums = pairs.new_empty(3 * tokens, dtype=torch.float32)
        _count_kernel(self.own, self.words, self.spills, logits_NKV.device.index)(
            (min(self.blocks, tokens), 1, 1),
            (THREADS, 1, 1),
            [
                logits_NKV, logits_NKV.stride(1), problem.target.contiguous(),
                row_sums if weight is None else weight.float().contiguous(), int(weight is not None),
                row_scale_N, row_scale_N.stride(0), pairs, self.window, row_sums, self.staging, self.spill,
                self.beyond, tokens, words, self.intervals, problem.ignore_index,
                float(problem.z_loss), float(self.bound),
            ],
            shared_mem=4 * self.words,
        )  # fmt: skip
        return row_sums


@functools.cache
def _gradient_kernel(
    dtype: torch.dtype,
    kind: int,
    coarse: bool,
    each: int,
    spills: int,
    held: tuple[int, int],
    shared: int,
    device: int,
):
    name = f"table_gradient<{OUTPUTS[dtype]}, {kind}, {str(coarse).lower()}>"
    options = {"EACH": each, "SPILLS": spills, "BASES": held[0], "CODES": held[1]}
    return nvrtc.compiled(nvrtc.TABLE_GRADIENT, name, options, shared, device)


@functools.cache
def _count_kernel(own: int, words: int, spills: int, device: int):
    options = {"THREADS": THREADS, "OWN": own, "EACH": EACH, "WORDS": words, "SPILLS": spills}
    return nvrtc.compiled(nvrtc.TABLE_COUNTS, "table_counts", options, 4 * words, device)
