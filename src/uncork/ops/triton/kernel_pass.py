"""What the passes in kernels share: the function's parameters, its sums, memory, the shape of a launch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from uncork.ops import table
from uncork.ops.abstract_pass import AbstractPass
from uncork.ops.problem import Problem
from uncork.ops.triton import compressed, kernels, nvrtc, row_kernels, table_kernels
from uncork.ops.triton.row_stats import RowStats
from uncork.ops.triton.sums import IntegerSums, Sums
from uncork.ops.triton.window_sums import CountedSums, SharedSums


# Rows up to this many words are read from cache the second time: leaving their factor out gains nothing.
SHORT_ROW = 16_384


class KernelPass(AbstractPass):
    """A pass in kernels; the gradient, in the input's dtype, is written over the logits.

    A table needs float32 logits: see `uncork.functions.PLIF`. The others take those of the input's dtype,
    as a linear layer would give them, in half the memory.
    """

    narrow_sums = True
    row_bytes = 16

    def __init__(self, problem: Problem, function_grad: bool, size: int) -> None:
        form = problem.form
        self.form = form
        self.logits_dtype = torch.float32 if form.kind == "table" else problem.latent_NKD.dtype
        self.bytes_per_logit = self.logits_dtype.itemsize
        given = problem.target
        if problem.dense and (given.dtype != torch.float32 or not given.is_contiguous()):
            self.bytes_per_logit += -(-4 // problem.latent_NKD.shape[1])  # a float32 copy of the targets
        self.parameter: Tensor | None = None
        self.intervals, self.step = 2, 1.0
        self.sums: Sums | None = None
        self.row_reducer: RowStats | None = None
        self.dscale: Tensor | None = None
        self.want_dscale = form.kind == "scale" and function_grad
        self.scratch: dict[str, Tensor] = {}
        self.settings = kernel_settings(form.kind, problem.weight_VD.shape[0], problem.latent_NKD.shape[1])
        if form.kind == "scale":
            self.parameter = form.tensors[0].float()
        if form.kind == "table":
            self.intervals = form.tensors[0].numel() - 1
            self.step = table.step_of(form.tensors[0], form.constants[0])
            if function_grad:
                self.sums = make_sums(problem, self.intervals, form.constants[0])
                if self.sums.way == "inside":
                    self.settings |= few_logits_per_thread(self.settings["BLOCK"])
            self.parameter = self._table(problem)

    def _table(self, problem: Problem) -> Tensor:
        """(value, slope) pairs; and, where it is worth it, a compressed table for the sums and the rows."""
        knot_values, bound = self.form.tensors[0], self.form.constants[0]
        pairs = knot_values.new_empty(self.intervals, dtype=torch.int64)
        worth = compressed.worth_it(problem.latent_NKD.dtype, self.intervals, bound)
        if worth and isinstance(self.sums, SharedSums):
            self.sums.read_from(*compressed.compress(knot_values, bound, pairs))
            if abs(problem.ignore_index) < 2**31:
                self.row_reducer = RowStats(self.sums, pairs)
        else:
            table_kernels.pairs_kernel[(-(-self.intervals // 1024),)](
                knot_values, pairs, self.intervals, 1.0 / self.step, BLOCK=1024
            )
        return pairs

    def shared(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory that chunks of one length use one after another."""
        held = self.scratch.get(name)
        if held is None or held.shape != shape:
            held = self.scratch[name] = like.new_empty(shape)
        return held

    def reduce_rows(
        self, problem: Problem, logits_NKV: Tensor, target: Tensor, row_sums: Tensor, fold: bool
    ) -> None:
        """A program for every row: those of a token are too few to fill a GPU, and one after another slow."""
        rows = logits_NKV.shape[0] * logits_NKV.shape[1]
        if rows and self.row_reducer is not None:
            self.row_reducer.write(problem, logits_NKV, target, row_sums)
        elif rows:
            row_kernels.row_kernel[(rows,)](
                logits_NKV, logits_NKV.stride(1), target, row_sums, self.parameter, *self.form.constants,
                self.intervals, self.step, rows, problem.ignore_index, FOLD=fold, DENSE=problem.dense,
                SQUARE=self.form.kind == "sigsoftmax" and self.form.constants[1] == 2.0, **self.settings,
            )  # fmt: skip

    def add_dscale(self, dscale: Tensor) -> None:
        """Add the derivatives by the factor of "scale"."""
        total = dscale.sum(dtype=torch.float64)
        self.dscale = total if self.dscale is None else self.dscale + total

    def function_gradients(self) -> tuple[Tensor, ...]:
        if self.want_dscale:
            factor = self.form.tensors[0]
            return (torch.zeros_like(factor) if self.dscale is None else self.dscale.reshape(factor.shape),)
        return () if self.sums is None else (self.sums.knot_gradient(),)


def make_sums(problem: Problem, intervals: int, bound: float) -> Sums:
    """The fast sums on a GPU, unless torch was asked for deterministic algorithms."""
    device = problem.latent_NKD.device
    deterministic = torch.are_deterministic_algorithms_enabled()
    if not problem.latent_NKD.is_cuda or deterministic or not nvrtc.can_compile(device.index):
        return IntegerSums(intervals, bound, device)
    counted = CountedSums.suits(problem, intervals, bound)
    return (CountedSums if counted else SharedSums)(intervals, bound, device)


def kernel_settings(kind: str, words: int, components: int) -> dict[str, Any]:
    """What all kernels over logits are compiled for: sizes, the function, words per block, warps per program,
    and whether a product and a sum may be one instruction.
    """
    block = min(power_of_two(words), 2048 if words <= SHORT_ROW else 4096)
    return {
        "words": words,
        "K": components,
        "KIND": kind,
        "BLOCK": block,
        "num_warps": 8 if block > 2048 else 4,
        # Not where f is a product: the highest is subtracted from it, and cancels only if both are rounded.
        "enable_fp_fusion": kind not in ("scale", "softcap"),
    }


def few_logits_per_thread(block: int) -> dict[str, int]:
    """For the kernels that add to 64-bit sums: with 16 logits in a thread they would need all its registers
    and more, and a GPU would have room for one program where it has some.
    """
    return {"BLOCK": min(block, 1024), "num_warps": 8}


def power_of_two(n: int) -> int:
    """The lowest one that is not below n; Triton's own takes as long as an operation of torch."""
    return 1 << (n - 1).bit_length()


def scale_in_place(given: Sequence[Tensor], factor: Tensor) -> None:
    """x *= factor, all in one launch; when the factor is 1 on the device, nothing is read or written."""
    for start in range(0, len(given), kernels.SCALED_AT_ONCE):
        some = given[start : start + kernels.SCALED_AT_ONCE]
        sizes = [x.numel() for x in some]
        missing = kernels.SCALED_AT_ONCE - len(some)
        programs = min(-(-max(sizes) // 4096), 2048)
        with torch.cuda.device_of(factor):
            kernels.scale_kernel[(programs, len(some))](
                *some, *[some[0]] * missing, *sizes, *[0] * missing, factor, BLOCK=4096
            )


def narrow_view(logits_NKV: Tensor, dtype: torch.dtype) -> Tensor:
    """The memory of the logits as numbers of `dtype`, one row's in the first part of that row."""
    if dtype == logits_NKV.dtype:
        return logits_NKV
    return logits_NKV.view(dtype)[..., : logits_NKV.shape[-1]]
