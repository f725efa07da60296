"""Theorem 1: how far any Linear-Softmax of width d stays from the true log-probabilities.

A[i, j] = log P(word i | context j) is the (M, N) log-probability matrix. A Linear-Softmax gives
A_Q = W H^T - 1 logZ^T, of rank at most d + 1, so by Eckart, Young and Mirsky

    ||A_P - A_Q||_F^2 >= sigma_{d+2}^2 + ... + sigma_M^2.                                     (1)

The printed theorem has the squared norm on the left and the *root* of that sum on the right. Since
sqrt(s) > s for 0 < s < 1 the printed form is false whenever the tail is small; `printed_bound`
exists so that the counterexample can be shown. Either square both sides, as here, or neither.

Removing column means kills the 1 logZ^T part: C A_Q = C W H^T has rank at most d, C = I - 1 1^T /
M. Hence

    ||A_P - A_Q||_F^2 >= sum_{i > d} sigma_i(C A_P)^2,                                        (2)

which is never below (1): the best rank-d fit of C A_P plus the exact mean row is one rank-(d+1)
matrix.
"""

import torch
from torch import Tensor


def _check(log_prob: Tensor, width: int) -> None:
    if log_prob.ndim != 2 or not log_prob.dtype.is_floating_point:
        raise ValueError(
            f"`log_prob` must be a floating (M, N) matrix; got {log_prob.dtype} of shape "
            f"{tuple(log_prob.shape)}."
        )
    if not torch.isfinite(log_prob).all():
        raise ValueError(
            "`log_prob` must be finite: a word of probability zero makes every finite model "
            "infinitely wrong in squared log-probability. Clamp probabilities at a stated floor."
        )
    if width < 0:
        raise ValueError(f"`width` must be at least 0; got {width}. Pass the width of the embeddings.")


def _tail(matrix: Tensor, keep: int) -> float:
    return float(torch.linalg.svdvals(matrix.double())[keep:].square().sum())


def squared_error_bound(log_prob: Tensor, width: int) -> float:
    """Theorem 1, corrected: sum of squared singular values after the first `width` + 1."""
    _check(log_prob, width)
    return _tail(log_prob, width + 1)


def centred_error_bound(log_prob: Tensor, width: int) -> float:
    """The sharper bound (2): tail of the column-centred matrix after the first `width`."""
    _check(log_prob, width)
    return _tail(log_prob - log_prob.mean(0, keepdim=True), width)


def printed_bound(log_prob: Tensor, width: int) -> float:
    """The right side as printed, a root against a squared norm: NOT a bound when the sum is below 1."""
    return squared_error_bound(log_prob, width) ** 0.5


def squared_error(log_prob: Tensor, log_prob_model: Tensor) -> float:
    """||A_P - A_Q||_F^2."""
    return float((log_prob.double() - log_prob_model.double()).square().sum())


def counterexample(
    size: int = 4, width: int = 1, noise: float = 1e-2, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """(A_P, A_Q) with A_Q a Linear-Softmax of `width` and squared error below `printed_bound`.

    A_P is A_Q's logits plus small noise: its tail is of order noise^2, so the root of the tail is
    of order noise while the squared error stays of order noise^2.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    logits = draw(size, width) @ draw(width, size)
    perturbed = logits + noise * draw(size, size)
    return perturbed.log_softmax(0), logits.log_softmax(0)


def fit_squared_error(log_prob: Tensor, width: int, seed: int = 0, steps: int = 200) -> float:
    """The smallest ||A_P - A_Q||_F^2 that L-BFGS finds over W and H: above the optimum."""
    _check(log_prob, width)
    target = log_prob.double()
    if width == 0:  # every word equally likely: there is nothing to fit
        return squared_error(target, torch.zeros_like(target).log_softmax(0))
    left, sigma, right = torch.linalg.svd(target - target.mean(0, keepdim=True), full_matrices=False)
    scale = sigma[:width].sqrt()
    generator = torch.Generator().manual_seed(seed)
    jitter = 1e-3 * torch.randn(len(target), width, generator=generator, dtype=torch.float64)
    words = (left[:, :width] * scale + jitter).contiguous().requires_grad_()
    contexts = (right[:width].T * scale).contiguous().requires_grad_()
    optimiser = torch.optim.LBFGS([words, contexts], max_iter=steps, line_search_fn="strong_wolfe")

    def error() -> Tensor:
        optimiser.zero_grad()
        loss = ((words @ contexts.T).log_softmax(0) - target).square().sum()
        loss.backward()
        return loss

    optimiser.step(error)
    return float(((words @ contexts.T).log_softmax(0) - target).square().sum().detach())
