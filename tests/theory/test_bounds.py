import pytest
import torch

from uncork.theory import centred_error_bound, printed_bound, squared_error, squared_error_bound
from uncork.theory.bounds import counterexample, fit_squared_error


def log_probabilities(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64).log_softmax(0)


@pytest.mark.parametrize("width", [0, 1, 3, 7])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_linear_softmax_beats_the_bound(width, seed):
    log_prob = log_probabilities(9, 12, seed)
    bound, centred = squared_error_bound(log_prob, width), centred_error_bound(log_prob, width)
    assert 0 <= bound <= centred * (1 + 1e-9) + 1e-20
    assert centred <= fit_squared_error(log_prob, width) + 1e-12
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        logits = torch.randn(9, width, generator=generator, dtype=torch.float64) @ torch.randn(
            width, 12, generator=generator, dtype=torch.float64
        )
        assert squared_error(log_prob, logits.log_softmax(0)) >= centred


def test_bound_is_zero_once_wide_enough():
    log_prob = log_probabilities(6, 9)
    assert squared_error_bound(log_prob, 5) == pytest.approx(0, abs=1e-20)
    assert fit_squared_error(log_prob, 5) == pytest.approx(0, abs=1e-8)


def test_the_printed_theorem_is_false():
    truth, model = counterexample()
    torch.testing.assert_close(model.logsumexp(0), torch.zeros(4, dtype=torch.float64))
    assert torch.linalg.matrix_rank(model) <= 2  # a Linear-Softmax of width 1
    error = squared_error(truth, model)
    assert error < printed_bound(truth, 1)
    assert error >= squared_error_bound(truth, 1)


def test_bad_input():
    with pytest.raises(ValueError, match="finite"):
        squared_error_bound(torch.tensor([[0.0, -torch.inf]]), 1)
    with pytest.raises(ValueError, match="width"):
        squared_error_bound(log_probabilities(3, 3), -1)
    with pytest.raises(ValueError, match="floating"):
        squared_error_bound(torch.ones(3, 3, dtype=torch.long), 1)
