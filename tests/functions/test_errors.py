"""Constructors: the message names the argument, the rule, what came and the remedy."""

import re

import pytest
import torch

from uncork import functions, linear_cross_entropy


WRONG = [
    (lambda: functions.PLIF(knots=1), ValueError, "`knots` must be at least 2, got 1"),
    (lambda: functions.PLIF(knots=10.0), TypeError, "`knots` must be an int, got 10.0"),
    (lambda: functions.PLIF(knots=True), TypeError, "`knots` must be an int, got True"),
    (lambda: functions.PLIF(bound=0.0), ValueError, "`bound` must be above 0, got 0.0"),
    (lambda: functions.PLIF(bound=-1), ValueError, "`bound` must be above 0, got -1"),
    (lambda: functions.PLIF(bound=float("inf")), ValueError, "`bound` must be finite, got inf"),
    (lambda: functions.PLIF(bound=float("nan")), ValueError, "`bound` must be finite, got nan"),
    (lambda: functions.PLIF(bound="20"), TypeError, "`bound` must be a number, got '20'"),
    (lambda: functions.PLIF(init="ones"), ValueError, '`init` must be "identity" or "random", got \'ones\''),
    (lambda: functions.PLIF(seed=-1), ValueError, "`seed` must be at least 0, got -1"),
    (lambda: functions.PLIF(seed=1.5), TypeError, "`seed` must be an int, got 1.5"),
    (
        lambda: functions.PLIF(10, init="random", seed=2**70),
        ValueError,
        r"`seed` must be below 2\^64, got 118",
    ),
    (lambda: functions.PLIF(knot=5), TypeError, "unexpected keyword argument 'knot'"),
    (lambda: functions.Scale(0.0), ValueError, "`init` must be above 0, got 0.0"),
    (lambda: functions.Scale(1e39), ValueError, r"`init` must be finite, got 1e\+39. .*float32"),
    (lambda: functions.Scale(1e-50), ValueError, "`init` must be above 0, got 1e-50. .*float32"),
    (lambda: functions.PLIF(10, bound=2e6), ValueError, r"`bound` must be at most 1e\+06, got 2000000.0"),
    (lambda: functions.PLIF(10, bound=1e300), ValueError, r"`bound` must be finite, got 1e\+300. .*float32"),
    (lambda: functions.SoftCap(1e39), ValueError, r"`cap` must be finite, got 1e\+39"),
    (lambda: functions.Scale(float("nan")), ValueError, "`init` must be finite, got nan"),
    (lambda: functions.Scale("1"), TypeError, "`init` must be a number, got '1'"),
    (lambda: functions.SoftCap(-3.0), ValueError, "`cap` must be above 0, got -3.0"),
    (lambda: functions.SoftCap(float("inf")), ValueError, "`cap` must be finite, got inf"),
    (
        lambda: functions.GeneralizedSigSoftmax(float("nan"), 2.0),
        ValueError,
        "`shift` must be finite, got nan",
    ),
    (lambda: functions.GeneralizedSigSoftmax(0.0, 0.0), ValueError, "`steepness` must be above 0, got 0.0"),
    (lambda: functions.MonotoneNetwork(0), ValueError, "`units` must be at least 1, got 0"),
    (lambda: functions.MonotoneNetwork(2.0), TypeError, "`units` must be an int, got 2.0"),
    (lambda: functions.MonotoneNetwork(3, knots=1), ValueError, "`knots` must be at least 2, got 1"),
    (lambda: functions.MonotoneNetwork(3, bound=0), ValueError, "`bound` must be above 0, got 0"),
    (
        lambda: functions.Tabulated(torch.tanh),
        TypeError,
        "`function`.*nn.Module, got <built-in",
    ),
    (lambda: functions.Tabulated(functions.SoftCap(1.0), knots=0), ValueError, "`knots` must be at least 2"),
    (lambda: functions.Tabulated(functions.SoftCap(1.0), bound=-1), ValueError, "`bound` must be above 0"),
]


@pytest.mark.parametrize("make, kind, message", WRONG, ids=[m for *_, m in WRONG])
def test_constructors(make, kind, message):
    with pytest.raises(kind, match=message) as raised:
        make()
    if "keyword" not in message:  # Python's own
        assert re.search(r"got .+\. [A-Z].+\.$", str(raised.value), re.DOTALL), "no remedy"


def test_more_knots_than_float32_can_count():
    with pytest.raises(ValueError, match=r"`knots` must be at most 8388608, got 8388609. Float32"):
        functions.PLIF(2**23 + 1)


def test_a_table_of_what_is_not_elementwise():
    table = functions.Tabulated(torch.nn.Unflatten(0, (1, -1)), knots=10)
    with pytest.raises(ValueError, match=r"`function` must be elementwise.*\(11,\).*returned \(1, 11\)"):
        table(torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        functions.Scale,
        lambda **how: functions.PLIF(9, **how),
        lambda **how: functions.MonotoneNetwork(3, **how),
    ],
)
def test_parameters_have_a_floating_dtype(make, dtype):
    with pytest.raises(TypeError, match=f"`dtype` must be a floating dtype .* got {dtype}. Pass"):
        make(dtype=dtype)


@pytest.mark.parametrize(
    "function", [functions.PLIF(9, device="meta"), functions.PLIF(9, device="meta").requires_grad_(False)]
)
def test_a_table_without_values(function):
    """It gave what happened to be in memory."""
    with pytest.raises(ValueError, match="`z` must be on the device of the function, meta, got cpu. Move"):
        function(torch.zeros(3))


def test_a_table_that_float32_cannot_hold():
    """Finite in float64, in which tables are made: the loss was NaN."""
    function = functions.PLIF(10)
    with torch.no_grad():
        function.v[0] = 1e38
    with pytest.raises(ValueError, match="`function` must have finite parameters and values"):
        linear_cross_entropy(torch.ones(2, 3), torch.ones(4, 3), torch.zeros(2).long(), function=function)


@pytest.mark.parametrize("kind", [functions.AbstractMonotone])
def test_abstract(kind):
    with pytest.raises(TypeError, match="abstract"):
        kind()
