/* dL/dz of a table function, and its sums per knot, in one pass over a chunk of logits.
 *
 * Each block keeps the sums of a window of knots in shared memory: every logit adds g (1 - t) to the knot on its
 * left and g t to the one on its right, t its place between them. A short table is kept in several copies, so that
 * warps do not wait for each other. What falls outside the window goes to pairs of sums in global memory. `t` stays
 * in [0, 1]; what is left of an offset beyond the table's ends has two sums of its own, in double.
 *
 * Shared memory adds integers natively, but floats by a loop of compare and swap. So the sums are integers, in units
 * of 2^-FINE of the largest factor of the block's rows: finer than the float32 rounding of a probability of 1e-4. Each
 * is the low 32 bits of a number that would need more, starting at their middle; what wraps around goes to the sums in
 * global memory, which are floats, as a whole multiple of 2^32 units: they stay exact.
 *
 * TARGET: 0 for a word; 1 for a distribution, `dense`; 2 for a distribution under a mixture, of which `dense` and `tops`
 * hold two numbers per word: see dense_kernels.py.
 *
 * COARSE: what is written will be rounded anyway, so f and f' come from the compressed table, of which a cache holds
 * twice as much; but at the target word, where p - 1 may be small, from the pairs. Shared memory answers a warp whose
 * logits lie far apart faster than the cache does. So it holds, before the sums, all bases, if BASES is room for them,
 * and as many codes as CODES in the middle of where the logits are.
 *
 * Where targets are words, nearly all logits need the same: those that do are taken first, without branches. The target
 * word, logits beyond the table, too large for an int, or not coded, are then taken one by one from the pairs.
 *
 * The gradient lies on the logits' memory. If half as wide, a thread may write only what every thread has read: writing
 * tile i covers logits of tile i/2, so a barrier at tiles 0, 1, 3, 7, ... is enough. If as wide, it has read them itself.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define THREADS 1024
#ifndef EACH
#define EACH 8 /* logits per thread and tile: enough table look-ups in flight to hide their latency; 5 of words */
#endif
#ifndef BASES
#define BASES 0
#define CODES 0
#endif
#ifndef TOGETHER
#define TOGETHER 2 /* logits whose sums are added to before it is looked at whether one wrapped around */
#endif
#define TILE (EACH * THREADS)
#define FINE 38
#define MIDDLE 0x80000000u
#define TURN 4294967296.0f /* after which a sum starts again */

#include "compressed.cu"
#include "spill.cu"

__device__ __forceinline__ void put(float *out, float v) { *out = v; }
__device__ __forceinline__ void put(__nv_bfloat16 *out, float v) { *out = __float2bfloat16(v); }
__device__ __forceinline__ void put(__half *out, float v) { *out = __float2half(v); }

/* Units per 1, from the rows of this block: 0 if they have no gradient. A power of 2, so that nothing but the rounding to
 * a unit is lost. */
__device__ float unit_scale(const float *factors, const float *shares, int rows) {
    __shared__ float largest[THREADS / 32];
    float most = 0.0f;
    for (int row = blockIdx.x + threadIdx.x * gridDim.x; row < rows; row += THREADS * gridDim.x)
        most = fmaxf(most, fmaxf(fabsf(factors[row]), fabsf(shares[row])));
    for (int lane = 16; lane > 0; lane >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL, most, lane));
    if ((threadIdx.x & 31) == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
    for (int warp = 0; warp < THREADS / 32; warp++) most = fmaxf(most, largest[warp]);
    /* Below 2^-80 the scale would not be a float, nor anything it measures one that matters. */
    const int exponent = __float_as_int(fmaxf(most, 8.3e-25f)) >> 23; /* of the power of 2 that is not above */
    return most > 0.0f ? __int_as_float((254 + FINE - 1 - exponent) << 23) : 0.0f;
}

/* Where a sum is: an address in shared memory, which a pointer would be turned into for every logit. */
#ifdef __CUDA_ARCH__
typedef unsigned Sum;
__device__ __forceinline__ Sum sum_at(unsigned *place) {
    unsigned at = (unsigned)__cvta_generic_to_shared(place);
    asm volatile("" : "+r"(at)); /* not to be computed anew */
    return at;
}
__device__ __forceinline__ Sum next(Sum sum, unsigned i) { return sum + 4 * i; }
__device__ __forceinline__ unsigned add_to(Sum sum, int v) {
    unsigned before;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(sum), "r"(v) : "memory");
    return before;
}
#else
typedef unsigned *Sum;
__device__ __forceinline__ Sum sum_at(unsigned *place) { return place; }
__device__ __forceinline__ Sum next(Sum sum, unsigned i) { return sum + i; }
__device__ __forceinline__ unsigned add_to(Sum sum, int v) { return atomicAdd(sum, (unsigned)v); }
#endif

/* Negative if adding v to a sum modulo 2^32, which was `before`, wrapped around: that it left the range around MIDDLE is
 * the overflow of a signed sum. */
__device__ __forceinline__ int wrapped(unsigned before, int v) {
    const unsigned now = before + (unsigned)v;
    return (int)((before ^ now) & ~((unsigned)v ^ now));
}
/* By how many times 2^32 the sum is then off. */
__device__ __forceinline__ float turns(unsigned before, int v) {
    return wrapped(before, v) >= 0 ? 0.0f : v < 0 ? -1.0f : 1.0f;
}
/* Adds more units than an int may hold, and returns the same. */
__device__ __forceinline__ float add_large(Sum sum, float units) {
    const float whole = rintf(units * (1.0f / TURN));
    const int v = __float2int_rn(fmaf(-whole, TURN, units)); /* exact, but that 2^31 saturates to one less */
    return whole + turns(add_to(sum, v), v);
}

/* log2 of the probability of a logit, `offset` from where the coded value belongs. */
__device__ __forceinline__ float coded_log(unsigned code, unsigned base, float offset, float top_2, float rest_2) {
    return (fmaf(coded_slope(code), offset, coded_value(code, base)) - top_2) - rest_2;
}

__device__ __forceinline__ void read_tile(float (&x)[EACH], const float *row, int first, int words) {
#pragma unroll
    for (int q = 0; q < EACH; q++) x[q] = first + q * THREADS < words ? row[first + q * THREADS] : 0.0f;
}

/* A word's number: COARSE has no register to spare, and without it the compiler makes better use of a wide one. */
template <bool COARSE> struct Word {
    typedef long long Type;
};
template <> struct Word<true> {
    typedef int Type;
};

template <typename Out, int TARGET, bool COARSE>
__global__ void __launch_bounds__(THREADS, 1)
table_gradient(const float *z, Out *dz, int z_stride, int dz_stride, const long long *target, const float *dense,
               const float *tops, const float *stats, const float2 *pairs, const unsigned *codes,
               const unsigned *bases, const int *window, float *staging, float2 *spill, double *beyond, int rows,
               int components, int words, int intervals, int width, int copies, int first_chunk, double bound_) {
    constexpr bool DENSE = TARGET > 0, MIXTURE = TARGET == 2;
    extern __shared__ unsigned held[];
    spill += blockIdx.x % SPILLS * intervals;
    const float bound = (float)bound_, step = (float)(2.0 * bound_ / intervals), half = 0.5f * intervals;
    const float per_step = (float)(intervals / (2.0 * bound_)), last = (float)(intervals - 1);
    const float inside = 0.5f * (intervals & 1) * step; /* from the left knot to where a coded value belongs */
    const int origin = *window, tiles = (words + TILE - 1) / TILE;
    unsigned *const held_codes = held + BASES, *const sums = held_codes + CODES;
    const int first_code = CODES > 0 ? min(max(window[1] - CODES / 2, 0), max(intervals - CODES, 0)) : 0;
    __shared__ unsigned unread[33]; /* where zeros are added */
    const Sum mine = sum_at(sums + (threadIdx.x / 32 % copies) * width), nowhere = sum_at(unread + threadIdx.x % 32);
    for (int i = threadIdx.x; i < width * copies; i += THREADS) sums[i] = MIDDLE;
    if (COARSE && BASES > 0)
        for (int i = threadIdx.x; i < (intervals + GROUP - 1) / GROUP; i += THREADS) held[i] = __ldg(bases + i);
    if (COARSE && CODES > 0)
        for (int i = threadIdx.x; i < min(CODES, intervals); i += THREADS) held_codes[i] = __ldg(codes + first_code + i);
    const float per_unit = unit_scale(stats + 2 * rows, stats + 3 * rows, rows); /* its barrier is ours too */
    const float unit = per_unit > 0.0f ? 1.0f / per_unit : 0.0f;

    float ahead[EACH]; /* the next tile is on its way while this one is worked on */
    if (blockIdx.x < rows) read_tile(ahead, z + (long long)blockIdx.x * z_stride, threadIdx.x, words);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        Out *out = dz + (long long)row * dz_stride;
        const float top = stats[row], rest = stats[rows + row];
        const float factor = stats[2 * rows + row], share = stats[3 * rows + row];
        const typename Word<COARSE>::Type word = DENSE ? -1 : target[row / components];
        const long long at = (long long)(row / components) * words;
        const float *weights = DENSE ? dense + at : nullptr, *highest = MIXTURE ? tops + at : nullptr;
        /* Of a mixture of distributions the prior; else p is divided by the total, whose logarithm in float32 is off by more. */
        const float prior = MIXTURE ? stats[4 * rows + row] : 0.0f, per_total = MIXTURE ? 0.0f : 1.0f / stats[4 * rows + row];
        /* In units of log 2, with what the first product rounds off. */
        const float top_2 = top * LOG2_E, rest_2 = fmaf(rest, LOG2_E, fmaf(top, LOG2_E, -top_2) + top * LOG2_E_REST);
        const float most_p = 2147483000.0f / (fabsf(factor) * per_unit); /* for a word's units to be an int */
        for (int tile = 0; tile < tiles; tile++) {
            const int first = tile * TILE + threadIdx.x;
            float x[EACH];
            float2 pair[COARSE ? 1 : EACH];
            unsigned code[COARSE ? EACH : 1], base[COARSE ? EACH : 1];
            int index[EACH];
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                x[q] = ahead[q];
                float position = (x[q] + bound) * per_step;
                position = position > 0.0f ? position : 0.0f; /* NaN too */
                index[q] = (int)fminf(position, last);
                if (COARSE) {
                    const unsigned place = index[q] - first_code;
                    code[q] = CODES > 0 && place < CODES ? held_codes[place] : __ldg(codes + index[q]);
                    const unsigned group = (unsigned)index[q] / GROUP;
                    base[q] = BASES > 0 ? held[group] : __ldg(bases + group);
                } else {
                    pair[q] = __ldg(pairs + index[q]);
                }
            }
            if (sizeof(Out) < sizeof(float) && (tile & (tile + 1)) == 0) __syncthreads();
            const int next_row = tile + 1 < tiles ? row : row + gridDim.x;
            const int next_first = tile + 1 < tiles ? first + TILE : threadIdx.x;
            if (next_row < rows) read_tile(ahead, z + (long long)next_row * z_stride, next_first, words);
            /* Logits that are all alike; where only some are, threads that meet at one sum wait for each other. */
            const bool crowded = __all_sync(ALL, index[0] == __shfl_sync(ALL, index[0], 0));
            unsigned others = (1u << EACH) - 1u; /* the logits that are taken one by one */
            if (!DENSE && !crowded) {
                /* First what nearly all have in common, without branches, so that one need not wait for another. */
                others = 0u;
#pragma unroll
                for (int start = 0; start < EACH; start += TOGETHER) {
                    int l[TOGETHER], r[TOGETHER], turned = 0; /* negative if a sum wrapped around */
                    unsigned before_l[TOGETHER], before_r[TOGETHER];
#pragma unroll
                    for (int c = 0; c < TOGETHER && start + c < EACH; c++) {
                        const int q = start + c, j = first + q * THREADS;
                        const unsigned place = index[q] - origin;
                        const float offset = fmaf(-((float)index[q] - half), step, x[q]);
                        float slope, p;
                        if (COARSE) {
                            slope = coded_slope(code[q]) * LN_2;
                            p = power_of_2(coded_log(code[q], base[q], offset - inside, top_2, rest_2));
                        } else {
                            slope = pair[q].y;
                            p = expf(fmaf(slope, offset, pair[q].x) - top) * per_total;
                        }
                        const bool plain = p <= most_p && fabsf(x[q]) <= bound && j != word, taken = plain && j < words;
                        const float g = taken ? factor * p : 0.0f;
                        const float right = g * fminf(fmaxf(offset * per_step, 0.0f), 1.0f), left = g - right;
                        if (taken) put(out + j, g * slope);
                        const bool held_here = taken && place < width - 1u;
                        const Sum at = held_here ? next(mine, place) : nowhere;
                        const float scale = held_here ? per_unit : 0.0f;
                        l[c] = __float2int_rn(left * scale), r[c] = __float2int_rn(right * scale);
                        before_l[c] = add_to(at, l[c]), before_r[c] = add_to(next(at, 1), r[c]);
                        if (taken && !held_here) add_pair(spill + index[q], left, right);
                        others |= (unsigned)(!plain && j < words) << q;
                    }
#pragma unroll
                    for (int c = 0; c < TOGETHER && start + c < EACH; c++)
                        turned |= wrapped(before_l[c], l[c]) | wrapped(before_r[c], r[c]);
                    if (turned >= 0) continue;
#pragma unroll
                    for (int c = 0; c < TOGETHER && start + c < EACH; c++)
                        if ((wrapped(before_l[c], l[c]) | wrapped(before_r[c], r[c])) < 0)
                            add_pair(spill + index[start + c], TURN * unit * turns(before_l[c], l[c]),
                                     TURN * unit * turns(before_r[c], r[c]));
                }
                if (others == 0u) continue;
            }
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                const int j = first + q * THREADS, i = index[q];
                if ((others >> q & 1u) == 0u) continue;
                if ((DENSE || crowded) && __all_sync(ALL, j >= words)) break; /* lest zeros meet at one sum, and wait */
                const float offset = fmaf(-((float)i - half), step, x[q]);
                float slope, log_p, p;
                if (DENSE && COARSE) {
                    slope = coded_slope(code[q]) * LN_2;
                    log_p = coded_log(code[q], base[q], offset - inside, top_2, rest_2);
                    p = power_of_2(log_p);
                    log_p *= LN_2;
                }
                if (!DENSE || !COARSE || isnan(slope)) {
                    /* So rarely, but for distributions, that reading again is better than registers for it. */
                    const float2 known = DENSE && !COARSE ? pair[q] : __ldg(pairs + i);
                    const float highest_f = COARSE ? stats[row] : top, log_total = COARSE ? stats[rows + row] : rest;
                    slope = known.y;
                    const float above = fmaf(slope, offset, known.x) - highest_f;
                    log_p = above - log_total;
                    p = MIXTURE ? expf(log_p) : expf(above) * per_total;
                }
                float g = factor * p;
                if (j == word) g -= share;
                if (DENSE && j < words) {
                    g -= share * weights[j] * (MIXTURE ? expf((log_p + prior) - highest[j]) : 1.0f);
                }
                if (j >= words || factor == 0.0f) g = 0.0f;
                if (j < words) put(out + j, g * slope);
                const float t = fminf(fmaxf(offset * per_step, 0.0f), 1.0f);
                float right = g * t, left = g - right;
                if (g != 0.0f && fabsf(x[q]) > bound) /* 0 times minus infinity is no number */
                    atomicAdd(beyond + (offset > 0.0f), (double)g * (offset - t * step));
                if (crowded && __all_sync(ALL, i == __shfl_sync(ALL, i, 0))) {
                    /* One knot takes the whole warp: add it up first. */
                    left = warp_sum(left);
                    right = warp_sum(right);
                    if ((threadIdx.x & 31) != 0) continue;
                }
                const unsigned place = i - origin;
                const bool held_here = place < width - 1u; /* unsigned: the interval left of the window is far right */
                const float size = (fabsf(left) + fabsf(right)) * per_unit;
                if (held_here && size <= 2147483000.0f) {
                    const int l = __float2int_rn(left * per_unit), r = __float2int_rn(right * per_unit);
                    const unsigned before_l = add_to(next(mine, place), l), before_r = add_to(next(mine, place + 1), r);
                    if ((wrapped(before_l, l) | wrapped(before_r, r)) >= 0) continue;
                    left = TURN * unit * turns(before_l, l);
                    right = TURN * unit * turns(before_r, r);
                } else if (held_here && size < 1e37f) { /* a target's share, say; NaN goes to the sums outside */
                    left = TURN * unit * add_large(next(mine, place), left * per_unit);
                    right = TURN * unit * add_large(next(mine, place + 1), right * per_unit);
                    if (left == 0.0f && right == 0.0f) continue;
                }
                add_pair(spill + i, left, right);
            }
        }
    }
    __syncthreads();
    float *total = staging + (long long)blockIdx.x * width;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        double units = 0.0; /* rounded once: rows that are alike would round alike, chunk after chunk */
        for (int copy = 0; copy < copies; copy++) units += (int)(sums[copy * width + i] - MIDDLE);
        total[i] = (float)((first_chunk ? 0.0 : (double)total[i]) + units * unit);
    }
}
