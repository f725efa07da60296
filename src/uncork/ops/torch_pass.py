"""The pass over one chunk of logits in plain torch, for any device, dtype, function and option.

It computes f, logsumexp, the loss, and dL/dz, with the responsibilities of mixture components known
inside the chunk. `cpu_pass` does the same work, faster, for the commonest cases.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uncork.ops.pointwise import value_and_vjp
from uncork.ops.problem import Problem


@dataclass(frozen=True)
class ChunkResult:
    """The loss of each token of a chunk and, when asked for, gradients."""

    loss_N: Tensor
    dlogits_NKV: Tensor | None = None
    dlog_prior_NK: Tensor | None = None
    dtensors: tuple[Tensor, ...] = ()  # of the function's tensors, float64 sums where they are sums


# Bytes live at once per logit, as multiples of the logit's own size.
LIVE_COPIES = {
    "identity": 4,
    "scale": 5,
    "sigsoftmax": 7,
    "softcap": 7,
    "table": 14,
    "callable": 24,
}


def bytes_per_logit(problem: Problem) -> int:
    """An upper estimate of what the pass allocates per logit, the logits included."""
    copies = LIVE_COPIES[problem.form.kind]
    if not problem.one_word:
        copies += 3
    return copies * problem.dtype.itemsize


def run(problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None, function_grad: bool) -> ChunkResult:
    """The pass. `row_scale_N` is the upstream gradient of each token's loss; None asks for the loss."""
    scores_NKV, vjp = value_and_vjp(problem.form, logits_NKV, function_grad)
    lse_NK = scores_NKV.logsumexp(-1)
    prior_NK = problem.log_prior_NK
    if prior_NK is not None:
        prior_NK = prior_NK.to(problem.dtype)
    backward = _one_word if problem.one_word else _distribution
    loss_N, gradient = backward(problem, scores_NKV, lse_NK, prior_NK)
    if problem.z_loss:
        loss_N = loss_N + problem.z_loss * problem.valid_N() * lse_NK.square().mean(-1)
    if row_scale_N is None:
        return ChunkResult(loss_N)
    # An ignored token adds nothing, whatever its scale: 1/0 when every token is ignored.
    row_scale_N = torch.where(problem.valid_N(), row_scale_N, 0.0)
    g_NKV, dlog_prior_NK = gradient(row_scale_N)
    if problem.z_loss:
        factor_NK = (2.0 * problem.z_loss / lse_NK.shape[1]) * row_scale_N[:, None] * lse_NK
        g_NKV += (scores_NKV - lse_NK[..., None]).exp_().mul_(factor_NK[..., None])
    dlogits_NKV, dtensors = vjp(g_NKV)
    return ChunkResult(loss_N, dlogits_NKV, dlog_prior_NK, tuple(dtensors))


Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]


def _one_word(
    problem: Problem, scores_NKV: Tensor, lse_NK: Tensor, prior_NK: Tensor | None
) -> tuple[Tensor, Gradient]:
    """One word per token: row k of a token weighs as its responsibility r_k, g = r_k (p_k - 1)."""
    index_NK1 = problem.word_N()[:, None, None].expand(*lse_NK.shape, 1)
    joint_NK = scores_NKV.gather(2, index_NK1)[..., 0] - lse_NK
    if prior_NK is not None:
        joint_NK = joint_NK + prior_NK
    log_p_N = joint_NK.logsumexp(1)
    weight_N = problem.token_weight_N()

    def gradient(row_scale_N: Tensor) -> tuple[Tensor, Tensor]:
        share_NK = (row_scale_N * weight_N)[:, None] * (joint_NK - log_p_N[:, None]).exp()
        g_NKV = (scores_NKV - lse_NK[..., None]).exp_().mul_(share_NK[..., None])
        g_NKV.scatter_add_(2, index_NK1, -share_NK[..., None])
        return g_NKV, -share_NK

    return -weight_N * log_p_N, gradient


def _distribution(
    problem: Problem, scores_NKV: Tensor, lse_NK: Tensor, prior_NK: Tensor | None
) -> tuple[Tensor, Gradient]:
    """Weights q over words: responsibilities are per word, r_kv = prior_k p_kv / p_v."""
    q_NV = problem.distribution_NV()
    log_p_NKV = scores_NKV - lse_NK[..., None]
    joint_NKV = log_p_NKV if prior_NK is None else log_p_NKV + prior_NK[..., None]
    log_p_NV = joint_NKV.logsumexp(1) if joint_NKV.shape[1] > 1 else joint_NKV[:, 0]
    loss_N = -torch.where(q_NV == 0, 0.0, q_NV * log_p_NV).sum(-1)

    def gradient(row_scale_N: Tensor) -> tuple[Tensor, Tensor]:
        scaled_NV = q_NV * row_scale_N[:, None]
        if joint_NKV.shape[1] > 1:
            pull_NKV = (joint_NKV - log_p_NV[:, None]).exp_().mul_(scaled_NV[:, None])
        else:
            pull_NKV = scaled_NV[:, None]
        share_NK = pull_NKV.sum(-1)
        return log_p_NKV.exp().mul_(share_NK[..., None]).sub_(pull_NKV), -share_NK

    return loss_N, gradient
