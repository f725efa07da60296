"""The chunk pass on a GPU: launches the kernels and owns what they share between chunks."""

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
        form, device = problem.form, problem.latent_NKD.device
        self.form = form
        self.logits_dtype = torch.float32 if form.kind == "table" else problem.latent_NKD.dtype
        self.bytes_per_logit = self.logits_dtype.itemsize
        self.unused = torch.empty(1, device=device)
        # float16 has no room for a row without its factor, and in float32 it would cost the last digit; but
        # the rows of a mixture are too many to be read twice.
        dtype, components = problem.latent_NKD.dtype, problem.latent_NKD.shape[1]
        long = dtype == torch.bfloat16 and len(problem.weight_VD) > SHORT_ROW
        worth = long or (components > 1 and dtype != torch.float16)
        self.fold = worth and form.kind in INCREASING and problem.one_word
        self.parameter, self.intervals, self.step = self.unused, 2, 1.0
        self.sums: Sums | None = None
        self.dscale: Tensor | None = None
        if form.kind == "scale":
            self.parameter = form.tensors[0].reshape(1).float()
            if function_grad:
                self.dscale = torch.zeros((), dtype=torch.float64, device=device)
        if form.kind == "table":
            self.intervals = form.tensors[0].numel() - 1
            self.step = table.step_of(form.tensors[0], form.constants[0])
            self.parameter = _pairs(form.tensors[0], self.intervals, self.step)
            if function_grad:
                self.sums = make_sums(problem, self.intervals, form.constants[0])

    def run(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        tokens, components, words = logits_NKV.shape
        rows = tokens * components
        want_gradient = row_scale_N is not None
        dlogits_NKV = logits_NKV if not want_gradient else _narrow_view(logits_NKV, problem.latent_NKD.dtype)
        way = None if self.sums is None or not want_gradient or not tokens else self.sums.way
        loss_N = self.unused.new_empty(tokens)
        dlog_prior_NK = self.unused.new_empty(tokens, components) if want_gradient else self.unused
        dscale_N = self.unused.new_empty(tokens) if self.dscale is not None and want_gradient else self.unused
        fold = self.fold and want_gradient
        latent_NKD = problem.latent_NKD.contiguous()
        scaled_NKD = torch.empty_like(latent_NKD) if fold else None
        factor_NK = self.unused.new_empty(tokens, components) if fold else None
        weight, prior = problem.class_weight_V, problem.log_prior_NK
        target = (problem.target.float() if problem.dense else problem.target).contiguous()
        sums = unit = stats = self.unused
        row_stats = None
        if way == "inside":
            sums, unit = self.sums.inside(problem, logits_NKV, row_scale_N)
        elif way == "after":
            stats = self.unused.new_empty(4 * rows)
        if way == "before":
            row_stats = self.sums.before(problem, logits_NKV, row_scale_N, self.parameter)
        elif fold or (components > 1 and tokens):
            row_stats = self._reduce_rows(problem, logits_NKV, target, fold)
        block, num_warps = launch_shape(words)
        if tokens:
            kernels.token_kernel[(tokens,)](
                logits_NKV,
                dlogits_NKV,
                logits_NKV.stride(1),
                dlogits_NKV.stride(1),
                target,
                target,
                self.unused if weight is None else weight.contiguous(),
                self.unused if prior is None else prior.contiguous(),
                self.unused if row_scale_N is None else row_scale_N,
                0 if row_scale_N is None else row_scale_N.stride(0),
                latent_NKD,
                latent_NKD if scaled_NKD is None else scaled_NKD,
                self.unused if factor_NK is None else factor_NK,
                loss_N,
                dlog_prior_NK,
                self.unused if row_stats is None else row_stats,
                stats,
                dscale_N,
                sums,
                unit,
                self.parameter,
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
        if self.dscale is not None:
            self.dscale += dscale_N.sum(dtype=torch.float64)
        return ChunkResult(loss_N, dlogits_NKV, dlog_prior_NK, factor_NK, scaled_NKD)

    def _reduce_rows(self, problem: Problem, logits_NKV: Tensor, target: Tensor, fold: bool) -> Tensor:
        """A program for every row: those of a token are too few to fill a GPU, and one after another slow."""
        tokens, components, words = logits_NKV.shape
        rows = tokens * components
        row_stats = self.unused.new_empty((6 if fold else 3) * rows)
        block, num_warps = launch_shape(words)
        if rows:
            row_kernels.row_kernel[(rows,)](
                logits_NKV, logits_NKV.stride(1), target, row_stats, self.parameter, *self.form.constants,
                self.intervals, self.step, rows, problem.ignore_index,
                words=words, K=components, KIND=KINDS[self.form.kind], FOLD=fold,
                SQUARE=self.form.kind == "sigsoftmax" and self.form.constants[1] == 2.0,
                BLOCK=block, num_warps=num_warps,
            )  # fmt: skip
        return row_stats

    def function_gradients(self) -> tuple[Tensor, ...]:
        if self.dscale is not None:
            return (self.dscale.clone().reshape(self.form.tensors[0].shape),)
        return () if self.sums is None else (self.sums.knot_gradient(),)


def make_sums(problem: Problem, intervals: int, bound: float) -> Sums:
    """The fast sums on a GPU, unless torch was asked for deterministic algorithms."""
    device = problem.latent_NKD.device
    deterministic = torch.are_deterministic_algorithms_enabled()
    if device.type != "cuda" or deterministic or not nvrtc.can_compile(device.index):
        return IntegerSums(intervals, bound, device)
    counted = CountedSums.suits(problem, intervals, bound)
    return (CountedSums if counted else SharedSums)(intervals, bound, device)


def launch_shape(words: int) -> tuple[int, int]:
    """Words per block and warps per program."""
    block = min(triton.next_power_of_2(words), 2048 if words <= SHORT_ROW else 4096)
    return block, 8 if block > 2048 else 4


def scale_in_place(x: Tensor, factor: Tensor) -> Tensor:
    """x *= factor; when the factor turns out to be 1 on the device, nothing is read or written."""
    if x.numel():
        programs = min(triton.cdiv(x.numel(), 4096), 2048)
        kernels.scale_kernel[(programs,)](x, factor, x.numel(), BLOCK=4096)
    return x


def _pairs(knot_values: Tensor, intervals: int, step: float) -> Tensor:
    pairs = knot_values.new_empty(2 * intervals, dtype=torch.float32)
    table_kernels.pairs_kernel[(triton.cdiv(intervals, 1024),)](
        knot_values, pairs, intervals, 1.0 / step, BLOCK=1024
    )
    return pairs.view(torch.int64)


def _narrow_view(logits_NKV: Tensor, dtype: torch.dtype) -> Tensor:
    """The memory of the logits as numbers of `dtype`, one row's in the first part of that row."""
    if dtype == logits_NKV.dtype:
        return logits_NKV
    return logits_NKV.view(dtype)[..., : logits_NKV.shape[-1]]
