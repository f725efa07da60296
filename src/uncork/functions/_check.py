"""Checks of constructor arguments."""

import math
from numbers import Integral
from typing import Any

from uncork.ops.validate import number


def finite(name: str, value: Any) -> float:
    """`value` as a float, if it is a finite number."""
    number(name, value)
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, got {value}.")
    return float(value)


def positive(name: str, value: Any) -> float:
    """`value` as a float, if it is finite and above 0."""
    if finite(name, value) <= 0:
        raise ValueError(f"`{name}` must be above 0, got {value}.")
    return float(value)


# Intervals are found by float32 arithmetic, which counts no further than 2^24.
MOST_KNOTS = 2**23


def knot_count(value: Any) -> int:
    """`knots` as an int, if a table may have that many."""
    knots = at_least("knots", value, 2)
    if knots > MOST_KNOTS:
        raise ValueError(
            f"`knots` must be at most {MOST_KNOTS}, got {value}. Float32 logits cannot tell more apart."
        )
    return knots


def at_least(name: str, value: Any, least: int) -> int:
    """`value` as an int, if it is an integer, numpy's too, of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an int, got {value!r}.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}.")
    return int(value)
