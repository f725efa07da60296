"""Bad arguments of heads: the argument, the rule, what came, the remedy."""

from numbers import Integral

import numpy as np
import pytest
import torch
from torch import nn

from tests.helpers import ALL_HEADS, over_heads
from uncork.functions import PLIF
from uncork.heads import AbstractHead, MixtureHead, MonotonicHead, SoftmaxHead


D, V = 4, 7

WRONG = [
    (lambda: SoftmaxHead(0, V), ValueError, "`in_features` must be at least 1, got 0"),
    (lambda: SoftmaxHead(D, 0), ValueError, "`num_classes` must be at least 1, got 0"),
    (lambda: SoftmaxHead(4.0, V), TypeError, "`in_features` must be an int, got 4.0"),
    (lambda: SoftmaxHead(D, True), TypeError, "`num_classes` must be an int, got True"),
    (lambda: MonotonicHead(D, V, None), TypeError, "`function`.*nn.Module.*None.*SoftmaxHead"),
    (lambda: MonotonicHead(D, V, PLIF), TypeError, "`function`.*nn.Module.*PLIF"),
    (lambda: MonotonicHead(D, V, torch.tanh), TypeError, "`function`.*nn.Module.*<built-in"),
    (lambda: MixtureHead(D, V, components=0), ValueError, "`components` must be at least 1, got 0"),
    (lambda: MixtureHead(D, V, components=1.5), TypeError, "`components` must be an int, got 1.5"),
    (lambda: MixtureHead(D, V, embedding_features=0), ValueError, "`embedding_features` must be at least 1"),
    (lambda: MixtureHead(D, V, dropout=1.0), ValueError, r"`dropout` must lie in \[0, 1\), got 1.0\. Pass"),
    (lambda: MonotonicHead(D, V, PLIF), TypeError, "`function` must be .* Make an instance of a class"),
    (
        lambda: MixtureHead(D, V, function=PLIF),
        TypeError,
        "`function` must be .* Make an instance of a class",
    ),
    (lambda: MixtureHead(D, V, dropout=float("nan")), ValueError, "`dropout` must be finite, got nan"),
    (lambda: MixtureHead(D, V, function=PLIF), TypeError, "`function`.*nn.Module.*PLIF"),
    (
        lambda: SoftmaxHead(D, V, dtype=torch.int64),
        TypeError,
        "`dtype` must be a floating dtype.*torch.int64",
    ),
    (
        lambda: MixtureHead(D, V, dtype=torch.complex64),
        TypeError,
        "`dtype` must be a floating dtype.*complex",
    ),
    (lambda: MixtureHead(D, V, component=3), TypeError, "unexpected keyword argument 'component'"),
]


@pytest.mark.parametrize("make, kind, message", WRONG, ids=[m for *_, m in WRONG])
def test_constructors(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    "keywords",
    [
        {"reduction": "sum"},
        {"ignore_index": 0},
        {"label_smoothing": 0.1},
        {"z_loss": 1e-4},
        {"backend": "reference"},
        {"weight": torch.ones(V)},
    ],
    ids=lambda k: next(iter(k)),
)
@over_heads
def test_loss_keywords_without_a_target(name, keywords):
    with pytest.raises(ValueError, match=r"`target` is needed.*head\(hidden, target"):
        ALL_HEADS[name](D, V)(torch.randn(2, D), **keywords)


@over_heads
def test_misspelt_keywords(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'label_smothing'"):
        ALL_HEADS[name](D, V)(torch.randn(2, D), torch.tensor([0, 1]), label_smothing=0.1)


@pytest.mark.parametrize("method", ["__call__", "log_prob", "predict", "sample"])
@pytest.mark.parametrize(
    "hidden, kind, message",
    [
        (torch.randn(2, D + 1), ValueError, r"\(2, 5\)"),
        (torch.tensor(1.0), ValueError, r"got.* \(\)"),
        ([1.0, 2.0], TypeError, "must be a torch.Tensor, got list"),
        (torch.ones(2, D).long(), TypeError, "floating dtype, got torch.int64"),
    ],
    ids=["width", "scalar", "list", "integer"],
)
@over_heads
def test_hidden_states(name, hidden, kind, message, method):
    with pytest.raises(kind, match=f"`hidden`.*{message}"):
        getattr(ALL_HEADS[name](D, V), method)(hidden)


@over_heads
def test_targets(name):
    head = ALL_HEADS[name](D, V)
    with pytest.raises(ValueError, match=r"`target` must lie in \[0, 7\)"):
        head(torch.randn(2, D), torch.tensor([0, V]))
    with pytest.raises(ValueError, match=r"`target` of word indices must have shape \(2,\), got \(3,\)"):
        head(torch.randn(2, D), torch.tensor([0, 1, 2]))


@over_heads
def test_another_dtype(name):
    """float64 states on a float32 head: say so instead of guessing."""
    with pytest.raises(TypeError, match="`hidden` and `weight` must have one dtype.*float64.*float32"):
        ALL_HEADS[name](D, V)(torch.randn(2, D).double(), torch.tensor([0, 1]))


@pytest.mark.parametrize("words, columns", [(-2, 0), (0, 3)])
@over_heads
def test_tied_to_a_weight_of_another_shape(name, words, columns):
    """Too few rows would give scores of too few words, without a word."""
    head = ALL_HEADS[name](D, V)
    rows, width = head.weight.shape
    head.weight = nn.Parameter(torch.randn(rows + words, width + columns))
    wrong = rf"`weight` of the head must have shape \({rows}, {width}\), got.*Tie it"
    for call in (head, head.predict, lambda hidden: head(hidden, torch.tensor([0, 1]))):
        with pytest.raises(ValueError, match=wrong):
            call(torch.randn(2, D))


def test_sizes_may_be_integers_of_numpy():
    """A vocabulary counted by numpy; what a head keeps and shows is an int all the same."""
    words, width, k = np.int64(V), np.int32(D), np.uint8(3)
    mixture = MixtureHead(
        width, words, components=k, embedding_features=np.int64(5), function=PLIF(np.int64(9))
    )
    for head in (SoftmaxHead(width, words), MonotonicHead(width, words, PLIF(9)), mixture):
        sizes = [value for value in vars(head).values() if isinstance(value, Integral) and value is not True]
        assert {type(size) for size in sizes} == {int} and "np." not in repr(head)
        assert head.weight.shape[0] == V
        assert head(torch.randn(2, D), torch.tensor([0, 1])).isfinite()
    assert mixture.latent.out_features == 15 and type(mixture.latent.out_features) is int
    assert type(mixture.function.knots) is int


@pytest.mark.parametrize("kind", [AbstractHead])
def test_abstract(kind):
    with pytest.raises(TypeError, match="abstract"):
        kind()


def test_a_head_needs_no_function_of_ours():
    head = MonotonicHead(D, V, nn.Softsign())
    assert head(torch.randn(2, D), torch.tensor([0, 1])).isfinite()
