"""The chunk pass on a GPU: launches the kernels and owns what they share between chunks."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from uncork.ops import table
from uncork.ops.problem import Problem
from uncork.ops.torch_pass import AbstractPass, ChunkResult, TorchPass
from uncork.ops.triton import kernels, nvrtc, row_kernels, table_kernels
from uncork.ops.triton.functions import INCREASING, KINDS
from uncork.ops.triton.sums import IntegerSums, Sums
from uncork.ops.triton.window_sums import CountedSums, SharedSums


# Rows up to this many words are read from cache the second time: leaving their factor out gains nothing.
SHORT_ROW = 16_384


def make_pass(problem: Problem, function_grad: bool, size: int) -> AbstractPass:
    """The kernels for float32 and below, and targets of one word or a plain distribution over words under one
    component; the torch pass for anything else.
    """
    plain = problem.dense and problem.latent_NKD.shape[1] == 1 and problem.class_weight_V is None
    targets = problem.one_word or (plain and problem.label_smoothing == 0.0 and problem.log_prior_NK is None)
    usable = problem.dtype == torch.float32 and targets and problem.form.kind in KINDS
    return (TritonPass if usable else TorchPass)(problem, function_grad, size)


class TritonPass(AbstractPass):
    """The pass in kernels; the gradient, in the input's dtype, is written over the logits.

    A table needs float32 logits: see `uncork.functions.PLIF`. The others take those of the input's dtype,
    as a linear layer would give them, in half the memory.
    """

    narrow_sums = True

    def __init__(self, problem: Problem, function_grad: bool, size: int) -> None:
        form = problem.form
        self.form = form
        self.logits_dtype = torch.float32 if form.kind == "table" else problem.latent_NKD.dtype
        self.bytes_per_logit = self.logits_dtype.itemsize
        # float16 has no room for a row without its factor, and in float32 it would cost the last digit; but
        # the rows of a mixture are too many to be read twice.
        dtype, components = problem.latent_NKD.dtype, problem.latent_NKD.shape[1]
        long = dtype == torch.bfloat16 and len(problem.weight_VD) > SHORT_ROW
        worth = long or (components > 1 and dtype != torch.float16)
        self.fold = worth and form.kind in INCREASING and problem.one_word
        self.parameter: Tensor | None = None
        self.intervals, self.step = 2, 1.0
        self.sums: Sums | None = None
        self.dscale: Tensor | None = None
        self.want_dscale = form.kind == "scale" and function_grad
        self.scratch: dict[str, Tensor] = {}
        if form.kind == "scale":
            self.parameter = form.tensors[0].float()
        if form.kind == "table":
            self.intervals = form.tensors[0].numel() - 1
            self.step = table.step_of(form.tensors[0], form.constants[0])
            self.parameter = _pairs(form.tensors[0], self.intervals, self.step)
            if function_grad:
                self.sums = make_sums(problem, self.intervals, form.constants[0])

    def run(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        tokens, components, words = logits_NKV.shape
        rows, latent_NKD = tokens * components, problem.latent_NKD
        want_gradient = row_scale_N is not None
        dlogits_NKV = _narrow_view(logits_NKV, latent_NKD.dtype) if want_gradient else logits_NKV
        loss_N = torch.empty(tokens, device=logits_NKV.device)
        # A kernel needs some pointer in place of what it does not touch: the losses serve.
        unused = loss_N
        way = None if self.sums is None or not want_gradient or not tokens else self.sums.way
        fold = self.fold and want_gradient
        weight, prior = problem.class_weight_V, problem.log_prior_NK
        dlog_prior_NK = loss_N.new_empty(tokens, components) if want_gradient and prior is not None else None
        dscale_N = loss_N.new_empty(tokens) if self.want_dscale and want_gradient else None
        target = (problem.target.float() if problem.dense else problem.target).contiguous()
        scaled_RD = factor_R1 = row_stats = None
        sums = unit = stats = unused
        if fold:
            latent_NKD = latent_NKD.contiguous()
            scaled_RD = self._shared("scaled", (rows, latent_NKD.shape[2]), latent_NKD)
            factor_R1 = self._shared("factor", (rows, 1), loss_N)
        if way == "inside":
            sums, unit = self.sums.inside(problem, logits_NKV, row_scale_N)
        elif way == "after":
            stats = self._shared("stats", (4 * rows,), loss_N)
        if way == "before":
            row_stats = self.sums.before(problem, logits_NKV, row_scale_N, self.parameter)
        elif fold or (components > 1 and tokens):
            row_stats = self._shared("row_stats", ((6 if fold else 3) * rows,), loss_N)
            self._reduce_rows(problem, logits_NKV, target, row_stats, fold)
        block, num_warps = launch_shape(words)
        if tokens:
            kernels.token_kernel[(tokens,)](
                logits_NKV,
                dlogits_NKV,
                logits_NKV.stride(1),
                dlogits_NKV.stride(1),
                target,
                unused if weight is None else weight.contiguous(),
                unused if prior is None else prior.contiguous(),
                unused if row_scale_N is None else row_scale_N,
                0 if row_scale_N is None else row_scale_N.stride(0),
                latent_NKD,
                latent_NKD if scaled_RD is None else scaled_RD,
                unused if factor_R1 is None else factor_R1,
                loss_N,
                unused if dlog_prior_NK is None else dlog_prior_NK,
                unused if row_stats is None else row_stats,
                stats,
                unused if dscale_N is None else dscale_N,
                sums,
                unit,
                unused if self.parameter is None else self.parameter,
                *self.form.constants,
                self.intervals,
                self.step,
                rows,
                problem.ignore_index,
                problem.z_loss,
                words=words,
                width=latent_NKD.shape[2],
                K=components,
                K_BLOCK=triton.next_power_of_2(components),
                KIND=KINDS[self.form.kind],
                DENSE=problem.dense,
                HAS_WEIGHT=weight is not None,
                HAS_PRIOR=prior is not None,
                WANT_GRADIENT=want_gradient and way != "after",
                WANT_STATS=way == "after",
                WANT_SUMS=way == "inside",
                ROWS_GIVEN=row_stats is not None,
                FOLD=fold,
                BLOCK=block,
                num_warps=num_warps,
            )
        if row_scale_N is None:
            return ChunkResult(loss_N)
        if way == "after":
            self.sums.after(logits_NKV, dlogits_NKV, target, stats, self.parameter)
        if dscale_N is not None:
            dscale = dscale_N.sum(dtype=torch.float64)
            self.dscale = dscale if self.dscale is None else self.dscale + dscale
        return ChunkResult(loss_N, dlogits_NKV, dlog_prior_NK, factor_R1, scaled_RD)

    def _shared(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory that chunks of one length use one after another."""
        held = self.scratch.get(name)
        if held is None or held.shape != shape:
            held = self.scratch[name] = like.new_empty(shape)
        return held

    def _reduce_rows(
        self, problem: Problem, logits_NKV: Tensor, target: Tensor, row_stats: Tensor, fold: bool
    ) -> None:
        """A program for every row: those of a token are too few to fill a GPU, and one after another slow."""
        tokens, components, words = logits_NKV.shape
        rows = tokens * components
        block, num_warps = launch_shape(words)
        if rows:
            row_kernels.row_kernel[(rows,)](
                logits_NKV, logits_NKV.stride(1), target, row_stats,
                row_stats if self.parameter is None else self.parameter, *self.form.constants,
                self.intervals, self.step, rows, problem.ignore_index,
                words=words, K=components, KIND=KINDS[self.form.kind], FOLD=fold,
                SQUARE=self.form.kind == "sigsoftmax" and self.form.constants[1] == 2.0,
                BLOCK=block, num_warps=num_warps,
            )  # fmt: skip

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


def launch_shape(words: int) -> tuple[int, int]:
    """Words per block and warps per program."""
    block = min(triton.next_power_of_2(words), 2048 if words <= SHORT_ROW else 4096)
    return block, 8 if block > 2048 else 4


def scale_in_place(given: Sequence[Tensor], factor: Tensor) -> None:
    """x *= factor, all in one launch; when the factor is 1 on the device, nothing is read or written."""
    for start in range(0, len(given), kernels.SCALED_AT_ONCE):
        some = given[start : start + kernels.SCALED_AT_ONCE]
        sizes = [x.numel() for x in some]
        missing = kernels.SCALED_AT_ONCE - len(some)
        programs = min(triton.cdiv(max(sizes), 4096), 2048)
        kernels.scale_kernel[(programs, len(some))](
            *some, *[some[0]] * missing, *sizes, *[0] * missing, factor, BLOCK=4096
        )


def _pairs(knot_values: Tensor, intervals: int, step: float) -> Tensor:
    pairs = knot_values.new_empty(intervals, dtype=torch.int64)
    table_kernels.pairs_kernel[(triton.cdiv(intervals, 1024),)](
        knot_values, pairs, intervals, 1.0 / step, BLOCK=1024
    )
    return pairs


def _narrow_view(logits_NKV: Tensor, dtype: torch.dtype) -> Tensor:
    """The memory of the logits as numbers of `dtype`, one row's in the first part of that row."""
    if dtype == logits_NKV.dtype:
        return logits_NKV
    return logits_NKV.view(dtype)[..., : logits_NKV.shape[-1]]
