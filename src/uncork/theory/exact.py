"""Rank and determinant without rounding: rational elimination, and elimination modulo a prime.

Every float is a rational number, so a matrix of floats has an exact rank. Elimination modulo a
prime is fast and one-sided: reduction modulo p can only lower a rank, hence

    rank(A mod p) <= rank(A)    for an integer matrix A,

and a full rank modulo p is a proof of full rank over the rationals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np


PRIME = 2**31 - 1  # a product of two residues stays inside int64


@dataclass(frozen=True)
class Elimination:
    """Pivot positions of a rational elimination; their count is the exact rank."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.rows)


def as_fractions(matrix: Any) -> list[list[Fraction]]:
    """The entries of a tensor, array or nested sequence as exact rationals."""
    rows: Sequence[Sequence[Any]] = matrix.tolist() if hasattr(matrix, "tolist") else matrix
    result = [[Fraction(entry) for entry in row] for row in rows]
    if len({len(row) for row in result}) > 1:
        raise ValueError("`matrix` must have rows of equal length; got rows of different lengths.")
    return result


def eliminate(matrix: Any) -> Elimination:
    """Gaussian elimination over the rationals; the pivots span a nonsingular square submatrix."""
    work = as_fractions(matrix)
    order = list(range(len(work)))
    width = len(work[0]) if work else 0
    rows: list[int] = []
    columns: list[int] = []
    for column in range(width):
        top = len(rows)
        pivot = next((i for i in range(top, len(work)) if work[i][column] != 0), None)
        if pivot is None:
            continue
        work[top], work[pivot] = work[pivot], work[top]
        order[top], order[pivot] = order[pivot], order[top]
        rows.append(order[top])
        columns.append(column)
        for i in range(top + 1, len(work)):
            ratio = work[i][column] / work[top][column]
            if ratio:
                work[i] = [a - ratio * b for a, b in zip(work[i], work[top], strict=True)]
    return Elimination(tuple(rows), tuple(columns))


def exact_rank(matrix: Any) -> int:
    """The rank over the rationals, with no tolerance. Cubic in Python: for sizes up to ~60."""
    return eliminate(matrix).rank


def determinant(matrix: Any) -> Fraction:
    """The exact determinant, by Bareiss' fraction-free elimination."""
    work = as_fractions(matrix)
    size = len(work)
    if any(len(row) != size for row in work):
        raise ValueError(f"`matrix` must be square; got {size} rows of {len(work[0])} entries.")
    sign, previous = 1, Fraction(1)
    for k in range(size - 1):
        if work[k][k] == 0:
            swap = next((i for i in range(k + 1, size) if work[i][k] != 0), None)
            if swap is None:
                return Fraction(0)
            work[k], work[swap] = work[swap], work[k]
            sign = -sign
        for i in range(k + 1, size):
            for j in range(k + 1, size):
                work[i][j] = (work[i][j] * work[k][k] - work[i][k] * work[k][j]) / previous
        previous = work[k][k]
    return sign * work[-1][-1] if size else Fraction(1)


def modular_rank(matrix: Any, prime: int = PRIME) -> int:
    """The rank of an integer matrix modulo `prime`: a proven lower bound on its rank."""
    work = np.array(matrix, dtype=np.int64) % prime
    rank = 0
    for column in range(work.shape[1]):
        below = np.flatnonzero(work[rank:, column])
        if below.size == 0:
            continue
        pivot = rank + int(below[0])
        work[[rank, pivot]] = work[[pivot, rank]]
        inverse = pow(int(work[rank, column]), -1, prime)
        work[rank] = work[rank] * inverse % prime
        factors = work[rank + 1 :, column].copy()
        work[rank + 1 :] = (work[rank + 1 :] - factors[:, None] * work[rank] % prime) % prime
        rank += 1
        if rank == work.shape[0]:
            break
    return rank
