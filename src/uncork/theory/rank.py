"""Numerical rank with care: several definitions, and why they disagree.

The rank of a matrix of floats is a question about what counts as zero. With singular values
s_1 >= s_2 >= ... of an (m, n) matrix this module reports

- Press rank: #{i : s_i > 0.5 sqrt(m + n + 1) s_1 eps}. The threshold is the rounding error of the
  decomposition, so it counts every direction above noise, however weak, and it depends on the
  dtype.
- epsilon-effective rank: the least k with s_1^2 + ... + s_k^2 >= (1 - epsilon) sum s_i^2. It counts
  the directions that carry energy, and says nothing of the tail.
- stable rank: sum s_i^2 / s_1^2, a continuous quantity, never above the rank.
- entropy rank: exp(H(s_i / sum s)), the number of equally strong directions with the same entropy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


EPSILONS = (1e-3, 1e-4, 1e-5)


def singular_values(matrix: Tensor) -> Tensor:
    """All singular values, largest first, computed in the precision of `matrix`, no lower than float32."""
    if matrix.ndim != 2:
        raise ValueError(
            f"`matrix` must have 2 dimensions; got shape {tuple(matrix.shape)}. Flatten it first."
        )
    if not matrix.dtype.is_floating_point or matrix.dtype.itemsize < 4:
        matrix = matrix.float()
    if not torch.isfinite(matrix).all():
        raise ValueError(
            "`matrix` must be finite; it holds infinities or NaN. "
            "Log-probabilities of zero are infinite: clamp them at a stated floor."
        )
    return torch.linalg.svdvals(matrix)


def press_threshold(sigma: Tensor, shape: tuple[int, int]) -> float:
    """0.5 sqrt(m + n + 1) s_1 eps: below it a singular value cannot be told from rounding."""
    largest = float(sigma[0]) if sigma.numel() else 0.0
    return 0.5 * (shape[0] + shape[1] + 1) ** 0.5 * largest * torch.finfo(sigma.dtype).eps


def press_rank(matrix: Tensor) -> int:
    """Number of singular values above `press_threshold`."""
    sigma = singular_values(matrix)
    return int((sigma > press_threshold(sigma, _shape(matrix))).sum())


def effective_rank(matrix: Tensor, epsilon: float) -> int:
    """Least k whose k leading singular values hold 1 - epsilon of the squared Frobenius norm."""
    return _effective(singular_values(matrix), epsilon)


def _effective(sigma: Tensor, epsilon: float) -> int:
    if not 0 <= epsilon < 1:
        raise ValueError(f"`epsilon` must be in [0, 1); got {epsilon}. Pass a small share such as 1e-4.")
    energy = sigma.double().square().cumsum(0)
    if energy.numel() == 0 or energy[-1] == 0:
        return 0
    return int((energy < (1 - epsilon) * energy[-1]).sum()) + 1


def stable_rank(matrix: Tensor) -> float:
    """Squared Frobenius norm over squared spectral norm."""
    return _stable(singular_values(matrix))


def _stable(sigma: Tensor) -> float:
    if sigma.numel() == 0 or sigma[0] == 0:
        return 0.0
    return float((sigma.double() / sigma[0].double()).square().sum())


def _entropy(sigma: Tensor) -> float:
    total = sigma.double().sum()
    if sigma.numel() == 0 or total == 0:
        return 0.0
    share = sigma.double() / total
    return float(torch.exp(-torch.xlogy(share, share).sum()))


@dataclass(frozen=True)
class RankReport:
    """Every rank of one matrix, the singular values behind them, and the reading in words."""

    shape: tuple[int, int]
    dtype: str
    singular_values: tuple[float, ...]
    press_threshold: float
    press_rank: int
    effective_ranks: dict[float, int]
    stable_rank: float
    entropy_rank: float

    def explanation(self) -> str:
        """Why the definitions disagree on this matrix, in plain words."""
        full = min(self.shape)
        epsilon, effective = min(self.effective_ranks.items())
        lines = [
            f"{self.press_rank} of {full} singular values exceed the {self.dtype} rounding "
            f"threshold {self.press_threshold:.3g}; {effective} of them hold all but "
            f"{epsilon:g} of the energy.",
        ]
        weak = self.press_rank - effective
        if weak > 0:
            lines.append(
                f"The {weak} further directions are there, but together they carry less than "
                f"{epsilon:g} of the energy: noise of that size would make any matrix full rank, "
                "so a high Press rank alone does not say that they matter."
            )
        if self.press_rank < full:
            lines.append(
                f"{full - self.press_rank} directions are below rounding: in exact arithmetic they "
                "may be zero or merely small; a wider dtype moves the threshold and this count."
            )
        return " ".join(lines)


def rank_report(matrix: Tensor, epsilons: Sequence[float] = EPSILONS) -> RankReport:
    """Press rank, epsilon-effective ranks, stable and entropy rank from one decomposition."""
    sigma = singular_values(matrix)
    threshold = press_threshold(sigma, _shape(matrix))
    return RankReport(
        shape=_shape(matrix),
        dtype=str(sigma.dtype).removeprefix("torch."),
        singular_values=tuple(sigma.tolist()),
        press_threshold=threshold,
        press_rank=int((sigma > threshold).sum()),
        effective_ranks={epsilon: _effective(sigma, epsilon) for epsilon in epsilons},
        stable_rank=_stable(sigma),
        entropy_rank=_entropy(sigma),
    )


def _shape(matrix: Tensor) -> tuple[int, int]:
    return matrix.shape[0], matrix.shape[1]
