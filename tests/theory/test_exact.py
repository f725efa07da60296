from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from uncork.theory.exact import determinant, eliminate, exact_rank, modular_rank


SMALL = st.lists(st.lists(st.integers(-4, 4), min_size=4, max_size=4), min_size=4, max_size=4)


@settings(deadline=None, max_examples=60)
@given(SMALL)
def test_rank_and_determinant_agree_with_each_other_and_numpy(matrix):
    rank = exact_rank(matrix)
    assert rank == np.linalg.matrix_rank(np.array(matrix, float))
    assert (determinant(matrix) != 0) == (rank == 4)
    assert float(determinant(matrix)) == pytest.approx(np.linalg.det(matrix), abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(SMALL)
def test_rank_modulo_a_prime_never_exceeds_the_rank(matrix):
    assert modular_rank(matrix) == exact_rank(matrix)  # entries are far below the prime
    assert modular_rank(matrix, prime=3) <= exact_rank(matrix)


def test_pivots_span_a_nonsingular_submatrix():
    matrix = [[0, 0, 1, 2], [0, 0, 2, 4], [0, 3, 1, 1]]
    pivots = eliminate(matrix)
    block = [[matrix[i][j] for j in pivots.columns] for i in pivots.rows]
    assert pivots.rank == 2 and determinant(block) != 0


def test_floats_are_taken_exactly():
    third = 1 / 3
    assert exact_rank(torch.tensor([[1.0, third], [3.0, 1.0]], dtype=torch.float64)) == 2
    assert Fraction(third) * 3 != 1  # rounding makes the rank-1 matrix of real numbers rank 2


def test_ragged_and_rectangular_input_is_refused():
    with pytest.raises(ValueError, match="equal length"):
        exact_rank([[1, 2], [3]])
    with pytest.raises(ValueError, match="square"):
        determinant([[1, 2]])
