"""The chunk pass on a GPU: which kernels take which problem, and the launches for all but dense mixtures."""

from dataclasses import replace

import torch
from torch import Tensor

from uncork.ops.abstract_pass import AbstractPass, ChunkResult
from uncork.ops.problem import Problem
from uncork.ops.torch_pass import TorchPass
from uncork.ops.triton import kernel_pass, kernels
from uncork.ops.triton.compressed import DTYPES
from uncork.ops.triton.dense_mixture import DenseMixturePass
from uncork.ops.triton.functions import INCREASING, KINDS
from uncork.ops.triton.kernel_pass import KernelPass, narrow_view, power_of_two
from uncork.ops.triton.row_gradient import RowGradient


def make_pass(problem: Problem, function_grad: bool, size: int) -> AbstractPass:
    """The kernels for float32 and below and the functions they know; the torch pass for anything else."""
    if problem.dtype != torch.float32 or problem.form.kind not in KINDS:
        return TorchPass(problem, function_grad, size)
    plain = problem.dense and problem.class_weight_V is None and problem.label_smoothing == 0.0
    if not plain and not problem.one_word:
        return SpreadPass(problem, function_grad, size)
    mixture = problem.log_prior_NK is not None
    return (DenseMixturePass if plain and mixture else TritonPass)(problem, function_grad, size)


class SpreadPass(AbstractPass):
    """Targets that smoothing or class weights spread over words: made distributions, chunk by chunk."""

    narrow_sums, row_bytes = KernelPass.narrow_sums, KernelPass.row_bytes

    def __init__(self, problem: Problem, function_grad: bool, size: int) -> None:
        none_NV = problem.latent_NKD.new_empty((0, len(problem.weight_VD)), dtype=torch.float32)
        self.inner = make_pass(_with_distribution(problem, none_NV), function_grad, size)
        self.logits_dtype = self.inner.logits_dtype
        made = 8 if problem.dense else 4  # what is made, and what of it is there twice for a moment
        self.bytes_per_logit = self.inner.bytes_per_logit - (-made // problem.latent_NKD.shape[1])

    def run(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        valid_N = problem.valid_N()
        if row_scale_N is not None:
            row_scale_N = row_scale_N.where(valid_N, 0.0)  # by which the kernels know whom to ignore
        result = self.inner.run(
            _with_distribution(problem, problem.distribution_NV()), logits_NKV, row_scale_N
        )
        loss_N = problem.showing_bad_targets(result.loss_N.masked_fill_(~valid_N, 0.0))
        return replace(result, loss_N=loss_N)

    def function_gradients(self) -> tuple[Tensor, ...]:
        return self.inner.function_gradients()


def _with_distribution(problem: Problem, target_NV: Tensor) -> Problem:
    """The same problem with a target in which smoothing and class weights are."""
    return replace(problem, target=target_NV, class_weight_V=None, label_smoothing=0.0)


class TritonPass(KernelPass):
    """Targets of one word, under one component or several, or distributions under one."""

    def __init__(self, problem: Problem, function_grad: bool, size: int) -> None:
        super().__init__(problem, function_grad, size)
        # float16 has no room for a row without its factor, and in float32 it would cost the last digit; but
        # the rows of a mixture are too many to be read twice.
        dtype, components = problem.latent_NKD.dtype, problem.latent_NKD.shape[1]
        long = dtype == torch.bfloat16 and len(problem.weight_VD) > kernel_pass.SHORT_ROW
        worth = long or (components > 1 and dtype != torch.float16)
        self.fold = worth and self.form.kind in INCREASING and problem.one_word
        self.row_gradient: RowGradient | None = None
        if self.sums is not None and self.sums.way == "before" and dtype in DTYPES:
            assert self.parameter is not None
            self.row_gradient = RowGradient(self.form.tensors[0], self.parameter, self.form.constants[0])

    def run(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        tokens, components, _ = logits_NKV.shape
        rows, latent_NKD = tokens * components, problem.latent_NKD
        want_gradient = row_scale_N is not None
        dlogits_NKV = narrow_view(logits_NKV, latent_NKD.dtype) if want_gradient else logits_NKV
        loss_N = torch.empty(tokens, dtype=torch.float32, device=logits_NKV.device)
        way = None if self.sums is None or not want_gradient or not tokens else self.sums.way
        # What another kernel writes dL/dz from, instead of the token kernel.
        factors_wanted = way == "after" or (way == "before" and self.row_gradient is not None)
        fold = self.fold and want_gradient
        weight, prior = problem.class_weight_V, problem.log_prior_NK
        dlog_prior_NK = loss_N.new_empty(tokens, components) if want_gradient and prior is not None else None
        dscale_N = loss_N.new_empty(tokens) if self.want_dscale and want_gradient else None
        target = (problem.target.float() if problem.dense else problem.target).contiguous()
        scaled_RD = factor_R1 = row_sums = row_factors = sums = unit = None
        if fold:
            latent_NKD = latent_NKD.contiguous()
            scaled_RD = self.shared("scaled", (rows, latent_NKD.shape[2]), latent_NKD)
            factor_R1 = self.shared("factor", (rows, 1), loss_N)
        if way == "inside":
            sums, unit = self.sums.inside(problem, logits_NKV, row_scale_N)
        if factors_wanted:
            row_factors = self.shared("row_factors", (5 * rows,), loss_N)
        if way == "before":
            row_sums = self.sums.before(problem, logits_NKV, row_scale_N, self.parameter)
        elif fold or ((components > 1 or self.row_reducer is not None) and tokens):
            row_sums = self.shared("row_sums", ((6 if fold else 3) * rows,), loss_N)
            self.reduce_rows(problem, logits_NKV, target, row_sums, fold)
        if tokens:
            kernels.token_kernel[(tokens,)](
                logits_NKV,
                dlogits_NKV if want_gradient and not factors_wanted else None,
                logits_NKV.stride(1),
                dlogits_NKV.stride(1),
                target,
                None if weight is None else weight.contiguous(),
                None if prior is None else prior.contiguous(),
                row_scale_N,
                0 if row_scale_N is None else row_scale_N.stride(0),
                latent_NKD if fold else None,
                scaled_RD,
                factor_R1,
                loss_N,
                dlog_prior_NK,
                row_sums,
                row_factors,
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
                width=latent_NKD.shape[2],
                K_BLOCK=power_of_two(components),
                DENSE=problem.dense,
                FOLD=fold,
                **self.settings,
            )
        if row_scale_N is None:
            return ChunkResult(loss_N)
        if way == "after":
            self.sums.after(logits_NKV, dlogits_NKV, target, row_factors, self.parameter)
        elif factors_wanted:
            self.row_gradient.write(logits_NKV, dlogits_NKV, target, row_factors, self.sums)
        if dscale_N is not None:
            self.add_dscale(dscale_N)
        return ChunkResult(loss_N, dlogits_NKV, dlog_prior_NK, factor_R1, scaled_RD)
