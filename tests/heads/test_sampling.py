"""Samples follow the distribution, and the distribution temperature, top_k and top_p say."""

import numpy as np
import pytest
import torch

from tests.helpers import ALL_HEADS, over_heads
from uncork.heads import SoftmaxHead


D, V, DRAWS = 4, 8, 20_000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def head_of(name):
    torch.manual_seed(1)
    return ALL_HEADS[name](D, V)


def distribution(probabilities):
    """A head that gives these probabilities to any hidden state."""
    head = SoftmaxHead(1, len(probabilities))
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor(probabilities).log())
    return head


def frequencies(head, hidden, **keywords):
    words = head.sample(hidden.expand(DRAWS, -1), generator=generator(), **keywords)
    return words.bincount(minlength=head.num_classes).double()


def assert_follows(counts, p):
    """Chi-square against p, at 5 standard deviations of its own distribution (V - 1 degrees of freedom)."""
    assert counts[p == 0].sum() == 0
    p, counts = p[p > 0].double(), counts[p > 0]
    expected = p / p.sum() * counts.sum()
    statistic = ((counts - expected).square() / expected).sum().item()
    freedom = max(len(p) - 1, 1)
    assert statistic <= freedom + 5 * (2 * freedom) ** 0.5, (counts, expected)


@over_heads
def test_follows_the_distribution(name):
    head = head_of(name)
    hidden = torch.randn(1, D, generator=generator())
    assert_follows(frequencies(head, hidden), head.log_prob(hidden)[0].exp().detach())


@pytest.mark.parametrize("temperature", [0.3, 2.0])
@pytest.mark.parametrize("name", ["softmax", "plif", "mos"])
def test_temperature(name, temperature):
    head = head_of(name)
    hidden = torch.randn(1, D, generator=generator())
    p = (head.log_prob(hidden)[0] / temperature).softmax(-1).detach()
    assert_follows(frequencies(head, hidden, temperature=temperature), p)


def test_a_low_temperature_is_the_most_probable_word():
    head = head_of("plif")
    hidden = torch.randn(30, D)
    words = head.sample(hidden, temperature=1e-6, generator=generator())
    assert torch.equal(words, head.predict(hidden))


def test_top_k():
    p = [0.4, 0.1, 0.2, 0.05, 0.25]
    counts = frequencies(distribution(p), torch.zeros(1, 1), top_k=3)
    assert_follows(counts, torch.tensor([0.4, 0.0, 0.2, 0.0, 0.25]))
    assert torch.equal(
        frequencies(distribution(p), torch.zeros(1, 1), top_k=1).nonzero(), torch.tensor([[0]])
    )
    assert (frequencies(distribution(p), torch.zeros(1, 1), top_k=99) > 0).all()


def test_top_k_may_be_an_integer_of_numpy():
    head, hidden = distribution([0.4, 0.1, 0.2, 0.05, 0.25]), torch.zeros(1, 1)
    assert torch.equal(frequencies(head, hidden, top_k=np.int64(2)), frequencies(head, hidden, top_k=2))


def test_top_k_keeps_k_words_even_when_some_are_equal():
    counts = frequencies(distribution([0.25, 0.25, 0.25, 0.25]), torch.zeros(1, 1), top_k=2)
    assert (counts > 0).sum() == 2


def test_top_p():
    p = [0.4, 0.1, 0.2, 0.05, 0.25]
    # 0.4 + 0.25 = 0.65 reaches 0.6; 0.7 needs 0.2 more.
    assert_follows(
        frequencies(distribution(p), torch.zeros(1, 1), top_p=0.6), torch.tensor([0.4, 0, 0, 0, 0.25])
    )
    assert_follows(
        frequencies(distribution(p), torch.zeros(1, 1), top_p=0.7), torch.tensor([0.4, 0, 0.2, 0, 0.25])
    )
    assert (frequencies(distribution(p), torch.zeros(1, 1), top_p=1e-9) > 0).sum() == 1
    assert_follows(frequencies(distribution(p), torch.zeros(1, 1), top_p=1.0), torch.tensor(p))


def test_top_p_stops_at_the_word_that_reaches_it():
    counts = frequencies(distribution([0.25, 0.25, 0.25, 0.25]), torch.zeros(1, 1), top_p=0.5)
    assert (counts > 0).sum() == 2


def test_top_k_then_top_p():
    """The mass of top_p is counted among the words top_k left."""
    p = [0.4, 0.3, 0.2, 0.1]
    counts = frequencies(distribution(p), torch.zeros(1, 1), top_k=2, top_p=0.5)
    assert_follows(counts, torch.tensor([0.4, 0.0, 0.0, 0.0]))


@over_heads
def test_a_generator_makes_it_repeatable(name):
    head = head_of(name)
    hidden = torch.randn(3, 5, D)
    first = head.sample(hidden, generator=generator(7))
    assert first.shape == (3, 5) and first.dtype == torch.int64
    assert torch.equal(first, head.sample(hidden, generator=generator(7)))
    assert not torch.equal(first, head.sample(hidden, generator=generator(8)))


def test_shapes():
    head = head_of("mos")
    assert head.sample(torch.randn(D)).shape == ()
    assert head.sample(torch.randn(0, D)).shape == (0,)
    assert head.sample(torch.randn(2, 0, D)).shape == (2, 0)


@pytest.mark.parametrize(
    "keywords, kind, message",
    [
        ({"temperature": 0.0}, ValueError, "`temperature`.*above 0, .*got 0.0.*predict"),
        ({"temperature": float("nan")}, ValueError, "`temperature`.*finite.*nan"),
        ({"temperature": 1e-39}, ValueError, "`temperature`.*above 0, 1.2e-38 at least, got 1e-39"),
        ({"temperature": float("inf")}, ValueError, "`temperature`.*finite.*inf"),
        ({"temperature": "hot"}, TypeError, "`temperature` must be a number, got 'hot'"),
        ({"top_k": 0}, ValueError, "`top_k`.*at least 1.*got 0"),
        ({"top_k": 2.0}, ValueError, "`top_k`.*int.*got 2.0"),
        ({"top_p": 0.0}, ValueError, r"`top_p`.*\(0, 1\].*got 0.0"),
        ({"top_p": 1.5}, ValueError, r"`top_p`.*\(0, 1\].*got 1.5"),
        ({"top_p": "most"}, TypeError, "`top_p` must be a number, got 'most'"),
        ({"seed": 1}, TypeError, "unexpected keyword argument 'seed'"),
    ],
)
def test_bad_arguments(keywords, kind, message):
    with pytest.raises(kind, match=message):
        head_of("softmax").sample(torch.randn(2, D), **keywords)


def test_a_temperature_next_to_nothing_takes_the_most_probable_word():
    head, hidden = SoftmaxHead(3, 7), torch.randn(5, 3)
    assert torch.equal(head.sample(hidden, temperature=2e-38), head.predict(hidden))
