"""Triton kernels of a mixture of softmaxes whose targets are distributions over words.

With K components of prior pi_k and probabilities p_k(y), and the target's weights t_y, a token's loss is

    L = -sum_y t_y log p(y),    p(y) = sum_k pi_k p_k(y)

A component's responsibility depends on the word, r_k(y) = pi_k p_k(y) / p(y). Its share of the token is
R_k = sum_y t_y r_k(y), and with f_k(y) the scores under the softmax

    dL/dlog pi_k = -R_k,    dL/df_k(y) = R_k p_k(y) - t_y r_k(y)

R_k needs all words, and r_k(y) all components of a word. So once the rows are reduced, one kernel over tokens
reads them for L and R, and leaves two numbers for each word: the top, its highest log pi_k p_k(y); and the
pull, t_y over the sum of exp(log pi_k p_k(y) - top). With these a row needs no other for its gradient.

b_ marks a block of words, m_ its mask.
"""

import triton
import triton.language as tl

from uncork.ops.triton.functions import value_and_slope
from uncork.ops.triton.kernels import deposit


@triton.jit
def distribution_kernel(
    z_ptr,
    z_stride,
    target_ptr,
    log_prior_ptr,
    row_scale_ptr,
    row_scale_stride,
    loss_ptr,
    dlog_prior_ptr,
    row_sums_ptr,
    row_factors_ptr,
    tops_ptr,
    pull_ptr,
    parameter_ptr,
    first,
    second,
    intervals,
    step,
    rows,
    z_loss,
    words: tl.constexpr,
    K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The loss of one token and, if they are not None, all that `row_gradient_kernel` needs."""
    token = tl.program_id(0).to(tl.int64)
    components = tl.arange(0, K_BLOCK)
    m_components = components < K
    place = token * K + components
    top_K = tl.load(row_sums_ptr + place, mask=m_components, other=0.0)
    rest_K = tl.log(tl.load(row_sums_ptr + rows + place, mask=m_components, other=1.0))
    prior_K = tl.load(log_prior_ptr + place, mask=m_components, other=0.0).to(tl.float32)
    share_K = tl.zeros([K_BLOCK], tl.float32)
    log_p = 0.0  # along the target
    for start in range(0, words, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        m_words = offsets < words
        b_t = tl.load(target_ptr + token * words + offsets, mask=m_words, other=0.0)
        b_top = tl.full([BLOCK], float("-inf"), tl.float32)
        b_total = tl.zeros([BLOCK], tl.float32)
        for k in range(K):
            b_z = tl.load(z_ptr + (token * K + k) * z_stride + offsets, mask=m_words, other=0.0)
            b_f, _ = value_and_slope(b_z.to(tl.float32), parameter_ptr, first, second, intervals, step, KIND)
            b_joint = joint(b_f, top_K, rest_K, prior_K, components == k)
            b_higher = tl.maximum(b_top, b_joint)
            b_safe = tl.where(b_higher == float("-inf"), 0.0, b_higher)
            b_total = b_total * tl.exp(b_top - b_safe) + tl.exp(b_joint - b_safe)
            b_top = b_higher
        # A word of weight 0 adds 0 even where its probability is 0.
        log_p += tl.sum(tl.where(b_t != 0.0, b_t * (b_top + tl.log(b_total)), 0.0), 0)
        if pull_ptr is not None:
            b_top = tl.where(b_top == float("-inf"), 0.0, b_top)
            # For a word masked in all components none of them is responsible.
            b_pull = tl.where(b_total != 0.0, b_t / b_total, 0.0)
            tl.store(tops_ptr + token * words + offsets, b_top, mask=m_words)
            tl.store(pull_ptr + token * words + offsets, b_pull, mask=m_words)
            for k in range(K):
                b_z = tl.load(z_ptr + (token * K + k) * z_stride + offsets, mask=m_words, other=0.0)
                b_f, _ = value_and_slope(
                    b_z.to(tl.float32), parameter_ptr, first, second, intervals, step, KIND
                )
                b_joint = joint(b_f, top_K, rest_K, prior_K, components == k)
                share = tl.sum(b_pull * tl.exp(b_joint - b_top), 0)
                share_K += tl.where(components == k, share, 0.0)

    lse_K = top_K + rest_K
    squares = tl.sum(tl.where(m_components, lse_K * lse_K, 0.0), 0) / K
    tl.store(loss_ptr + token, tl.where(z_loss == 0.0, 0.0, z_loss * squares) - log_p)
    if pull_ptr is not None:
        scale = tl.load(row_scale_ptr + token * row_scale_stride).to(tl.float32)
        # Of a token that is to be ignored nothing must come, whatever its logits are.
        share_K = tl.where(scale == 0.0, 0.0, scale * share_K)
        tl.store(dlog_prior_ptr + place, -share_K, mask=m_components)
        tl.store(row_factors_ptr + place, top_K, mask=m_components)
        tl.store(row_factors_ptr + rows + place, rest_K, mask=m_components)
        from_z_loss_K = tl.where((scale == 0.0) | (z_loss == 0.0), 0.0, scale * z_loss * 2.0 * lse_K / K)
        factor_K = share_K + from_z_loss_K
        tl.store(row_factors_ptr + 2 * rows + place, factor_K, mask=m_components)
        tl.store(row_factors_ptr + 3 * rows + place, scale + tl.zeros_like(top_K), mask=m_components)
        tl.store(row_factors_ptr + 4 * rows + place, prior_K, mask=m_components)


@triton.jit
def joint(b_f, top_K, rest_K, prior_K, chosen):
    """log pi_k p_k of a block of words of one component, in the order that keeps most digits."""
    top = tl.sum(tl.where(chosen, top_K, 0.0), 0)
    rest = tl.sum(tl.where(chosen, rest_K, 0.0), 0)
    return ((b_f - top) - rest) + tl.sum(tl.where(chosen, prior_K, 0.0), 0)


@triton.jit
def row_gradient_kernel(
    z_ptr,
    dz_ptr,
    z_stride,
    dz_stride,
    row_factors_ptr,
    tops_ptr,
    pull_ptr,
    dscale_ptr,
    sums_ptr,
    sums_unit_ptr,
    parameter_ptr,
    first,
    second,
    intervals,
    step,
    rows,
    words: tl.constexpr,
    K: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dL/dz of one row, written over it, and what it adds to the gradients of the function not None."""
    row = tl.program_id(0).to(tl.int64)
    at = (row // K) * words
    top = tl.load(row_factors_ptr + row)
    rest = tl.load(row_factors_ptr + rows + row)
    factor = tl.load(row_factors_ptr + 2 * rows + row)
    scale = tl.load(row_factors_ptr + 3 * rows + row)
    prior = tl.load(row_factors_ptr + 4 * rows + row)
    valid = (row >= 0) & (scale != 0.0)
    along = 0.0
    for start in range(0, words, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        m_words = offsets < words
        # What is to be ignored is not read: it may be no number, and times 0 it still would not be.
        b_z = tl.load(z_ptr + row * z_stride + offsets, mask=m_words & valid, other=0.0).to(tl.float32)
        b_f, b_slope = value_and_slope(b_z, parameter_ptr, first, second, intervals, step, KIND)
        b_log_p = (b_f - top) - rest
        b_top = tl.load(tops_ptr + at + offsets, mask=m_words, other=0.0)
        b_pull = tl.load(pull_ptr + at + offsets, mask=m_words, other=0.0)
        b_g = factor * tl.exp(b_log_p) - scale * b_pull * tl.exp((b_log_p + prior) - b_top)
        b_g = tl.where(m_words & valid, b_g, 0.0)
        if dscale_ptr is not None:
            along += tl.sum(tl.where(b_g == 0.0, 0.0, b_g * b_z), 0)  # a masked word's logit is infinite
        if sums_ptr is not None:
            deposit(b_z, b_g, m_words, sums_ptr, sums_unit_ptr, first, intervals, step)
        # dz may be half as wide as z and lie on it: the block must be read before it is written.
        tl.debug_barrier()
        tl.store(
            dz_ptr + row * dz_stride + offsets, (b_g * b_slope).to(dz_ptr.dtype.element_ty), mask=m_words
        )
    if dscale_ptr is not None:
        tl.store(dscale_ptr + row, along)
