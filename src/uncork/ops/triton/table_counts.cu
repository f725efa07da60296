/* logsumexp of each row under a table function, and the table's sums per knot, without a look-up per logit.
 *
 * A logit z in interval i, at t in [0, 1] between its two knots, adds g (1 - t) to the sum of the left knot and g t to
 * that of the right one, where g = c exp(f(z)), c a factor of the row. Inside a narrow interval f hardly changes:
 *
 *     exp(f(z)) = exp(f(middle)) (1 + a (t - 1/2) + O(a^2)),    a = slope times width
 *
 * so a row needs only the number n of its logits in each interval and the sum of their t. Both are integers, and shared
 * memory adds integers natively, but floats by a loop. When the row has been read, exp(f(middle)) times the integers
 * gives its logsumexp and, but for c, its part of the sums. These take the place of the integers; then c is known, and
 * they are added to the block's own in global memory.
 *
 * Each block holds a window of intervals, one word for both integers: n in 11 bits and the sum of t in 21, t in units
 * of 1/1024. When 2048 logits of a row lie in one interval, the numbers found do not add up to those counted: a wrap
 * loses 2048, and what t carries over gives back one for each at the most. Such a row is counted again in half the
 * window, with a word for each integer, and so are the block's next rows until one fits again.
 *
 * Logits outside the window go to a list of their warp, and are looked up one by one, twice: for the logsumexp and, when
 * c is known, to be added to sums that all blocks share. A warp whose list overflows reads its part of the row again
 * instead. The part of the target word is added by itself.
 */
#include "table_window.cu"

/* One warp's logits outside the window, from its list or by reading the row again: a thread's sum of exp(f - peak); if
 * GRADIENT, their part of the sums per knot is added too. */
struct Outside {
    const Table &table;
    float2 *spill;
    double *beyond;
    float peak, factor;
    float total;
    double below, above; /* the table's ends: t stays in [0, 1] and the rest has a sum of its own */

    template <bool GRADIENT, bool WARP> __device__ __forceinline__ void add(float z, bool chosen, int i, float offset, float f) {
        const float weight = chosen ? expf(f - peak) : 0.0f, g = factor * weight;
        total += weight;
        if (!GRADIENT) return;
        const float t = fminf(fmaxf(offset * table.per_step, 0.0f), 1.0f);
        bool adds = g != 0.0f; /* NaN too */
        if (adds && z < -table.bound) below += (double)g * (offset - t * table.step);
        if (adds && z > table.bound) above += (double)g * (offset - t * table.step);
        float left = adds ? g * (1.0f - t) : 0.0f, right = adds ? g * t : 0.0f;
        const unsigned those = WARP ? __ballot_sync(ALL, adds) : 0u;
        if (those != 0u) {
            const int leader = __ffs(those) - 1, there = __shfl_sync(ALL, i, leader);
            const bool with_it = adds && i == there;
            if (__popc(__ballot_sync(ALL, with_it)) >= 8) { /* one adds for all that share its interval */
                const float lefts = warp_sum(with_it ? left : 0.0f), rights = warp_sum(with_it ? right : 0.0f);
                adds = adds && !with_it;
                if ((threadIdx.x & 31) == leader) add_pair(spill + i, lefts, rights);
            }
        }
        if (adds) add_pair(spill + i, left, right);
    }
    __device__ __forceinline__ void add_target(float z, int i, float offset, float g) const {
        const float t = fminf(fmaxf(offset * table.per_step, 0.0f), 1.0f);
        add_pair(spill + i, g * (1.0f - t), g * t);
        if (fabsf(z) > table.bound) atomicAdd(beyond + (offset > 0.0f), (double)g * (offset - t * table.step));
    }
    template <bool GRADIENT> __device__ __forceinline__ void visit_list(const float *list, int listed) {
        for (int start = threadIdx.x & 31; start < listed; start += 4 * 32) {
            float z[4], offset[4], f[4];
            int i[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                z[q] = start + 32 * q < listed ? list[start + 32 * q] : 0.0f;
                i[q] = table.locate(z[q], offset[q]);
                f[q] = table.value(i[q], offset[q]);
            }
#pragma unroll
            for (int q = 0; q < 4; q++) add<GRADIENT, false>(z[q], start + 32 * q < listed, i[q], offset[q], f[q]);
        }
    }
    template <bool GRADIENT>
    __device__ __forceinline__ void visit_row(const Window &window, const float *row, int words) {
        for (int start = 0; start < words; start += TILE) {
            float x[EACH], offset;
            read_tile(x, row, start, words);
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                const bool counted = window.counts(window.units(x[q]));
                const bool chosen = !counted && x[q] != NEGATIVE_INFINITY;
                const int i = table.locate(chosen ? x[q] : 0.0f, offset);
                const float f = table.value(i, offset);
                add<GRADIENT, true>(x[q], chosen, i, offset, f);
            }
        }
    }
    template <bool GRADIENT>
    __device__ __forceinline__ float visit(const Window &window, const float *list, int listed, const float *row,
                                           int words) {
        total = 0.0f;
        below = above = 0.0;
        if (listed <= LISTED)
            visit_list<GRADIENT>(list, listed);
        else
            visit_row<GRADIENT>(window, row, words);
        if (GRADIENT && below != 0.0) atomicAdd(beyond, below);
        if (GRADIENT && above != 0.0) atomicAdd(beyond + 1, above);
        return total;
    }
};

/* The row's integers become its sums per knot, but for the row's factor and the knot after each batch, which gets its
 * second part from `carry`. Returns a thread's sum of exp(f - peak); `found` is the number of logits, or with a word for
 * each integer that of intervals with too many to be packed. */
template <bool APART>
__device__ __forceinline__ float sum_intervals(const Window &window, const Table &table, int origin, float peak, int &found) {
    const int lane = threadIdx.x & 31, first = window.first / BATCH;
    const int end = APART ? first + BATCHES / 2 : BATCHES;
    const int last = (int)table.last;
    float total = 0.0f;
    found = 0;
    for (int batch = first + threadIdx.x / 32; batch < end; batch += WARPS) {
        const int start = batch * BATCH + lane;
        unsigned word[8], any = 0u;
#pragma unroll
        for (int q = 0; q < 8; q++) any |= word[q] = window.held[start + 32 * q];
        if (__ballot_sync(ALL, any != 0u) == 0u) continue;
        float2 pair[8];
#pragma unroll
        for (int q = 0; q < 8; q++) pair[q] = __ldg(table.pairs + min(origin + start + 32 * q, last));
        float before = 0.0f;
#pragma unroll
        for (int q = 0; q < 8; q++) {
            float n, t;
            if (APART) {
                unsigned *places = window.held + Window::other(start + 32 * q);
                n = (float)word[q];
                t = (float)*places * (1.0f / (1u << UNIT_BITS));
                *places = 0u;
                found += word[q] >= FEW;
            } else { /* the bits of a float of 2^23 more: conversion instructions are slow */
                const unsigned number = word[q] >> PLACE_BITS, places = word[q] & ((1u << PLACE_BITS) - 1u);
                n = __uint_as_float(0x4B000000u | number) - 8388608.0f;
                t = fmaf(__uint_as_float(0x4B000000u | places), 1.0f / (1u << UNIT_BITS), -8388608.0f / (1u << UNIT_BITS));
                found += (int)number;
            }
            /* An empty interval may be so far above the peak that its exponential is infinite, and 0 times it NaN. */
            const float half_a = pair[q].y * (0.5f * table.step), above = fminf((pair[q].x + half_a) - peak, 80.0f);
            const float scale = power_of_2(above * LOG2_E);
            /* t + a (t/2 - n/6): with sum t^2 = t - n/6, as for places spread evenly, off by less than a/6 of an
             * interval; and n + a (t - n/2) + a^2 n/24. */
            const float right = scale * fmaf(half_a, fmaf(n, -1.0f / 3.0f, t), t);
            const float both = scale * fmaf(half_a, fmaf(half_a * n, 1.0f / 6.0f, fmaf(2.0f, t, -n)), n);
            total += both;
            const float neighbour = __shfl_sync(ALL, right, (lane + 31) & 31); /* lane 0 gets its turn's last */
            window.held[start + 32 * q] = __float_as_uint((both - right) + (lane == 0 ? before : neighbour));
            before = neighbour;
        }
        if (lane == 0) window.carry[batch + 1] = before;
    }
    return total;
}

/* The row's sums per knot, times its factor, to the block's own; and the window is empty again. */
__device__ __forceinline__ void add_row(const Window &window, float *staging, bool valid, float factor) {
    const int lane = threadIdx.x & 31;
    for (int batch = threadIdx.x / 32; batch < BATCHES; batch += WARPS) {
        uint4 *const held = (uint4 *)(window.held + batch * BATCH) + lane;
        float4 *const sums = (float4 *)(staging + batch * BATCH) + lane;
        const uint4 bits[2] = {held[0], held[32]};
        const float carried = window.carry[batch];
        const unsigned any = bits[0].x | bits[0].y | bits[0].z | bits[0].w | bits[1].x | bits[1].y | bits[1].z | bits[1].w;
        if (__ballot_sync(ALL, (any | __float_as_uint(carried)) != 0u) == 0u) continue;
        __syncwarp(); /* every lane has read what lane 0 clears */
        held[0] = held[32] = make_uint4(0u, 0u, 0u, 0u);
        if (lane == 0) window.carry[batch] = 0.0f;
        if (!valid) continue;
        const float4 old[2] = {sums[0], sums[32]};
#pragma unroll
        for (int q = 0; q < 2; q++) {
            const float first = __uint_as_float(bits[q].x) + (q == 0 && lane == 0 ? carried : 0.0f);
            sums[32 * q] = make_float4(fmaf(factor, first, old[q].x), fmaf(factor, __uint_as_float(bits[q].y), old[q].y),
                                       fmaf(factor, __uint_as_float(bits[q].z), old[q].z),
                                       fmaf(factor, __uint_as_float(bits[q].w), old[q].w));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
table_counts(const float *z, int z_stride, const long long *target, const float *class_weight, int weighted,
             const float *row_scale, int row_scale_stride, const float2 *pairs, const int *placed, float *stats,
             float *staging, float2 *spill, double *beyond, int rows, int words, int intervals, int ignore_index,
             double z_loss_, double bound_) {
    extern __shared__ __align__(16) unsigned held[];
    spill += blockIdx.x % SPILLS * intervals;
    __shared__ float carry[BATCHES + 1], highest[WARPS], totals[WARPS];
    __shared__ int unfit[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, tiles = (words + TILE - 1) / TILE;
    const int origin = placed[0], lead = min(max((placed[1] - origin) / BATCH - BATCHES / 4, 0), BATCHES / 2) * BATCH;
    const Table table = {pairs, (float)bound_, (float)(2.0 * bound_ / intervals), (float)(intervals / (2.0 * bound_)),
                         0.5f * intervals, (float)(intervals - 1)};
    Window window = {held, 0u, 0u, 0u, carry, (float)(intervals / (2.0 * bound_)) * (1u << UNIT_BITS), 0, 0, 0};
#ifdef __CUDA_ARCH__
    __shared__ unsigned nowhere[32];
    window.address = __shfl_sync(ALL, (unsigned)__cvta_generic_to_shared(held), 0);
    window.nowhere = (unsigned)__cvta_generic_to_shared(nowhere + lane);
    window.packed = (1u << PLACE_BITS) + (unsigned)(rows < 0); /* never, which the compiler does not know */
#endif
    const float z_loss = (float)z_loss_;
    float *const list = (float *)held + WIDTH + warp * LISTED, *const mine = staging + (long long)blockIdx.x * WIDTH;
    for (int i = threadIdx.x; i < WIDTH; i += THREADS) held[i] = 0u;
    for (int i = threadIdx.x; i <= BATCHES; i += THREADS) carry[i] = 0.0f;
    __syncthreads();

    bool crowded = false; /* whether the last row did not fit packed words */
    float ahead[EACH];
    if (blockIdx.x < rows) read_tile(ahead, z + (long long)blockIdx.x * z_stride, 0, words);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *logits = z + (long long)row * z_stride;
        const long long word = target[row];
        bool apart = crowded; /* a word for each integer */
        if (!apart) window.choose(0, WIDTH - 1, origin, intervals);
        Tally tally = {NEGATIVE_INFINITY, 0, 0};
#pragma unroll 2
        for (int tile = 0; tile < tiles; tile++) {
            float x[EACH];
#pragma unroll
            for (int q = 0; q < EACH; q++) x[q] = ahead[q];
            const bool within = tile + 1 < tiles;
            const int next = within ? row : row + gridDim.x;
            if (next < rows) read_tile(ahead, z + (long long)next * z_stride, within ? (tile + 1) * TILE : 0, words);
            if (apart)
                count_tile<true>(x, window, list, tally);
            else
                count_tile<false>(x, window, list, tally);
        }
        tally.highest = warp_max(tally.highest);
        if (lane == 0) highest[warp] = tally.highest;
        __syncthreads(); /* also ends the counting */
        float peak = warp_max(lane < WARPS ? highest[lane] : NEGATIVE_INFINITY), offset;
        if (peak == NEGATIVE_INFINITY) {
            peak = 0.0f;
        } else {
            const int i = table.locate(peak, offset);
            peak = table.value(i, offset); /* f increases */
        }
        /* On their way while the intervals are summed. */
        const bool valid = word != ignore_index;
        const int at = valid ? (int)min(max(word, 0ll), (long long)words - 1) : 0;
        const float weight = weighted ? class_weight[at] : 1.0f, z_word = logits[at];
        const float scale = valid ? row_scale[(long long)row * row_scale_stride] : 0.0f, share = scale * weight;

        Outside outside = {table, spill, beyond, peak, 0.0f, 0.0f, 0.0, 0.0};
        float total;
        while (true) {
            int found;
            total = outside.visit<false>(window, list, tally.listed, logits, words);
            if (apart) {
                total += sum_intervals<true>(window, table, origin, peak, found);
            } else {
                total += sum_intervals<false>(window, table, origin, peak, found);
                found -= EACH * tiles - (lane == 0 ? tally.missed : 0);
            }
            total = warp_sum(total);
            found = (int)warp_sum((unsigned)found);
            if (lane == 0) {
                totals[warp] = total;
                unfit[warp] = found;
            }
            __syncthreads();
            total = warp_sum(lane < WARPS ? totals[lane] : 0.0f);
            crowded = warp_sum(lane < WARPS ? (unsigned)unfit[lane] : 0u) != 0u;
            if (apart || !crowded) break;
            for (int i = threadIdx.x; i < WIDTH; i += THREADS) held[i] = 0u;
            for (int i = threadIdx.x; i <= BATCHES; i += THREADS) carry[i] = 0.0f;
            __syncthreads();
            apart = true;
            window.choose(lead, WIDTH / 2 - (lead == WIDTH / 2), origin, intervals);
            tally.listed = tally.missed = 0;
            for (int tile = 0; tile < tiles; tile++) {
                float x[EACH];
                read_tile(x, logits, tile * TILE, words);
                count_tile<true>(x, window, list, tally);
            }
            __syncthreads();
        }
        const int i_word = table.locate(z_word, offset);
        const float f_word = table.value(i_word, offset);
        const float factor = (share + 2.0f * scale * z_loss * (peak + logf(total))) / total;
        add_row(window, mine, valid, factor);
        outside.factor = factor;
        if (valid) outside.visit<true>(window, list, tally.listed, logits, words);
        if (threadIdx.x == 0) {
            stats[row] = peak;
            stats[rows + row] = total;
            stats[2 * rows + row] = f_word;
            if (share != 0.0f) outside.add_target(z_word, i_word, offset, -share);
        }
        __syncthreads(); /* the next row counts from zero */
    }
}
