"""The definition of every loss, in plain torch; it materialises everything and autograd does the rest."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from uncork.ops import nonfinite, pointwise
from uncork.ops.problem import Problem
from uncork.ops.scores import over_components


def token_losses(problem: Problem) -> Tensor:
    """The loss of each token, (N,). Ignored tokens give 0."""
    dtype = problem.dtype
    bias = None if problem.bias_V is None else problem.bias_V.to(dtype)
    logits_NKV = linear(problem.latent_NKD.to(dtype), problem.weight_VD.to(dtype), bias)
    nonfinite.check(logits_NKV)
    scores_NKV = pointwise.value(problem.form, logits_NKV)
    log_p_NKV = scores_NKV.log_softmax(-1)
    if problem.log_prior_NK is not None:
        log_p_NKV = log_p_NKV + problem.log_prior_NK.to(dtype)[..., None]
    log_p_NV = over_components(log_p_NKV)
    # A word of weight 0 adds 0 even where its log-probability is -inf.
    if problem.one_word:
        log_p_N = log_p_NV.gather(1, problem.word_N()[:, None])[:, 0]
        weight_N = problem.token_weight_N()
        loss_N = -torch.where(weight_N == 0, 0.0, weight_N * log_p_N)
    else:
        q_NV = problem.distribution_NV()
        loss_N = -torch.where(q_NV == 0, 0.0, q_NV * log_p_NV).sum(-1)
    if problem.z_loss:
        square_N = scores_NKV.logsumexp(-1).square().mean(-1)
        loss_N = loss_N + (problem.z_loss * square_N).where(problem.valid_N(), 0.0)
    return problem.showing_bad_targets(loss_N)


def loss(problem: Problem, reduction: str) -> Tensor:
    """The loss under one of the three reductions."""
    loss_N = token_losses(problem)
    if reduction == "none":
        return loss_N
    if reduction == "sum":
        return loss_N.sum()
    # With nothing to count, NaN with gradients of 0, as torch has it: 0/0 is added as a constant.
    count = problem.denominator()
    return loss_N.sum() / count.where(count != 0, 1.0) + 0.0 / count
