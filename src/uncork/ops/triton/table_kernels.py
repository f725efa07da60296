"""Triton kernels around the table of a learned function: building it, and turning sums into its gradient.

Each would be a dozen small torch calls, which at small sizes cost more than the loss itself. Sums run in
float64, a block of intervals per program: first the sum of each block, then the sums inside it from there on.
A float64 argument comes as a float32 and what is left of it.
"""

import triton
import triton.language as tl


@triton.jit
def pairs_kernel(knot_ptr, pairs_ptr, intervals, per_step, BLOCK: tl.constexpr):
    """(value, slope) of every interval, two float32 in an int64, from float64 knot values."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < intervals
    left = tl.load(knot_ptr + index, mask=mask, other=0.0)
    right = tl.load(knot_ptr + index + 1, mask=mask, other=0.0)
    tl.store(pairs_ptr + index, pair_of(left, right, per_step), mask=mask)


@triton.jit
def pair_of(left, right, per_step):
    value = left.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64)
    slope = ((right - left) * per_step).to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64)
    return (slope << 32) | (value & 0xFFFFFFFF)


@triton.jit
def window_kernel(z_ptr, window_ptr, intervals, width, bound, words: tl.constexpr, BLOCK: tl.constexpr):
    """The first interval of a window of `width` around the mean of logits of one row, those inside the table
    among BLOCK or so of them; and the interval of the mean, which is its middle unless an end is near.
    """
    offsets = tl.arange(0, BLOCK) * ((words + BLOCK - 1) // BLOCK)
    b_z = tl.load(z_ptr + offsets, mask=offsets < words, other=float("inf")).to(tl.float32)
    inside = tl.abs(b_z) <= bound  # not a masked word's minus infinity, nor NaN
    total = tl.sum(tl.where(inside, b_z, 0.0), 0)
    count = tl.sum(inside.to(tl.float32), 0)
    middle = (total / tl.maximum(count, 1.0) + bound) * (intervals / (2.0 * bound))
    room = (intervals - width).to(tl.float32)
    tl.store(window_ptr, tl.minimum(tl.maximum(middle - 0.5 * width, 0.0), room).to(tl.int32))
    tl.store(window_ptr + 1, middle.to(tl.int32))


@triton.jit
def collect_kernel(
    staging_ptr,
    spill_ptr,
    beyond_ptr,
    window_ptr,
    out_ptr,
    width,
    staging_stride,
    intervals,
    per_step,
    blocks: tl.constexpr,
    SPILLS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dL/dF of every knot: the blocks' windows, what fell outside them, what lies beyond the table's ends."""
    knot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_left = knot < intervals
    m_right = (knot >= 1) & (knot <= intervals)
    total = tl.zeros([BLOCK], tl.float64)
    for copy in range(SPILLS):
        base = spill_ptr + 2 * copy * intervals
        total += tl.load(base + 2 * knot, mask=m_left, other=0.0).to(tl.float64)
        total += tl.load(base + 2 * knot - 1, mask=m_right, other=0.0).to(tl.float64)
    place = knot - tl.load(window_ptr)
    for start in range(0, blocks, ROWS):
        row = start + tl.arange(0, ROWS)
        base = staging_ptr + row[:, None].to(tl.int64) * staging_stride
        m_row = row[:, None] < blocks
        inside = m_row & ((place >= 0) & (place < width))[None, :]
        part = tl.load(base + place[None, :], mask=inside, other=0.0).to(tl.float64)
        total += tl.sum(part, 0)
    # What lies beyond an end acts through that end's slope, so on its last two knots.
    below = tl.load(beyond_ptr) * per_step
    above = tl.load(beyond_ptr + 1) * per_step
    total += tl.where(knot == 1, below, 0.0) - tl.where(knot == 0, below, 0.0)
    total += tl.where(knot == intervals, above, 0.0) - tl.where(knot == intervals - 1, above, 0.0)
    tl.store(out_ptr + knot, total, mask=knot <= intervals)


@triton.jit
def wide(high, rest, like):
    return (tl.zeros_like(like) + high) + rest


@triton.jit
def softplus(v):
    return tl.maximum(v, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(v)))


@triton.jit
def slope_sums_kernel(v_ptr, sums_ptr, intervals, BLOCK: tl.constexpr):
    """The sum of each block of softplus(v)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(v_ptr + index, mask=index < intervals, other=0.0).to(tl.float64)
    slope = tl.where(index < intervals, softplus(v), 0.0)
    tl.store(sums_ptr + tl.program_id(0), tl.sum(slope, 0))


@triton.jit
def knots_kernel(
    v_ptr,
    sums_ptr,
    knot_ptr,
    intervals,
    step,
    step_rest,
    bound,
    bound_rest,
    BLOCK: tl.constexpr,
    ALL: tl.constexpr,
):
    """F_i = -T + d times the sum of softplus(v_j) over j < i: slopes of 1 add up without rounding."""
    program = tl.program_id(0)
    index = program * BLOCK + tl.arange(0, BLOCK)
    mask = index < intervals
    others = tl.arange(0, ALL)
    before = tl.sum(tl.load(sums_ptr + others, mask=others < program, other=0.0), 0)
    v = tl.load(v_ptr + index, mask=mask, other=0.0).to(tl.float64)
    slope = tl.where(mask, softplus(v), 0.0)
    left_end = -wide(bound, bound_rest, v)
    rise = (before + tl.cumsum(slope, 0)) * wide(step, step_rest, v)
    tl.store(knot_ptr + index + 1, left_end + rise, mask=mask)
    tl.store(knot_ptr + index, left_end, mask=index == 0)


@triton.jit
def gradient_sums_kernel(dknot_ptr, sums_ptr, intervals, BLOCK: tl.constexpr):
    """The sum of each block of dL/dF_1 .. dL/dF_k."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.load(dknot_ptr + 1 + index, mask=index < intervals, other=0.0)
    tl.store(sums_ptr + tl.program_id(0), tl.sum(part, 0))


@triton.jit
def slopes_gradient_kernel(
    v_ptr, dknot_ptr, sums_ptr, dv_ptr, intervals, step, step_rest, BLOCK: tl.constexpr, ALL: tl.constexpr
):
    """dL/dv_i = sigmoid(v_i) d times the sum of dL/dF_j over j > i."""
    program = tl.program_id(0)
    index = program * BLOCK + tl.arange(0, BLOCK)
    mask = index < intervals
    others = tl.arange(0, ALL)
    m_after = (others > program) & (others < tl.num_programs(0))
    after = tl.sum(tl.load(sums_ptr + others, mask=m_after, other=0.0), 0)
    part = tl.load(dknot_ptr + 1 + index, mask=mask, other=0.0)
    # From the right: the sum of the block less what comes before, plus the entry itself.
    above = after + tl.sum(part, 0) - tl.cumsum(part, 0) + part
    v = tl.load(v_ptr + index, mask=mask, other=0.0).to(tl.float64)
    e = tl.exp(-tl.abs(v))
    sigmoid = tl.where(v > 0, 1.0, e) / (1.0 + e)
    dv = sigmoid * wide(step, step_rest, v) * above
    if dv_ptr.dtype.element_ty != tl.float64:
        dv = dv.to(tl.float32)  # on the way to lower precisions, to which float64 is not converted everywhere
    tl.store(dv_ptr + index, dv.to(dv_ptr.dtype.element_ty), mask=mask)
