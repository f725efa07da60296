import pytest
import torch

from uncork.theory import effective_rank, press_rank, rank_report, stable_rank
from uncork.theory.rank import singular_values


def low_rank(rank, noise=0.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    return (draw(30, rank) @ draw(rank, 40) + noise * draw(30, 40)).to(dtype)


def test_all_definitions_agree_without_noise():
    report = rank_report(low_rank(5))
    assert report.press_rank == 5
    assert report.effective_ranks[1e-5] == 5
    assert 1 <= report.stable_rank <= 5 and 1 <= report.entropy_rank <= 5 + 1e-9


def test_noise_raises_press_rank_but_not_effective_rank():
    report = rank_report(low_rank(5, noise=1e-10))
    assert report.press_rank == 30 and report.effective_ranks[1e-5] == 5
    assert "25 further directions" in report.explanation()


def test_the_dtype_moves_the_press_threshold():
    assert press_rank(low_rank(5, noise=1e-10)) == 30
    assert press_rank(low_rank(5, noise=1e-10, dtype=torch.float32)) < 30
    assert "wider dtype" in rank_report(low_rank(5, 1e-10, torch.float32)).explanation()


def test_press_threshold_is_the_formula():
    matrix = low_rank(3)
    expected = 0.5 * (30 + 40 + 1) ** 0.5 * float(singular_values(matrix)[0]) * 2.0**-52
    assert rank_report(matrix).press_threshold == pytest.approx(expected, rel=1e-12, abs=0.0)


def test_effective_rank_counts_energy():
    matrix = torch.diag(torch.tensor([3.0, 2.0, 1.0]))  # energies 9, 4, 1 of 14
    assert [effective_rank(matrix, e) for e in (0.0, 1.1 / 14, 5.1 / 14)] == [3, 2, 1]
    assert stable_rank(matrix) == pytest.approx(14 / 9)


def test_zero_and_half_precision_matrices():
    assert rank_report(torch.zeros(3, 4)).press_rank == 0
    assert effective_rank(torch.zeros(3, 4), 1e-3) == 0
    assert rank_report(torch.eye(3, dtype=torch.bfloat16)).dtype == "float32"


@pytest.mark.parametrize("matrix, words", [(torch.zeros(3), "2 dimensions"), (torch.eye(2).log(), "finite")])
def test_bad_input(matrix, words):
    with pytest.raises(ValueError, match=words):
        rank_report(matrix)


def test_bad_epsilon():
    with pytest.raises(ValueError, match="epsilon"):
        effective_rank(torch.eye(2), 1.0)
