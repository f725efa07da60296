"""Theorem 2, right side: the largest entropy under the linear constraints, by a constrained solver.

    max H(R)   over   R >= 0,  sum R = 1,  E_R[w] = E_P[w].

Theorem 2 says that this equals inf_h H(P, Q_h). The solver here knows nothing of h, softmax or
duality: scipy's SLSQP works on R itself, so agreement with `cross_entropy.minimum_cross_entropy` is
evidence and not an identity.

Corollaries as implemented by the tests: (a) with nested words (columns added to W) the value does
not increase; the printed "becomes lower" is not strict, since a uniform P gives log V at each
width; (b) when the columns of W and the all-ones vector span R^V, R = P is the only feasible point
and the value is H(P). Width V - 1 is then enough: the printed d = M is sufficient, not necessary.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MaximumEntropy:
    """The maximiser, its entropy, and how far it is from meeting the constraints."""

    distribution: np.ndarray
    value: float
    violation: float


def maximum_entropy(target: np.ndarray, weight: np.ndarray) -> MaximumEntropy:
    """Solve the constrained problem for one context: `target` (V,), `weight` (V, D). For V up to ~100."""
    target, weight = np.asarray(target, np.float64), np.asarray(weight, np.float64)
    if target.ndim != 1 or weight.ndim != 2 or len(target) != len(weight):
        raise ValueError(
            "`target` must be (V,) and `weight` (V, D) with the same V; "
            f"got {target.shape} and {weight.shape}."
        )
    matrix = _independent_rows(np.vstack([np.ones(len(target)), weight.T]))
    level = matrix @ target
    if len(matrix) == len(target):  # the constraints leave one point
        return MaximumEntropy(target, _entropy(target), 0.0)
    result = _minimiser()(
        lambda r: float(np.sum(_xlogx(r))),
        np.full(len(target), 1 / len(target)),
        jac=lambda r: np.log(np.maximum(r, 1e-300)) + 1,
        bounds=[(0.0, 1.0)] * len(target),
        constraints={"type": "eq", "fun": lambda r: matrix @ r - level, "jac": lambda r: matrix},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    distribution = np.maximum(result.x, 0)
    violation = float(np.abs(matrix @ distribution - level).max())
    return MaximumEntropy(distribution, _entropy(distribution), violation)


def _minimiser():
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise ImportError("`maximum_entropy` needs scipy: pip install 'uncork[theory]'.") from error
    return minimize


def _independent_rows(matrix: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the row space: SLSQP fails on redundant constraints."""
    _, sigma, rows = np.linalg.svd(matrix, full_matrices=False)
    return rows[sigma > 1e-10 * sigma[0]]


def _xlogx(r: np.ndarray) -> np.ndarray:
    return r * np.log(np.maximum(r, 1e-300))


def _entropy(r: np.ndarray) -> float:
    return float(-np.sum(_xlogx(r)))
