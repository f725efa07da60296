from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st

from uncork.theory import distinct_entries, exact_rank, increasing_function
from uncork.theory.hadamard import integer_matrix
from uncork.theory.monotone import IncreasingPiecewiseLinear


MATRICES = st.lists(st.lists(st.integers(-6, 6), min_size=4, max_size=4), min_size=3, max_size=5)


@settings(deadline=None, max_examples=60)
@given(MATRICES, st.dictionaries(st.integers(-6, 6), st.integers(-3, 3)))
def test_any_function_has_an_increasing_rival(matrix, table):
    f = lambda x: table.get(int(x), 1)
    rank_f = exact_rank([[f(x) for x in row] for row in matrix])
    if rank_f == 0:
        with pytest.raises(ValueError, match="rank of at least 1"):
            increasing_function(matrix, f)
        return
    built = increasing_function(matrix, f)
    assert built.rank_given == rank_f
    assert built.determinant != 0
    assert built.rank(matrix) >= rank_f
    assert all(Fraction(1, 2) <= slope <= Fraction(3, 2) for slope in built.function.slopes())


def test_continuous_increasing_and_onto():
    matrix = integer_matrix(5, 6, 2, seed=1).tolist()
    g = increasing_function(matrix, lambda x: x * x).function
    for position, value in zip(g.positions, g.values, strict=True):
        assert g(position) == value
        step = Fraction(1, 10**9)
        assert g(position - step) < value < g(position + step)
        assert g(position + step) - g(position - step) < 4 * step
    assert g(-(10**6)) == -(10**6) and g(10**6) == 10**6


def test_lemma_4_then_theorem_3_gives_full_rank():
    matrix = integer_matrix(6, 9, 2, seed=0, size=50).tolist()
    choice = distinct_entries(matrix)
    assert choice is not None and len(set(choice.columns)) == 6
    block = [[choice.function()(Fraction(row[j])) for j in choice.columns] for row in matrix]
    assert block == [[int(i == j) for j in range(6)] for i in range(6)]
    assert exact_rank(matrix) == 2
    assert increasing_function(matrix, choice.function()).rank(matrix) == 6


def test_lemma_4_needs_a_matching():
    assert distinct_entries([[1, 2], [2, 1]]) is None  # no value occurs once
    assert distinct_entries([[1, 2, 2], [3, 4, 4]]) is None  # both rows need the first column
    choice = distinct_entries([[1, 5, 2], [3, 4, 4]])  # the first row must yield its first column
    assert choice is not None and choice.columns == (1, 0)
    with pytest.raises(ValueError, match="Transpose"):
        distinct_entries([[1], [2]])


def test_the_module_is_the_function_on_tensors():
    matrix = integer_matrix(5, 6, 2, seed=3)
    built = increasing_function(matrix, lambda x: abs(x))
    module = built.function.module()
    x = torch.linspace(-200, 200, 801, dtype=torch.float64)
    expected = torch.tensor([float(built.function(v)) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(module(x), expected)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(module(x).sum(), x)
    torch.testing.assert_close(module.derivative(x), slope)
    assert module(x.detach().float()).dtype == torch.float32


def test_float_matrices_are_exact_too():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 1, generator=generator) @ torch.randn(1, 5, generator=generator)
    choice = distinct_entries(matrix)
    assert choice is not None
    assert increasing_function(matrix, choice.function()).rank(matrix) == 4


def test_a_decreasing_table_is_refused():
    with pytest.raises(ValueError, match="increase strictly"):
        IncreasingPiecewiseLinear((Fraction(0), Fraction(1)), (Fraction(1), Fraction(0)))


@pytest.mark.parametrize("points", [(), (Fraction(0),)])
def test_fewer_than_two_points_are_refused(points):
    with pytest.raises(ValueError, match=f"two at least; got {len(points)} and {len(points)}"):
        IncreasingPiecewiseLinear(points, points)
    with pytest.raises(ValueError, match="as many"):
        IncreasingPiecewiseLinear((Fraction(0), Fraction(1), Fraction(2)), (Fraction(0), Fraction(1)))


def test_a_matrix_of_one_value():
    built = increasing_function([[2, 2], [2, 2]], lambda x: 5)
    assert built.rank([[2, 2], [2, 2]]) == 1
