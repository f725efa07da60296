"""Triton kernels over rows of logits: a row is one component of one token.

A row is reduced to its highest f and the sum of exp(f - highest), in one of two ways:

- summed: one reading, of which only the two numbers remain.
- folded: the first reading finds the highest logit, which has the highest f since f increases; the second
  evaluates f once, writes exp(f - top) f' over the logits and sums. dL/dz is that times a factor of the row,
  known only then; it goes into the matrix products instead: see `uncork.ops.chunked`.

b_ marks a block of words, m_ its mask.
"""

import triton
import triton.language as tl

from uncork.ops.triton.functions import value_and_slope, weight_and_slope


@triton.jit
def row_kernel(
    z_ptr,
    z_stride,
    target_ptr,
    row_sums_ptr,
    parameter_ptr,
    first,
    second,
    intervals,
    step,
    rows,
    ignore_index,
    words: tl.constexpr,
    K: tl.constexpr,
    KIND: tl.constexpr,
    FOLD: tl.constexpr,
    DENSE: tl.constexpr,
    SQUARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Statistics of a row: top, total, f at the target word; if folded also f' and z there, and sum u z.

    DENSE: the target is no word, and there is nothing but top and total.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = z_ptr + row * z_stride
    if not DENSE:
        target = tl.load(target_ptr + row // K)
        valid = target != ignore_index
        word = tl.minimum(tl.maximum(tl.where(valid, target, 0), 0), words - 1)
        z_word = tl.load(row_ptr + word + tl.arange(0, 1)).to(tl.float32)
        f_word, slope_word = value_and_slope(z_word, parameter_ptr, first, second, intervals, step, KIND)
        tl.store(row_sums_ptr + 2 * rows + row, tl.sum(f_word, 0))
    if FOLD:
        tl.debug_barrier()  # every thread has read the target's logit
        top, total, along = fold_row(row_ptr, valid, parameter_ptr, first, second, words, KIND, SQUARE, BLOCK)
        tl.store(row_sums_ptr + 3 * rows + row, tl.sum(slope_word, 0))
        tl.store(row_sums_ptr + 4 * rows + row, tl.sum(z_word, 0))
        tl.store(row_sums_ptr + 5 * rows + row, along)
    else:
        top, total = sum_row(row_ptr, parameter_ptr, first, second, intervals, step, words, KIND, BLOCK)
    tl.store(row_sums_ptr + row, top)
    tl.store(row_sums_ptr + rows + row, total)


@triton.jit
def sum_row(
    row_ptr, parameter_ptr, first, second, intervals, step, words, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    """The highest f of a row and the sum of exp(f - highest)."""
    top = float("-inf")
    total = 0.0
    for start in range(0, words, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        m_words = offsets < words
        b_z = tl.load(row_ptr + offsets, mask=m_words, other=0.0).to(tl.float32)
        b_f, _ = value_and_slope(b_z, parameter_ptr, first, second, intervals, step, KIND)
        b_f = tl.where(m_words, b_f, float("-inf"))
        higher = tl.maximum(top, tl.max(b_f, 0))
        # A row of -inf so far has no finite maximum to subtract.
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(b_f - safe), 0)
        top = higher
    return top, total


@triton.jit
def fold_row(
    row_ptr,
    valid,
    parameter_ptr,
    first,
    second,
    words,
    KIND: tl.constexpr,
    SQUARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write exp(f - top) f' over a row; top, the sum of exp(f - top), and that sum weighted by the logits."""
    highest = float("-inf")
    for start in range(0, words, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        b_z = tl.load(row_ptr + offsets, mask=offsets < words, other=float("-inf")).to(tl.float32)
        highest = tl.maximum(highest, tl.max(b_z, 0))
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    top, _ = value_and_slope(highest + tl.zeros([1], tl.float32), parameter_ptr, first, second, 2, 1.0, KIND)
    total = 0.0
    along = 0.0
    for start in range(0, words, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        m_words = offsets < words
        b_z = tl.load(row_ptr + offsets, mask=m_words, other=float("-inf")).to(tl.float32)
        b_u, b_slope = weight_and_slope(b_z, highest, parameter_ptr, first, second, KIND, SQUARE)
        b_u = tl.where(m_words, b_u, 0.0)
        total += tl.sum(b_u, 0)
        if KIND == "scale":
            along += tl.sum(b_u * tl.where(b_u > 0.0, b_z, 0.0), 0)
        b_dz = tl.where(valid, b_u * b_slope, 0.0)
        tl.store(row_ptr + offsets, b_dz.to(row_ptr.dtype.element_ty), mask=m_words)
    return tl.sum(top, 0), total, along
