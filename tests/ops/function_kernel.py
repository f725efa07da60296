"""A kernel that is nothing but a function: what its value and slope are tested through."""

import triton
import triton.language as tl

from uncork.ops.triton.functions import value_and_slope


@triton.jit
def function_kernel(
    z_ptr, value_ptr, slope_ptr, factor_ptr, first, second, BLOCK: tl.constexpr, KIND: tl.constexpr
):
    at = tl.arange(0, BLOCK)
    value, slope = value_and_slope(tl.load(z_ptr + at), factor_ptr, first, second, 2, 1.0, KIND)
    tl.store(value_ptr + at, value)
    tl.store(slope_ptr + at, slope)
