import numpy as np
import pytest
import torch

from uncork.theory import cross_entropy, entropy, maximum_entropy, minimum_cross_entropy


SIZE = 14


def problem(concentration=0.6, rows=6, seed=0):
    generator = np.random.default_rng(seed)
    target = torch.from_numpy(generator.dirichlet(np.full(SIZE, concentration), rows))
    return target, torch.from_numpy(generator.normal(size=(SIZE, SIZE)))


@pytest.mark.parametrize("width", [1, 2, 5, 9])
def test_both_sides_of_theorem_2_agree(width):
    target, weight = problem()
    optimum = minimum_cross_entropy(target, weight[:, :width])
    assert float(optimum.gap.max()) <= 1e-9 and optimum.residual < 1e-12
    for row, value in zip(target, optimum.value, strict=True):
        other = maximum_entropy(row.numpy(), weight[:, :width].numpy())
        assert other.violation < 1e-9
        assert other.value == pytest.approx(float(value), abs=1e-6)


def test_the_maximiser_is_the_softmax_of_the_minimiser():
    target, weight = problem()
    optimum = minimum_cross_entropy(target[:1], weight[:, :3])
    other = maximum_entropy(target[0].numpy(), weight[:, :3].numpy())
    model = (optimum.hidden @ weight[:, :3].T).softmax(-1)[0]
    np.testing.assert_allclose(other.distribution, model.numpy(), atol=1e-5)


def test_no_other_h_goes_below_the_certified_bound():
    target, weight = problem()
    optimum = minimum_cross_entropy(target, weight[:, :4])
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-6, 1e-3, 1.0, 10.0):
        noise = scale * torch.randn(optimum.hidden.shape, generator=generator, dtype=torch.float64)
        value = cross_entropy(target, weight[:, :4], optimum.hidden + noise)
        assert (value >= optimum.lower - 1e-12).all()


def test_an_unfinished_search_still_has_a_valid_certificate():
    target, weight = problem()
    early = minimum_cross_entropy(target, weight[:, :4], max_iterations=1)
    late = minimum_cross_entropy(target, weight[:, :4])
    assert (early.lower <= late.value + 1e-12).all() and (early.value >= late.lower - 1e-12).all()
    assert float(early.gap.max()) > 1e-9


def test_wider_is_never_worse_and_the_floor_is_reached():
    target, weight = problem()
    values = [minimum_cross_entropy(target, weight[:, :d]).value for d in range(1, SIZE + 1)]
    for narrow, wide in zip(values, values[1:], strict=False):
        assert (wide <= narrow + 1e-8).all()
    assert (values[0] > values[8] + 1e-3).any()
    for value in values[-2:]:  # width V - 1 is enough
        torch.testing.assert_close(value, entropy(target), atol=1e-8, rtol=0)


def test_strict_decrease_is_not_guaranteed():
    _, weight = problem()
    uniform = torch.full((1, SIZE), 1 / SIZE, dtype=torch.float64)
    for width in (1, 5, SIZE):
        value = minimum_cross_entropy(uniform, weight[:, :width]).value
        assert float(value) == pytest.approx(np.log(SIZE), abs=1e-12)


def test_zeros_make_the_minimum_an_infimum():
    words = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    target = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)  # at the end of the hull
    loose = minimum_cross_entropy(target, words, tolerance=1e-3)
    tight = minimum_cross_entropy(target, words, tolerance=1e-12)
    assert tight.value < loose.value < 1e-3 and tight.value > 0  # ever lower, never reached
    assert tight.hidden > loose.hidden + 5  # h runs away
    assert maximum_entropy(target[0].numpy(), words.numpy()).value == pytest.approx(0, abs=1e-9)


def test_the_certificate_holds_on_a_face_of_the_hull():
    """P is the middle of an edge: Q tends to the three words there, and no finite h is the best."""
    words = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [-1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    optimum = minimum_cross_entropy(target, words, max_iterations=10)
    assert float(optimum.lower) == pytest.approx(np.log(3), abs=1e-9)
    assert 0 <= float(optimum.gap) <= 1e-4


@pytest.mark.parametrize("width", [1, 2, 4, 13])
def test_certificates_with_many_zeros(width):
    target, weight = problem()
    target[:, 3:] = 0
    target /= target.sum(-1, keepdim=True)
    optimum = minimum_cross_entropy(target, weight[:, :width])
    assert float(optimum.gap.max()) <= 1e-8
    for row, value in zip(target, optimum.value, strict=True):
        other = maximum_entropy(row.numpy(), weight[:, :width].numpy())
        assert other.value == pytest.approx(float(value), abs=1e-5)


def test_a_word_of_all_the_mass_is_no_error():
    words = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = torch.eye(6, dtype=torch.float64)
    start = 1e4 * words  # each Q is one word to the last digit: its covariance is zero
    optimum = minimum_cross_entropy(target, words, start=start)
    assert torch.isfinite(optimum.value).all() and torch.isfinite(optimum.hidden).all()
    assert (optimum.value >= optimum.lower - 1e-12).all()
    assert (optimum.value <= cross_entropy(target, words, start) + 1e-12).all()


def test_words_with_repeated_columns():
    target, weight = problem()
    doubled = torch.cat([weight[:, :2], weight[:, :2], torch.ones(SIZE, 1)], 1)
    optimum = minimum_cross_entropy(target, doubled)
    torch.testing.assert_close(
        optimum.value, minimum_cross_entropy(target, weight[:, :2]).value, atol=1e-8, rtol=0
    )


def test_bad_input():
    target, weight = problem()
    with pytest.raises(ValueError, match="same V"):
        minimum_cross_entropy(target, weight[:3])
    with pytest.raises(ValueError, match="distributions"):
        minimum_cross_entropy(2 * target, weight)
    with pytest.raises(ValueError, match="same V"):
        maximum_entropy(target.numpy(), weight.numpy())
