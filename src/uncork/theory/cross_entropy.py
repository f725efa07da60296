"""Theorem 2, left side: the least cross-entropy a Linear-Softmax reaches over h, with a
certificate.

For fixed words W (V, D), Q_h = softmax(W h) and a true distribution P,

    H(P, Q_h) = -<E_P[w], h> + log sum_j exp <w_j, h>

is convex in h. Damped Newton minimises it for many contexts at once, and weak duality certifies the
answer: for every R >= 0 with sum R = 1 and E_R[w] = E_P[w],

    H(R) <= inf_h H(P, Q_h) <= H(P, Q_h).

The R used is one Newton correction of Q_h, R_j = Q_j (1 + <w_j - E_Q[w], step>), which meets the
constraints exactly and tends to Q_h at the optimum. `gap` = H(P, Q_h) - H(R) bounds what is left to
gain.

When P has zeros, E_P[w] can lie on the boundary of the hull of the words. The printed "min over h"
is then an infimum that no finite h reaches; the maximum of the entropy is always reached. Values
and gaps here stay right in that case.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CrossEntropyOptimum:
    """Per context: the best h found, the cross-entropy there, and a proven lower bound."""

    hidden: Tensor  # (N, D)
    value: Tensor  # (N,) H(P, Q_h)
    lower: Tensor  # (N,) H(R) of a feasible R
    residual: float  # largest |E_R[w] - E_P[w]|: how exactly R meets the constraints

    @property
    def gap(self) -> Tensor:
        """What a better h could still gain, at most."""
        return self.value - self.lower


def entropy(distribution: Tensor) -> Tensor:
    """H(R) = -sum R log R over the last dimension, with 0 log 0 = 0."""
    return -torch.xlogy(distribution, distribution).sum(-1)


def cross_entropy(target: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
    """H(P, Q_h) for each row of `hidden`."""
    logits = hidden @ weight.T
    return logits.logsumexp(-1) - (target * logits).sum(-1)


def minimum_cross_entropy(
    target: Tensor,
    weight: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-9,
    max_iterations: int = 100,
) -> CrossEntropyOptimum:
    """Minimise H(P, Q_h) over h for every row of `target` (N, V), given words `weight` (V, D).

    Stops when every gap is at most `tolerance` nats, or after `max_iterations`; `gap` tells which.
    Runs in float64 on the device of `target`; memory is N x V a few times, so pass contexts in
    chunks.
    """
    _check(target, weight)
    target, weight = target.double(), weight.double()
    target = target / target.sum(-1, keepdim=True)  # single precision leaves sums off by 1e-7
    hidden = target.new_zeros(len(target), weight.shape[1]) if start is None else start.double()
    moment = target @ weight
    iteration = 0
    while True:
        probability = (hidden @ weight.T).softmax(-1)
        step = _newton_step(probability, weight, moment)
        value = cross_entropy(target, weight, hidden)
        lower, residual = _lower_bound(target, weight, moment, probability, step)
        if iteration == max_iterations or bool((value - lower <= tolerance).all()):
            return CrossEntropyOptimum(hidden, value, lower, residual)
        # Rounding can turn a step uphill where nothing is left to gain: it must not be taken.
        slope = ((probability @ weight - moment) * step).sum(-1).clamp(max=0)
        hidden = _line_search(target, weight, hidden, step, value, slope)
        iteration += 1


def _check(target: Tensor, weight: Tensor) -> None:
    if target.ndim != 2 or weight.ndim != 2 or target.shape[1] != weight.shape[0]:
        raise ValueError(
            "`target` must be (N, V) and `weight` (V, D) with the same V; got "
            f"{tuple(target.shape)} and {tuple(weight.shape)}."
        )
    if bool((target < 0).any()) or not bool(((target.sum(-1) - 1).abs() < 1e-3).all()):
        raise ValueError(
            "`target` must have rows that are distributions, nonnegative and summing to 1; got an entry of "
            f"{target.min():.3g} or sums from {target.sum(-1).min():.4g} to {target.sum(-1).max():.4g}. "
            "Divide each row by its sum."
        )


def _newton_step(probability: Tensor, weight: Tensor, moment: Tensor) -> Tensor:
    """Solve Cov_Q[w] step = E_P[w] - E_Q[w]; a tiny ridge zeroes directions without effect."""
    width = weight.shape[1]
    mean = probability @ weight
    products = (weight[:, :, None] * weight[:, None, :]).reshape(len(weight), -1)
    covariance = (probability @ products).reshape(-1, width, width) - mean[:, :, None] * mean[:, None]
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-30)
    ridge = 1e-11 * scale[:, None, None] * torch.eye(width, dtype=weight.dtype, device=weight.device)
    rest = moment - mean
    step = torch.zeros_like(rest)
    for _ in range(3):  # refinement removes what the ridge leaves, so that R meets the constraints
        residual = rest - (covariance @ step[:, :, None])[..., 0]
        # A context whose Q is one word has no covariance left: its step is zero, and no error.
        solved = torch.linalg.solve_ex(covariance + ridge, residual[:, :, None])[0][..., 0]
        step = step + torch.nan_to_num(solved, nan=0.0, posinf=0.0, neginf=0.0)
    return step


def _lower_bound(
    target: Tensor, weight: Tensor, moment: Tensor, probability: Tensor, step: Tensor
) -> tuple[Tensor, float]:
    """H(R) of a feasible R near Q, never below H(P); words that push R below zero are left out of it."""
    base = probability
    best = entropy(target)
    residual = 0.0
    for _ in range(4):
        centred = 1 + (step @ weight.T) - ((base @ weight) * step).sum(-1, keepdim=True)
        candidate = base * centred
        # P is feasible too, so the segment from P towards the candidate is, as far as it stays
        # nonnegative.
        move = candidate - target
        reach = torch.where(move < 0, target / (-move).clamp(min=1e-300), torch.inf).amin(-1)
        candidate = target + reach.clamp(max=1)[:, None] * move
        error = (candidate @ weight - moment).abs().amax(-1)
        good = (error < 1e-8 * (1 + moment.abs().amax(-1))) & (candidate.amin(-1) >= -1e-15)
        best = torch.where(good, torch.maximum(best, entropy(candidate.clamp(min=0))), best)
        residual = max(residual, float(torch.where(good, error, 0).max()))
        blocked = (centred < 0) & (target == 0)
        if not bool(blocked.any()):
            break
        # On the boundary of the hull the optimal R is zero off a face: retry without the blocking
        # words.
        base = torch.where(blocked, 0, base)
        base = base / base.sum(-1, keepdim=True).clamp(min=1e-300)
        step = _newton_step(base, weight, moment)
    return best, residual


def _line_search(
    target: Tensor, weight: Tensor, hidden: Tensor, step: Tensor, value: Tensor, slope: Tensor
) -> Tensor:
    """Halve each context's step until it brings a tenth of the promised decrease."""
    size = torch.ones_like(value)
    failed = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(30):
        trial = cross_entropy(target, weight, hidden + size[:, None] * step)
        failed = ~(trial <= value + 0.1 * size * slope + 1e-14)
        if not bool(failed.any()):
            break
        size = torch.where(failed, size / 2, size)
    return torch.where(failed[:, None], hidden, hidden + size[:, None] * step)
