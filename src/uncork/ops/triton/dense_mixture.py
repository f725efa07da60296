"""The chunk pass of mixtures whose targets are distributions over words: `dense_kernels` has the maths."""

import torch
from torch import Tensor

from uncork.ops.abstract_pass import ChunkResult
from uncork.ops.problem import Problem
from uncork.ops.triton import dense_kernels
from uncork.ops.triton.kernel_pass import KernelPass, narrow_view, power_of_two


class DenseMixturePass(KernelPass):
    """Rows are reduced; tokens give losses, shares and two numbers for each word; rows become gradients."""

    def __init__(self, problem: Problem, function_grad: bool, size: int) -> None:
        super().__init__(problem, function_grad, size)
        self.bytes_per_logit += -(-8 // problem.latent_NKD.shape[1])  # the two numbers

    def run(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        tokens, components, words = logits_NKV.shape
        rows = tokens * components
        prior_NK = problem.log_prior_NK
        assert prior_NK is not None
        loss_N = torch.empty(tokens, dtype=torch.float32, device=logits_NKV.device)
        target_NV = problem.target.float().contiguous()
        row_sums = self.shared("row_sums", (2 * rows,), loss_N)
        self.reduce_rows(problem, logits_NKV, target_NV, row_sums, fold=False)
        dlog_prior_NK = row_factors = tops_NV = pull_NV = None
        if row_scale_N is not None:
            dlog_prior_NK = loss_N.new_empty(tokens, components)
            row_factors = self.shared("row_factors", (5 * rows,), loss_N)
            tops_NV = self.shared("tops", (tokens, words), loss_N)
            pull_NV = self.shared("pull", (tokens, words), loss_N)
        constants = (self.parameter, *self.form.constants, self.intervals, self.step, rows)
        if tokens:
            dense_kernels.distribution_kernel[(tokens,)](
                logits_NKV, logits_NKV.stride(1), target_NV, prior_NK.contiguous(), row_scale_N,
                0 if row_scale_N is None else row_scale_N.stride(0), loss_N, dlog_prior_NK, row_sums,
                row_factors, tops_NV, pull_NV, *constants, problem.z_loss,
                K_BLOCK=power_of_two(components), **self.settings,
            )  # fmt: skip
        if row_scale_N is None:
            return ChunkResult(loss_N)
        dlogits_NKV = narrow_view(logits_NKV, problem.latent_NKD.dtype)
        if tokens and self.sums is not None and self.sums.way == "after":
            self.sums.after(logits_NKV, dlogits_NKV, pull_NV, row_factors, self.parameter, tops_NV)
        elif tokens:
            sums = unit = None
            if self.sums is not None:
                sums, unit = self.sums.inside(problem, logits_NKV, row_scale_N)
            dscale_R = loss_N.new_empty(rows) if self.want_dscale else None
            dense_kernels.row_gradient_kernel[(rows,)](
                logits_NKV, dlogits_NKV, logits_NKV.stride(1), dlogits_NKV.stride(1), row_factors, tops_NV,
                pull_NV, dscale_R, sums, unit, *constants, **self.settings,
            )  # fmt: skip
            if dscale_R is not None:
                self.add_dscale(dscale_R)
        return ChunkResult(loss_N, dlogits_NKV, dlog_prior_NK)
