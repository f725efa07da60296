"""The pass over one chunk of logits in plain torch, for any device, dtype, function and option.

It computes f, logsumexp, the loss, and dL/dz, with the responsibilities of mixture components known
inside the chunk. On a CPU closed forms go through it in pieces, whose tensors stay in the processor's
caches and take no new memory. `cpu_pass` does the same work, faster, for the commonest cases.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from uncork.ops.abstract_pass import AbstractPass, ChunkResult
from uncork.ops.pointwise import value, value_and_vjp
from uncork.ops.problem import Problem, pieces_of


# Live at once per logit of a piece, as multiples of the logit's own size.
LIVE_COPIES = {
    "identity": 4,
    "scale": 5,
    "sigsoftmax": 7,
    "softcap": 7,
    "table": 14,
    "callable": 24,
}
# A call of these costs as much as many logits do: what is worked out anew for each is a table, or anything.
WHOLE = ("table", "callable")
# Logits of a piece for each thread: enough that starting an operation takes little of its time.
PIECE = 2**17


class TorchPass(AbstractPass):
    """The pass in plain torch."""

    def __init__(self, problem: Problem, function_grad: bool, size: int) -> None:
        copies = LIVE_COPIES[problem.form.kind] + (0 if problem.one_word else 3)
        self.bytes_per_logit = copies * problem.dtype.itemsize
        self.piece_tokens: int | None = None
        if problem.latent_NKD.device.type == "cpu" and problem.form.kind not in WHOLE:
            # The gradient of a piece goes where its logits were; what else it takes, half the budget holds.
            per_token = problem.latent_NKD.shape[1] * problem.weight_VD.shape[0]
            room = min(PIECE * torch.get_num_threads(), size // 2 // self.bytes_per_logit)
            self.piece_tokens = max(1, room // max(per_token, 1))
            self.fixed_bytes = self.piece_tokens * per_token * self.bytes_per_logit
            self.bytes_per_logit = problem.dtype.itemsize
        self.logits_dtype = problem.dtype
        self.function_grad = function_grad
        tokens, components, _ = problem.latent_NKD.shape
        self.losses_N = problem.latent_NKD.new_empty(tokens, dtype=problem.dtype)
        self.dlog_priors_NK = self.losses_N.new_empty(tokens, components)
        self.done = 0
        self.totals: list[Tensor] = []
        if function_grad:
            exact = problem.form.kind == "callable"
            wide = lambda t: torch.promote_types(t.dtype, torch.float32) if exact else torch.float64
            self.totals = [torch.zeros_like(t, dtype=wide(t)) for t in problem.form.tensors]

    def run(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        if self.piece_tokens is None:
            return self._kept(self._of_piece(problem, logits_NKV, row_scale_N))
        first = self.done
        parts = zip(
            problem.split(self.piece_tokens),
            pieces_of(logits_NKV, self.piece_tokens),
            pieces_of(row_scale_N, self.piece_tokens),
            strict=False,
        )
        for part, part_NKV, scale_N in parts:
            result = self._kept(self._of_piece(part, part_NKV, scale_N))
            if result.dlogits_NKV is not None:
                part_NKV.copy_(result.dlogits_NKV)
        here = slice(first, self.done)
        if row_scale_N is None:
            return ChunkResult(self.losses_N[here])
        return ChunkResult(self.losses_N[here], logits_NKV, self.dlog_priors_NK[here])

    def _kept(self, result: ChunkResult) -> ChunkResult:
        """What outlives the chunk, in memory for all of them: on a CPU a small tensor kept from each would
        keep the memory around it from the next one's large ones, up to all N x V in the end.
        """
        here = slice(self.done, self.done + result.loss_N.shape[0])
        self.done = here.stop
        self.losses_N[here] = result.loss_N
        if result.dlog_prior_NK is None:
            return replace(result, loss_N=self.losses_N[here])
        self.dlog_priors_NK[here] = result.dlog_prior_NK
        return replace(result, loss_N=self.losses_N[here], dlog_prior_NK=self.dlog_priors_NK[here])

    def _of_piece(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        if row_scale_N is None:
            scores_NKV, vjp = value(problem.form, logits_NKV), None
        else:
            scores_NKV, vjp = value_and_vjp(problem.form, logits_NKV, self.function_grad)
        # From here on scores are relative to the row's largest: a confident token's loss keeps its digits.
        top_NK1 = scores_NKV.amax(-1, keepdim=True)
        kept_by_autograd = problem.form.kind == "callable"
        scores_NKV = scores_NKV - top_NK1 if kept_by_autograd else scores_NKV.sub_(top_NK1)
        p_NKV = scores_NKV.exp()
        total_NK = p_NKV.sum(-1)
        lse_NK = total_NK.log()
        prior_NK = problem.log_prior_NK
        if prior_NK is not None:
            prior_NK = prior_NK.to(problem.dtype)
        targets = _one_word if problem.one_word else _distribution
        loss_N, pull = targets(problem, scores_NKV, lse_NK, prior_NK)
        loss_N = problem.showing_bad_targets(loss_N)
        if problem.z_loss:
            lse_NK = lse_NK + top_NK1[..., 0]
            loss_N = loss_N + (problem.z_loss * lse_NK.square().mean(-1)).where(problem.valid_N(), 0.0)
        if row_scale_N is None or vjp is None:
            return ChunkResult(loss_N)
        # An ignored token adds nothing, whatever its scale: 1/0 when every token is ignored.
        row_scale_N = torch.where(problem.valid_N(), row_scale_N, 0.0)
        share_NK, subtract_pull = pull(row_scale_N)
        push_NK = share_NK
        if problem.z_loss:
            push_NK = share_NK + (2.0 * problem.z_loss / lse_NK.shape[1]) * row_scale_N[:, None] * lse_NK
        g_NKV = p_NKV.mul_((push_NK / total_NK)[..., None])
        subtract_pull(g_NKV)
        dlogits_NKV, dtensors = vjp(g_NKV)
        for total, term in zip(self.totals, dtensors, strict=True):
            total += term
        return ChunkResult(loss_N, dlogits_NKV, -share_NK)

    def function_gradients(self) -> tuple[Tensor, ...]:
        return tuple(self.totals)


# From each token's upstream gradient: the weight of each row, and what subtracts the target's share from g.
Pull = Callable[[Tensor], tuple[Tensor, Callable[[Tensor], object]]]


def _one_word(
    problem: Problem, scores_NKV: Tensor, lse_NK: Tensor, prior_NK: Tensor | None
) -> tuple[Tensor, Pull]:
    """One word per token: row k of a token weighs as its responsibility r_k, g = r_k (p_k - 1)."""
    index_NK1 = problem.word_N()[:, None, None].expand(*lse_NK.shape, 1)
    joint_NK = scores_NKV.gather(2, index_NK1)[..., 0] - lse_NK
    if prior_NK is not None:
        joint_NK = joint_NK + prior_NK
    weight_N = problem.token_weight_N()

    def pull(row_scale_N: Tensor):
        # A softmax, not exp(joint - log_p): far in the tail both are large and their difference is rough.
        one = joint_NK.shape[1] == 1
        share_NK = (row_scale_N * weight_N)[:, None] * (1.0 if one else joint_NK.softmax(1))
        nothing_N = weight_N == 0.0
        if not one:  # for a word masked by -inf in all components none of them is responsible
            nothing_N = nothing_N | (joint_NK.amax(1) == -torch.inf)
        share_NK = share_NK.masked_fill_(nothing_N[:, None], 0.0)
        return share_NK, lambda g_NKV: g_NKV.scatter_add_(2, index_NK1, -share_NK[..., None])

    return -torch.where(weight_N == 0, 0.0, weight_N * joint_NK.logsumexp(1)), pull


def _distribution(
    problem: Problem, scores_NKV: Tensor, lse_NK: Tensor, prior_NK: Tensor | None
) -> tuple[Tensor, Pull]:
    """Weights q over words: responsibilities are per word, r_kv = prior_k p_kv / p_v."""
    q_NV = problem.distribution_NV()
    joint_NKV = scores_NKV - lse_NK[..., None]
    if prior_NK is not None:
        joint_NKV += prior_NK[..., None]
    log_p_NV = joint_NKV.logsumexp(1) if joint_NKV.shape[1] > 1 else joint_NKV[:, 0]
    loss_N = -torch.where(q_NV == 0, 0.0, q_NV * log_p_NV).sum(-1)

    def pull(row_scale_N: Tensor):
        scaled_NV = q_NV * row_scale_N[:, None]
        pull_NKV = scaled_NV[:, None]
        if joint_NKV.shape[1] > 1:
            # For a word masked by -inf in all components none of them is responsible.
            nothing_N1V = (pull_NKV == 0.0) | (log_p_NV == -torch.inf)[:, None]
            pull_NKV = joint_NKV.softmax(1).mul_(pull_NKV).masked_fill_(nothing_N1V, 0.0)
        return pull_NKV.sum(-1), lambda g_NKV: g_NKV.sub_(pull_NKV)

    return loss_N, pull
