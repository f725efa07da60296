"""Triton kernels over tokens: the loss from its rows of logits, and the gradient.

A token's rows may have been reduced, and folded, before: see `uncork.ops.triton.row_kernels`. If not, the
kernel reads them once for the loss and once for dL/dz, which it writes over them.

Shapes: z (tokens, K, V). b_ marks a block of words, m_ its mask.
"""

import triton
import triton.language as tl

from uncork.ops.triton.functions import locate, value_and_slope
from uncork.ops.triton.row_kernels import sum_row


# Gradient times distance beyond the table goes to a slot by how far: the first is for distances up to 2^14
# bounds, in units of as many, and each after it for those 2^14 times as far. So the farthest float32 still
# fits an integer, and the unit of a slot stays small for what lies in it.
BEYOND: tl.constexpr = tl.constexpr(16384.0)
BEYOND_BITS: tl.constexpr = tl.constexpr(14.0)
BEYOND_SLOTS: tl.constexpr = tl.constexpr(10)


@triton.jit
def token_kernel(
    z_ptr,
    dz_ptr,
    z_stride,
    dz_stride,
    target_ptr,
    class_weight_ptr,
    log_prior_ptr,
    row_scale_ptr,
    row_scale_stride,
    x_ptr,
    scaled_x_ptr,
    row_factor_ptr,
    loss_ptr,
    dlog_prior_ptr,
    row_sums_ptr,
    row_factors_ptr,
    dscale_ptr,
    sums_ptr,
    sums_unit_ptr,
    parameter_ptr,
    first,
    second,
    intervals,
    step,
    rows,
    ignore_index,
    z_loss,
    words: tl.constexpr,
    width: tl.constexpr,
    K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    DENSE: tl.constexpr,
    FOLD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The loss of one token and, as asked, dL/dz in place, or the row statistics another kernel needs.

    A pointer is None to what is not given, or not wanted: `dz`, the gradient; `row_factors`, the statistics;
    `dscale` and `sums`, gradients of the function; `row_sums`, to which the rows may have been reduced.
    DENSE: the target is a row of weights over words, of one component. FOLD: the rows have been overwritten
    too; what is left is their factor, which goes into the latent vectors, and the target word.
    """
    token = tl.program_id(0).to(tl.int64)
    if DENSE:
        valid = token >= 0
        word = token * 0
    else:
        target = tl.load(target_ptr + token)
        valid = target != ignore_index
        # Nothing outside the row must be read or written; the loss of such a token is NaN, so that it shows.
        word = tl.minimum(tl.maximum(tl.where(valid, target, 0), 0), words - 1)
    weight = 1.0
    if class_weight_ptr is not None:
        weight = tl.load(class_weight_ptr + word).to(tl.float32)
    weight = tl.where(valid, weight, 0.0)

    components = tl.arange(0, K_BLOCK)
    m_components = components < K
    # logsumexp in two parts: f - top keeps the digits that f - logsumexp would lose where f is large.
    top_K = tl.zeros([K_BLOCK], tl.float32)
    rest_K = tl.zeros([K_BLOCK], tl.float32)
    total_K = tl.full([K_BLOCK], 1.0, tl.float32)
    joint_K = tl.full([K_BLOCK], float("-inf"), tl.float32)
    mass = 1.0  # of a dense target; an index is one word
    if DENSE:
        mass = 0.0
    if row_sums_ptr is not None:
        place = row_sums_ptr + token * K + components
        top_K = tl.load(place, mask=m_components, other=0.0)
        total_K = tl.load(place + rows, mask=m_components, other=1.0)
        f_word_K = tl.load(place + 2 * rows, mask=m_components, other=float("-inf"))
        rest_K = tl.log(total_K)
        joint_K = (f_word_K - top_K) - rest_K
        if log_prior_ptr is not None:
            joint_K += tl.load(log_prior_ptr + token * K + components, mask=m_components, other=0.0).to(
                tl.float32
            )
    else:
        for k in range(K):
            row_ptr = z_ptr + (token * K + k) * z_stride
            z_word = tl.load(row_ptr + word + tl.arange(0, 1)).to(tl.float32)
            f_word, _ = value_and_slope(z_word, parameter_ptr, first, second, intervals, step, KIND)
            top, total = sum_row(row_ptr, parameter_ptr, first, second, intervals, step, words, KIND, BLOCK)
            rest = tl.log(total)
            log_p = (tl.sum(f_word, 0) - top) - rest
            if log_prior_ptr is not None:
                log_p += tl.load(log_prior_ptr + token * K + k).to(tl.float32)
            top_K = tl.where(components == k, top, top_K)
            rest_K = tl.where(components == k, rest, rest_K)
            total_K = tl.where(components == k, total, total_K)
            joint_K = tl.where(components == k, log_p, joint_K)

    if DENSE:  # one component; the sum over words of t log p, its digits kept by the order of subtraction
        rest = tl.sum(rest_K, 0)
        top = tl.sum(top_K, 0)
        along_target = 0.0
        for start in range(0, words, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            m_words = offsets < words
            b_t = tl.load(target_ptr + token * words + offsets, mask=m_words, other=0.0)
            mass += tl.sum(b_t, 0)
            b_z = tl.load(z_ptr + token * z_stride + offsets, mask=m_words, other=0.0).to(tl.float32)
            b_f, _ = value_and_slope(b_z, parameter_ptr, first, second, intervals, step, KIND)
            along_target += tl.sum(tl.where(b_t != 0.0, b_t * ((b_f - top) - rest), 0.0), 0)
        joint_K = tl.zeros([K_BLOCK], tl.float32) + along_target
    top = tl.max(joint_K, 0)
    # A word masked in all components has no finite one to subtract.
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(joint_K - top), 0)
    log_p = top + tl.log(total)
    lse_K = top_K + rest_K
    squares = tl.sum(tl.where(m_components, lse_K * lse_K, 0.0), 0) / K
    penalty = tl.where(z_loss == 0.0, 0.0, z_loss * squares)  # the square of a large one is infinite
    # A word of weight 0 adds 0 even where its probability is 0.
    loss = tl.where(valid, penalty - tl.where(weight == 0.0, 0.0, weight * log_p), 0.0)
    if not DENSE:
        loss = tl.where(valid & (target != word), float("nan"), loss)
    tl.store(loss_ptr + token, loss)

    if dz_ptr is not None or row_factors_ptr is not None:
        scale = tl.load(row_scale_ptr + token * row_scale_stride).to(tl.float32)
        if DENSE:  # of one that is to be ignored nothing must come, whatever its logits are
            valid = valid & (scale != 0.0)
        if K == 1:
            share_K = scale * weight + tl.zeros([K_BLOCK], tl.float32)
        else:
            # Not exp(joint - log_p): log_p of a hopeless word is large, and its rounding would not cancel.
            # For a word masked in all components, whose total is 0, none of them is responsible.
            share_K = scale * weight * tl.exp(joint_K - top) / tl.where(total == 0.0, 1.0, total)
        # Of an ignored token, or a word of weight 0, nothing must come: neither a scale of 1/0, when all are
        # such, nor a vector of NaN.
        share_K = tl.where(valid & (weight != 0.0), share_K, 0.0)
        from_z_loss_K = tl.where(z_loss == 0.0, 0.0, scale * z_loss * 2.0 * lse_K / K)
        factor_K = tl.where(valid, share_K * mass + from_z_loss_K, 0.0)
        if log_prior_ptr is not None:
            tl.store(dlog_prior_ptr + token * K + components, -share_K, mask=m_components)
        if row_factors_ptr is not None:
            out = row_factors_ptr + token * K + components
            tl.store(out, top_K, mask=m_components)
            tl.store(out + rows, rest_K, mask=m_components)
            tl.store(out + 2 * rows, factor_K, mask=m_components)
            tl.store(out + 3 * rows, share_K, mask=m_components)
            tl.store(out + 4 * rows, total_K, mask=m_components)
    if FOLD:
        finish_folded_rows(
            dz_ptr, dz_stride, x_ptr, scaled_x_ptr, row_factor_ptr, dscale_ptr, place, rows, token, word,
            valid, components, m_components, top_K, total_K, f_word_K, share_K, factor_K,
            width, K, BLOCK,
        )  # fmt: skip
    elif dz_ptr is not None:
        write_gradient(
            z_ptr, dz_ptr, z_stride, dz_stride, target_ptr, dscale_ptr, sums_ptr, sums_unit_ptr,
            parameter_ptr, first, second, intervals, step, token, word, valid, components, top_K, rest_K,
            share_K, factor_K,
            words, K, KIND, DENSE, BLOCK,
        )  # fmt: skip


@triton.jit
def finish_folded_rows(
    dz_ptr, dz_stride, x_ptr, scaled_x_ptr, row_factor_ptr, dscale_ptr, place, rows, token, word, valid,
    components, m_components, top_K, total_K, f_word_K, share_K, factor_K,
    width: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The factor of each row, in the latent vectors too, and dL/dz at the target word divided by it."""
    # At the target word the gradient is less by the share; divided by the factor, as all of the row.
    less_K = total_K * (share_K / tl.where(factor_K == 0.0, 1.0, factor_K))
    factor_K = tl.where(m_components & valid, factor_K / total_K, 0.0)
    tl.store(row_factor_ptr + token * K + components, factor_K, mask=m_components)
    slope_K = tl.load(place + 3 * rows, mask=m_components, other=0.0)
    at_word_K = tl.where(valid & m_components, (tl.exp(f_word_K - top_K) - less_K) * slope_K, 0.0)
    word_ptr = dz_ptr + (token * K + components) * dz_stride + word
    tl.store(word_ptr, at_word_K.to(dz_ptr.dtype.element_ty), mask=m_components)
    if dscale_ptr is not None:
        z_word_K = tl.load(place + 4 * rows, mask=m_components, other=0.0)
        along_K = tl.load(place + 5 * rows, mask=m_components, other=0.0)
        pull_K = tl.where(share_K == 0.0, 0.0, share_K * z_word_K)  # a masked word's is infinite
        along_K = tl.where(m_components & valid, factor_K * along_K - pull_K, 0.0)
        tl.store(dscale_ptr + token, tl.sum(along_K, 0))
    for k in range(K):
        factor = tl.sum(tl.where(components == k, factor_K, 0.0), 0)
        scale_row(x_ptr, scaled_x_ptr, (token * K + k) * width, factor, width, BLOCK)


@triton.jit
def write_gradient(
    z_ptr, dz_ptr, z_stride, dz_stride, target_ptr, dscale_ptr, sums_ptr, sums_unit_ptr, parameter_ptr,
    first, second, intervals, step, token, word, valid, components, top_K, rest_K, share_K, factor_K,
    words: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr, DENSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dL/dz of a token's rows, written over them, and what they add to the sums of the function."""
    along = 0.0
    for k in range(K):
        chosen = components == k
        top = tl.sum(tl.where(chosen, top_K, 0.0), 0)
        rest = tl.sum(tl.where(chosen, rest_K, 0.0), 0)
        share = tl.sum(tl.where(chosen, share_K, 0.0), 0)
        factor = tl.sum(tl.where(chosen, factor_K, 0.0), 0)
        row_ptr = z_ptr + (token * K + k) * z_stride
        out_ptr = dz_ptr + (token * K + k) * dz_stride
        for start in range(0, words, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            m_words = offsets < words
            # What is to be ignored is not read: it may be no number, and times 0 it still would not be.
            b_z = tl.load(row_ptr + offsets, mask=m_words & valid, other=0.0).to(tl.float32)
            b_f, b_slope = value_and_slope(b_z, parameter_ptr, first, second, intervals, step, KIND)
            b_g = factor * tl.exp((b_f - top) - rest)
            if DENSE:
                b_g -= share * tl.load(target_ptr + token * words + offsets, mask=m_words, other=0.0)
            else:
                b_g = tl.where(offsets == word, b_g - share, b_g)
            b_g = tl.where(m_words & valid, b_g, 0.0)
            if dscale_ptr is not None:
                along += tl.sum(tl.where(b_g == 0.0, 0.0, b_g * b_z), 0)  # a masked word's is infinite
            if sums_ptr is not None:
                deposit(b_z, b_g, m_words, sums_ptr, sums_unit_ptr, first, intervals, step)
            # dz may be half as wide as z and lie on it: the block must be read before it is written.
            tl.debug_barrier()
            tl.store(out_ptr + offsets, (b_g * b_slope).to(dz_ptr.dtype.element_ty), mask=m_words)
    if dscale_ptr is not None:
        tl.store(dscale_ptr + token, along)


@triton.jit
def scale_row(x_ptr, out_ptr, start, factor, width: tl.constexpr, BLOCK: tl.constexpr):
    """out = factor x for one row."""
    for left in range(0, width, BLOCK):
        offsets = left + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + offsets, mask=offsets < width, other=0.0).to(tl.float32)
        # No factor: an ignored token, whose vector may hold anything.
        x = tl.where(factor == 0.0, 0.0, x) * factor
        tl.store(out_ptr + start + offsets, x.to(out_ptr.dtype.element_ty), mask=offsets < width)


@triton.jit
def deposit(b_z, b_g, m_words, sums_ptr, sums_unit_ptr, bound, intervals, step):
    """Add g (1 - t) to the left knot and g t to the right one, t = offset / step, as integers.

    Integer sums do not depend on the order of the threads. Beyond the ends t stays in [0, 1], and what is
    left of the offset goes to slots of its own behind the knots: BEYOND_SLOTS of them below the table, as
    many above. One more, the last, counts what is not finite, which no integer could show.
    """
    unit = tl.load(sums_unit_ptr)
    index, offset = locate(b_z, intervals, bound, step)
    t = tl.minimum(tl.maximum(offset / step, 0.0), 1.0)
    left = (b_g * (1.0 - t) * unit).to(tl.int64)
    right = (b_g * t * unit).to(tl.int64)
    tl.atomic_add(sums_ptr + index, left, mask=m_words & (left != 0))
    tl.atomic_add(sums_ptr + index + 1, right, mask=m_words & (right != 0))
    rest = (offset - t * step) / bound
    rest = tl.where(b_g == 0.0, 0.0, rest)  # a logit of minus infinity is infinitely far and pulls nothing
    level = tl.floor(tl.log2(tl.maximum(tl.abs(rest), 1.0)) / BEYOND_BITS)
    level = tl.minimum(level, BEYOND_SLOTS - 1.0)  # infinity has one too
    part = rest * tl.exp2(level * -BEYOND_BITS) / BEYOND
    beyond = (b_g * part * unit).to(tl.int64)
    slot = intervals + 1 + tl.where(offset > 0, BEYOND_SLOTS, 0) + level.to(tl.int32)
    tl.atomic_add(sums_ptr + slot, beyond, mask=m_words & ((b_z < -bound) | (b_z > bound)) & (beyond != 0))
    # Written so that NaN counts too.
    finite = (tl.abs(b_g) < float("inf")) & (tl.abs(rest) < float("inf"))
    bad = tl.sum((m_words & (finite == 0)).to(tl.int64), 0)
    tl.atomic_add(sums_ptr + intervals + 1 + 2 * BEYOND_SLOTS, bad, mask=bad != 0)


# As many as a loss has gradients: of the latent vectors, the prior, the weight, the bias, and the function.
SCALED_AT_ONCE = 5


@triton.jit
def scale_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr, e_ptr, a_size, b_size, c_size, d_size, e_size, factor_ptr, BLOCK: tl.constexpr
):
    """Five arrays times one factor, unless that is 1: then nothing is read or written."""
    which = tl.program_id(1)
    if which == 0:
        scale_array(a_ptr, a_size, factor_ptr, BLOCK)
    elif which == 1:
        scale_array(b_ptr, b_size, factor_ptr, BLOCK)
    elif which == 2:
        scale_array(c_ptr, c_size, factor_ptr, BLOCK)
    elif which == 3:
        scale_array(d_ptr, d_size, factor_ptr, BLOCK)
    else:
        scale_array(e_ptr, e_size, factor_ptr, BLOCK)


@triton.jit
def scale_array(x_ptr, size, factor_ptr, BLOCK: tl.constexpr):
    factor = tl.load(factor_ptr)
    if x_ptr.dtype.element_ty == tl.float64:  # noqa: SIM108
        factor = factor.to(tl.float64)
    else:
        factor = factor.to(tl.float32)
    if factor != 1.0:
        stride = tl.num_programs(0).to(tl.int64) * BLOCK
        start = tl.program_id(0).to(tl.int64) * BLOCK
        while start < size:
            offsets = start + tl.arange(0, BLOCK)
            mask = offsets < size
            x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
            tl.store(x_ptr + offsets, (x.to(factor.dtype) * factor).to(x_ptr.dtype.element_ty), mask=mask)
            start += stride
