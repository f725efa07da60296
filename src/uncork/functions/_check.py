"""Checks of constructor arguments."""

from numbers import Integral
from typing import Any

import torch

from uncork.ops.validate import FLOAT32, FLOATING, number


def finite(name: str, value: Any) -> float:
    """`value` as a float, if it is a finite number, in float32 too, which functions are computed in."""
    number(name, value)
    if not abs(value) <= FLOAT32.max:  # NaN fails too
        raise ValueError(
            f"`{name}` must be finite, got {value}. Pass a number that float32 can hold, such as 0.5."
        )
    return float(value)


def positive(name: str, value: Any) -> float:
    """`value` as a float, if it is finite and above 0, in float32 too."""
    if finite(name, value) < FLOAT32.tiny:
        raise ValueError(
            f"`{name}` must be above 0, got {value}. Pass a number that float32 can hold, such as 0.5."
        )
    return float(value)


def parameter_dtype(value: Any) -> torch.dtype | None:
    """`dtype` of a constructor, if parameters may have it."""
    if value is not None and value not in FLOATING:
        raise TypeError(
            f"`dtype` must be a floating dtype of at least 16 bits, or None, got {value}. Pass one such as "
            "torch.float32."
        )
    return value


# Intervals are found by float32 arithmetic, which counts no further than 2^24.
MOST_KNOTS = 2**23


def knot_count(value: Any) -> int:
    """`knots` as an int, if a table may have that many."""
    knots = at_least("knots", value, 2)
    if knots > MOST_KNOTS:
        raise ValueError(
            f"`knots` must be at most {MOST_KNOTS}, got {value}. Float32 logits cannot tell more apart: pass "
            "fewer, such as 100000."
        )
    return knots


# Beyond it float32 would tell ordinary logits apart no better than by tenths: f would be flat in steps.
MOST_BOUND = 1e6


def table_bound(name: str, value: Any) -> float:
    """`bound` as a float, if a table may reach that far."""
    bound = positive(name, value)
    if bound > MOST_BOUND:
        raise ValueError(
            f"`{name}` must be at most {MOST_BOUND:g}, got {value}. Float32 cannot tell logits apart on a "
            "table as wide: pass one that most logits lie within, such as 20."
        )
    return bound


def at_least(name: str, value: Any, least: int) -> int:
    """`value` as an int, if it is an integer, numpy's too, of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an int, got {value!r}. Pass a whole number such as 100.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}. Pass {least} or more.")
    return int(value)
