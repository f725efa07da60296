"""Each increasing function inside a kernel: value and slope of a block of logits.

The kinds are those of `uncork.ops.pointwise`, where the formulas are. `parameter_ptr` points to the factor of
"scale", and to the (value, slope) pairs of "table", each pair of float32 in one 64-bit integer.
"""

import triton
import triton.language as tl


# Kinds that increase whatever their parameters are: the highest logit has the highest value.
INCREASING = ("identity", "scale", "sigsoftmax", "softcap")
# In a kernel a kind is its name: a global constant in its place would be compared at every launch.
KINDS = (*INCREASING, "table")


@triton.jit
def tanh(x):
    # The quotient loses digits near 0, where the series has them all.
    e = tl.exp(-2.0 * tl.abs(x))
    quotient = (1.0 - e) / (1.0 + e)
    square = x * x
    series = -0.05396825 + square * 0.02186949
    series = x * (1.0 + square * (-0.33333333 + square * (0.13333333 + square * series)))
    return tl.where(tl.abs(x) < 0.3, series, tl.where(x < 0, -quotient, quotient))


@triton.jit
def locate(z, intervals, bound, step):
    """Interval index and offset from its left knot; NaN lands in interval 0."""
    position = (z + bound) / step
    position = tl.where(position > 0.0, position, 0.0)
    position = tl.minimum(position, (intervals - 1).to(tl.float32))
    index = position.to(tl.int32)
    offset = z - (index.to(tl.float32) - 0.5 * intervals.to(tl.float32)) * step
    return index, offset


@triton.jit
def value_and_slope(z, parameter_ptr, first, second, intervals, step, KIND: tl.constexpr):
    """f(z) and f'(z); `first` and `second` are the form's two constants."""
    if KIND == "scale":
        factor = tl.load(parameter_ptr)
        return z * factor, tl.zeros_like(z) + factor
    elif KIND == "sigsoftmax":
        moved = z - first
        # softplus(-|moved|) and its derivative, a sigmoid, from one exponential: nothing large cancels.
        e = tl.exp(-tl.abs(moved))
        one = 1.0 + e
        rest = tl.log(one) + (e - (one - 1.0)) / one  # with what `one` lost to rounding
        bend = (second - 1.0) * (e / one)
        line = tl.where(moved > 0, z, first + second * moved)
        return line - (second - 1.0) * rest, tl.where(moved > 0, 1.0 + bend, second - bend)
    elif KIND == "softcap":
        x = z / first
        e = tl.exp(-2.0 * tl.abs(x))  # far out all that is left of the slope, where 1 - tanh^2 would cancel
        return first * tanh(x), 4.0 * e / ((1.0 + e) * (1.0 + e))
    elif KIND == "table":
        index, offset = locate(z, intervals, first, step)
        # One look-up of 64 bits: look-ups, not arithmetic, are what a table costs.
        pair = tl.load(parameter_ptr + index)
        value = (pair & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
        slope = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        return value + slope * offset, slope
    else:
        return z, tl.zeros_like(z) + 1.0


@triton.jit
def weight_and_slope(z, highest, parameter_ptr, first, second, KIND: tl.constexpr, SQUARE: tl.constexpr):
    """exp(f(z) - f(highest)) and f'(z), for z <= highest and a kind that increases.

    SQUARE: sigsoftmax of steepness 2, whose exponential is s^2 / (1 + s) with s = exp z: no logarithm.
    """
    if KIND == "scale":
        factor = tl.load(parameter_ptr)
        return tl.exp(factor * (z - highest)), tl.zeros_like(z) + factor
    elif KIND == "sigsoftmax" and SQUARE:
        above = highest - first
        small = tl.exp(-tl.abs(above))
        # (1 + e^above) / (1 + e^above s), written with the smaller of e^above and e^-above.
        left = tl.where(above >= 0, 1.0, small)
        right = tl.maximum(tl.where(above >= 0, small, 1.0), 1e-37)
        s = tl.exp(z - highest)
        share = s / (left * s + right)
        return s * share * (1.0 + small), 2.0 - left * share
    elif KIND == "identity":
        return tl.exp(z - highest), tl.zeros_like(z) + 1.0
    else:
        value, slope = value_and_slope(z, parameter_ptr, first, second, 2, 1.0, KIND)
        top, _ = value_and_slope(
            highest + tl.zeros([1], tl.float32), parameter_ptr, first, second, 2, 1.0, KIND
        )
        return tl.exp(value - tl.sum(top, 0)), slope
