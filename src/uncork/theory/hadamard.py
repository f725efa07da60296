"""Theorems 5 and 6: the rank of pointwise powers, by exact arithmetic.

Theorem 5 (Amini et al. 2012). For A of size (N, M) and rank d, and a positive integer p,

    rank(A^{o p}) <= min(N, M, binom(d + p - 1, p)).

Theorem 6, corrected. For N >= 3, x -> x^2 makes almost every N x N matrix of rank N - 1 full rank.

The printed theorem says N > 1. At N = 2 it contradicts Theorem 5: rank 1 gives binom(2, 2) = 1, a
rank-1 matrix u v^T squares to (u o u)(v o v)^T, of rank 1 again. The printed proof fails at the set
Xi of matrices with two proportional columns: its dimension N(N-1)+1 is below N^2 - 1 only for N >
2. (Its count also leaves out the N - 1 numbers gamma; with them, and alpha taken up to scale, the
bad set has dimension N^2 - 2 and the conclusion stands.)

A shorter proof, which these functions carry out. det((U V^T)^{o 2}) is a polynomial in the entries
of the (N, N-1) factors U and V. If it is nonzero at one point it is nonzero almost everywhere. So
one integer matrix of rank N - 1 whose square is nonsingular proves the theorem for its N; and A = N
I - 1 1^T is such a matrix for every N >= 3: A^{o 2} = 1 1^T + ((N-1)^2 - 1) I.
"""

from dataclasses import dataclass
from math import comb

import numpy as np

from uncork.theory.exact import PRIME, exact_rank, modular_rank


# At N = 3, the worst, about one small integer matrix in ten proves nothing.
DRAWS = 20


def hadamard_rank_bound(rows: int, columns: int, rank: int, power: int) -> int:
    """Theorem 5: min(rows, columns, binom(rank + power - 1, power))."""
    if power < 1:
        raise ValueError(f"`power` must be a positive integer; got {power}. Pass 1 or more.")
    if not 0 <= rank <= min(rows, columns):
        raise ValueError(
            f"`rank` must be in [0, {min(rows, columns)}] for this shape; got {rank}. Pass another rank."
        )
    return min(rows, columns, comb(rank + power - 1, power))


def integer_matrix(rows: int, columns: int, rank: int, seed: int, size: int = 9) -> np.ndarray:
    """U V^T with integer factors drawn from [-size, size]: rank at most `rank` by construction."""
    return _product(np.random.default_rng(seed), rows, columns, rank, size)


def _product(generator: np.random.Generator, rows: int, columns: int, rank: int, size: int = 9) -> np.ndarray:
    left = generator.integers(-size, size + 1, (rows, rank))
    right = generator.integers(-size, size + 1, (columns, rank))
    return left @ right.T


def modular_power(matrix: np.ndarray, power: int, prime: int = PRIME) -> np.ndarray:
    """The entries to `power`, reduced modulo `prime` after each factor so that int64 never overflows."""
    base = matrix.astype(np.int64) % prime
    result = np.ones_like(base)
    for _ in range(power):
        result = result * base % prime
    return result


def power_rank(matrix: np.ndarray, power: int) -> int:
    """A proven lower bound on rank(A^{o power}): the rank modulo a prime (equal to it, up to bad luck)."""
    return modular_rank(modular_power(matrix, power))


@dataclass(frozen=True)
class SquareCertificate:
    """A witness for Theorem 6 at one N: an integer matrix, its rank, and the rank of its square."""

    size: int
    matrix: np.ndarray
    rank: int
    rank_of_square: int

    @property
    def proves(self) -> bool:
        """Full rank modulo a prime is full rank, and rank <= N - 1 holds by construction."""
        return self.rank == self.size - 1 and self.rank_of_square == self.size


def square_certificate(size: int, seed: int = 0) -> SquareCertificate:
    """Draw integer matrices of rank N - 1 until exact arithmetic shows that the square of one has full rank.

    After `DRAWS` failures, as always at N = 2, the last one is returned; its `proves` is False.
    """
    if size < 2:
        raise ValueError(f"`size` must be at least 2; got {size}. Pass 3 or more for a proof.")
    generator = np.random.default_rng(seed)
    for _ in range(DRAWS):
        matrix = _product(generator, size, size, size - 1)
        certificate = SquareCertificate(size, matrix, modular_rank(matrix), power_rank(matrix, 2))
        if certificate.proves:
            break
    return certificate


def universal_witness(size: int) -> SquareCertificate:
    """N I - 1 1^T: one matrix that proves Theorem 6 for each N >= 3, and fails at N = 2."""
    matrix = size * np.eye(size, dtype=np.int64) - 1
    return SquareCertificate(size, matrix, modular_rank(matrix), power_rank(matrix, 2))


def counterexample() -> tuple[list[list[int]], int]:
    """N = 2: a rank-1 matrix and the exact rank of its square, which is 1 as for every rank-1 matrix."""
    matrix = [[1, 2], [3, 6]]
    return matrix, exact_rank([[entry**2 for entry in row] for row in matrix])
