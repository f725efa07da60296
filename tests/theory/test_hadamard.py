from math import comb

import numpy as np
import pytest

from uncork.theory import exact_rank, hadamard_rank_bound, power_rank, square_certificate
from uncork.theory.hadamard import counterexample, integer_matrix, universal_witness


@pytest.mark.parametrize("rank, power", [(1, 5), (2, 2), (2, 4), (3, 3), (4, 2), (5, 1)])
def test_the_bound_holds_and_is_met(rank, power):
    matrix = integer_matrix(24, 20, rank, seed=rank)
    bound = hadamard_rank_bound(24, 20, rank, power)
    assert bound == min(20, comb(rank + power - 1, power))
    assert power_rank(matrix, power) == bound


def test_modular_powers_agree_with_rational_ones():
    matrix = integer_matrix(7, 6, 2, seed=5)
    assert power_rank(matrix, 3) == exact_rank((matrix.astype(object) ** 3).tolist()) == 4


@pytest.mark.parametrize("size", [3, 4, 7, 25, 60])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_squares_of_corank_one_matrices_are_full_rank(size, seed):
    certificate = square_certificate(size, seed)
    assert certificate.proves


@pytest.mark.parametrize("seed", [11, 13, 25, 29])
def test_a_draw_that_proves_nothing_is_followed_by_others(seed):
    first = integer_matrix(3, 3, 2, seed)
    assert exact_rank(first) < 2 or exact_rank(first.astype(object) ** 2) < 3
    assert square_certificate(3, seed).proves


def test_small_certificate_by_rational_arithmetic():
    matrix = square_certificate(6, seed=1).matrix
    assert exact_rank(matrix) == 5 and exact_rank(matrix.astype(object) ** 2) == 6


@pytest.mark.parametrize("size", range(3, 30))
def test_one_matrix_proves_every_size(size):
    assert universal_witness(size).proves
    expected = ((size - 1) ** 2 - 1) ** (size - 1) * ((size - 1) ** 2 - 1 + size)
    if size < 8:
        found = np.linalg.det(universal_witness(size).matrix.astype(float) ** 2)
        assert found == pytest.approx(expected, rel=1e-9)


def test_the_printed_theorem_fails_at_two():
    matrix, rank_of_square = counterexample()
    assert exact_rank(matrix) == 1 and rank_of_square == 1
    assert hadamard_rank_bound(2, 2, 1, 2) == 1
    assert not any(square_certificate(2, seed).proves for seed in range(20))
    assert not universal_witness(2).proves


def test_bad_input():
    with pytest.raises(ValueError, match="power"):
        hadamard_rank_bound(3, 3, 1, 0)
    with pytest.raises(ValueError, match="rank"):
        hadamard_rank_bound(3, 3, 4, 1)
    with pytest.raises(ValueError, match="size"):
        square_certificate(1)
