/* logsumexp of each row under a table function, and the table's sums per interval, without a look-up per logit.
 *
 * A logit z in interval i, at t in [0, 1] between its two knots, adds g (1 - t) to the sum of the left knot and g t to
 * that of the right one, where g = c exp(f(z)), c a factor of the row. Inside a narrow interval f hardly changes:
 *
 *     exp(f(z)) = exp(f(middle)) (1 + a (t - 1/2) + O(a^2)),    a = slope times width
 *
 * so a row needs only the number n of its logits in each interval and the sum of their t. Both are integers, and shared
 * memory adds integers natively, but floats by a loop. When the row has been read, exp(f(middle)) times the integers
 * gives its logsumexp, hence c, hence its part of the sums, which the thread that owns the interval adds to the block's
 * own in global memory.
 *
 * Each block holds a window of intervals, in one of two ways, chosen for all chunks by the spread of the first row:
 *
 * - plain: n and the sum of t in a word each, t in units as fine as a whole row allows, finer than a float32 logit.
 * - packed: both in one word, n in 11 bits and t in units of 1/1024, for a window half as wide again. That is as fine as
 *   a float32 logit of a few units. 2048 logits of a row in one interval overflow, and then the numbers do not add up to
 *   those counted: a wrap loses 2048, and what t carries over adds one for as many at the most.
 *
 * Logits outside the window go to a list in shared memory and are looked up one by one, twice: for the logsumexp and,
 * when c is known, to be added to sums that all blocks share. When the list or a number overflows, the row is read
 * again instead and every such logit looked up. The part of the target word is added by itself.
 */
#ifndef THREADS
#define THREADS 1024
#endif
#ifndef EACH
#define EACH 8 /* logits per thread and tile, on their way while the last ones are counted */
#endif
#ifndef OWN
#define OWN 27 /* intervals per thread of a plain window */
#endif
#ifndef OWN_PACKED
#define OWN_PACKED 40 /* and of a packed one, not less */
#endif
#ifndef WORDS
#define WORDS 57344 /* of shared memory, for the window and the list */
#endif
#define TILE (EACH * THREADS)
#define STAGED (OWN_PACKED * THREADS)
#define PLACE_BITS 21
#define WARPS (THREADS / 32)
#define ALL 0xffffffffu
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

struct Table {
    const float2 *pairs; /* value at the left knot, slope */
    float bound, step, per_step, half, last;

    /* floor(position) by an addition that rounds down: conversion instructions are slow. */
    __device__ __forceinline__ int locate(float z, float &offset) const {
        float position = (z + bound) * per_step;
        position = position > 0.0f ? position : 0.0f; /* NaN too */
        const float moved = __fadd_rd(fminf(position, last), 8388608.0f);
        offset = fmaf(-((moved - 8388608.0f) - half), step, z);
        return __float_as_int(moved) - 0x4B000000;
    }
    __device__ __forceinline__ float value(int i, float offset) const {
        const float2 pair = __ldg(pairs + i);
        return fmaf(pair.y, offset, pair.x);
    }
};

__device__ __forceinline__ void add_pair(float2 *to, float a, float b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
#else
    atomicAdd(&to->x, a);
    atomicAdd(&to->y, b);
#endif
}

__device__ __forceinline__ unsigned warp_sum(unsigned v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(ALL, v);
#else
    for (int lane = 16; lane > 0; lane >>= 1) v += __shfl_xor_sync(ALL, v, lane);
    return v;
#endif
}

template <bool MAX> __device__ float block_reduce(float v, float *scratch) {
    for (int lane = 16; lane > 0; lane >>= 1) {
        const float other = __shfl_xor_sync(ALL, v, lane);
        v = MAX ? fmaxf(v, other) : v + other;
    }
    __syncthreads(); /* scratch may still be read */
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[0];
    for (int warp = 1; warp < WARPS; warp++) v = MAX ? fmaxf(v, scratch[warp]) : v + scratch[warp];
    return v;
}

__device__ __forceinline__ void read_tile(float (&x)[EACH], const float *row, int first, int words) {
#pragma unroll
    for (int q = 0; q < EACH; q++) x[q] = first + q * THREADS < words ? row[first + q * THREADS] : 0.0f;
}

/* One logit's g to the sums in global memory; beyond the ends t stays in [0, 1] and the rest has a sum of its own. */
__device__ __forceinline__ float2 ends(const Table &table, float z, float offset, float g, double *beyond) {
    if (g == 0.0f) return make_float2(0.0f, 0.0f); /* of a logit of minus infinity, say */
    const float t = fminf(fmaxf(offset * table.per_step, 0.0f), 1.0f);
    if (fabsf(z) > table.bound) atomicAdd(beyond + (offset > 0.0f), (double)g * (offset - t * table.step));
    return make_float2(g * (1.0f - t), g * t);
}
__device__ void add_one(const Table &table, float z, int i, float offset, float g, float2 *spill, double *beyond) {
    const float2 sums = ends(table, z, offset, g, beyond);
    if (g != 0.0f) add_pair(spill + i, sums.x, sums.y);
}
/* The same for a whole warp: where one interval takes all of it, as when its number has overflowed, it adds once. */
__device__ void add_warp(const Table &table, float z, int i, float offset, float g, float2 *spill, double *beyond) {
    float2 sums = ends(table, z, offset, g, beyond);
    const int first_lane = __shfl_sync(ALL, i, 0);
    bool adds = g != 0.0f;
    if (__all_sync(ALL, i == first_lane)) {
        for (int lane = 16; lane > 0; lane >>= 1) {
            sums.x += __shfl_xor_sync(ALL, sums.x, lane);
            sums.y += __shfl_xor_sync(ALL, sums.y, lane);
        }
        adds = (threadIdx.x & 31) == 0;
    }
    if (adds) add_pair(spill + i, sums.x, sums.y);
}

/* What one interval of a row adds to the sums of its two knots, but for the factor of the row. */
__device__ __forceinline__ float2 interval_sums(float2 pair, float step, float n, float t, float peak) {
    const float a = pair.y * step, scale = expf(fmaf(0.5f, a, pair.x) - peak);
    /* With sum t^2 = t - n/6, as for places spread evenly: off by less than a/6 of an interval. */
    const float right = fmaf(a, 0.5f * t - n * (1.0f / 6.0f), t);
    const float both = fmaf(a, t - 0.5f * n, n) + a * a * n * (1.0f / 24.0f);
    return make_float2(scale * (both - right), scale * right);
}

/* The logits of a row that were not counted: those in a list, or those to be found by reading the row again. */
struct Outside {
    const float *list, *logits;
    int listed, words, origin, limit;
    bool read_again;
};

/* One thread's sum of exp(f - peak) over them; if GRADIENT, their part of the sums per knot is added too. */
template <bool GRADIENT>
__device__ float visit(const Outside &outside, const Table &table, float peak, float factor, float2 *spill,
                       double *beyond) {
    float total = 0.0f, offset;
    if (!outside.read_again) {
        for (int e = threadIdx.x; e < outside.listed; e += THREADS) {
            const int i = table.locate(outside.list[e], offset);
            const float weight = expf(table.value(i, offset) - peak);
            if (GRADIENT) add_one(table, outside.list[e], i, offset, factor * weight, spill, beyond);
            total += weight;
        }
        return total;
    }
    for (int start = 0; start < outside.words; start += TILE) { /* by all threads alike */
        const int first = start + threadIdx.x;
        float x[EACH];
        read_tile(x, outside.logits, first, outside.words);
#pragma unroll
        for (int q = 0; q < EACH; q++) {
            const int i = table.locate(x[q], offset);
            const bool counted = (unsigned)(i - outside.origin) < outside.limit && fabsf(x[q]) <= table.bound;
            const bool chosen = first + q * THREADS < outside.words && !counted;
            const float weight = chosen ? expf(table.value(i, offset) - peak) : 0.0f;
            if (GRADIENT) add_warp(table, x[q], i, offset, factor * weight, spill, beyond);
            total += weight;
        }
    }
    return total;
}

struct Problem {
    const float *z;
    int z_stride;
    const long long *target;
    const float *class_weight;
    int weighted;
    const float *row_scale;
    int row_scale_stride;
    float *stats;
    float2 *staging, *spill;
    double *beyond;
    int rows, words, intervals, ignore_index;
    float z_loss;
};

template <bool PACKED>
__device__ __forceinline__ void count_rows(const Problem &problem, const Table &table, int origin, unsigned *held,
                                           float *scratch, int *listed, int *lost) {
    constexpr int own = PACKED ? OWN_PACKED : OWN, room = own * THREADS, used = PACKED ? room : 2 * room;
    const int rows = problem.rows, words = problem.words, width = min(room, problem.intervals);
    const int tiles = (words + TILE - 1) / TILE;
    float *list = (float *)held + used;
    /* The sum of t over a whole row must fit 32 bits, or 21 if packed. */
    const float fine = PACKED ? 1024.0f : (float)(1u << min(__clz(words), 22)), per_fine = 1.0f / fine;
    float2 *mine = problem.staging + (long long)blockIdx.x * STAGED;

    float ahead[EACH];
    if (blockIdx.x < rows) read_tile(ahead, problem.z + (long long)blockIdx.x * problem.z_stride, threadIdx.x, words);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *logits = problem.z + (long long)row * problem.z_stride;
        float highest = NEGATIVE_INFINITY;
        int counted_here = 0;
        for (int tile = 0; tile < tiles; tile++) {
            const int first = tile * TILE + threadIdx.x;
            float x[EACH];
#pragma unroll
            for (int q = 0; q < EACH; q++) x[q] = ahead[q];
            const int next_row = tile + 1 < tiles ? row : row + gridDim.x;
            const int next_first = tile + 1 < tiles ? first + TILE : threadIdx.x;
            if (next_row < rows) read_tile(ahead, problem.z + (long long)next_row * problem.z_stride, next_first, words);
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                float offset;
                const int i = table.locate(x[q], offset);
                const unsigned place = i - origin; /* unsigned: the interval left of the window is far to the right */
                const bool real = first + q * THREADS < words;
                const bool counted = real && place < width && fabsf(x[q]) <= table.bound;
                const float t = fminf(fmaxf(offset * table.per_step, 0.0f), 1.0f);
                unsigned tau = __float_as_uint(fmaf(t, fine, 8388608.0f)) - 0x4B000000u, one = 1u;
                const int first_lane = __shfl_sync(ALL, i, 0); /* by every lane, whatever it found */
                if (real) highest = fmaxf(highest, x[q]);
                counted_here += counted;
                if (__all_sync(ALL, counted && i == first_lane)) {
                    tau = warp_sum(tau); /* one interval takes the whole warp */
                    one = 32u;
                    if ((threadIdx.x & 31) != 0) continue;
                }
                if (counted && PACKED) {
                    atomicAdd(held + place, (one << PLACE_BITS) + tau);
                } else if (counted) {
                    atomicAdd(held + place, one);
                    atomicAdd(held + room + place, tau);
                } else if (real && x[q] != NEGATIVE_INFINITY) { /* a masked word adds nothing to anything */
                    const int at = atomicAdd(listed, 1);
                    if (at < WORDS - used) list[at] = x[q];
                }
            }
        }
        float peak = block_reduce<true>(highest, scratch); /* its barriers also end the counting */
        if (peak == NEGATIVE_INFINITY) {
            peak = 0.0f;
        } else {
            float offset;
            const int i = table.locate(peak, offset);
            peak = table.value(i, offset); /* f increases */
        }
        Outside outside = {list, logits, *listed, words, origin, width, *listed > WORDS - used};
        if (PACKED) {
            int found = 0;
            for (int o = 0; o < own; o++) found += (int)(held[threadIdx.x + o * THREADS] >> PLACE_BITS);
            atomicAdd(lost, counted_here - found);
            __syncthreads();
            if (*lost != 0) { /* some number has overflowed: count nothing, look up everything */
                for (int o = 0; o < own; o++) held[threadIdx.x + o * THREADS] = 0u;
                outside.limit = 0;
                outside.read_again = true;
            }
        }

        float total = visit<false>(outside, table, peak, 0.0f, problem.spill, problem.beyond);
#pragma unroll 4
        for (int o = 0; o < own; o++) {
            const int i = threadIdx.x + o * THREADS;
            const unsigned word = held[i];
            if (word == 0u) continue;
            const float n = (float)(PACKED ? word >> PLACE_BITS : word);
            const float t = (float)(PACKED ? word & ((1u << PLACE_BITS) - 1u) : held[room + i]) * per_fine;
            const float2 sums = interval_sums(__ldg(table.pairs + origin + i), table.step, n, t, peak);
            total += sums.x + sums.y;
            if (PACKED) continue;
            held[i] = __float_as_uint(sums.x); /* where there is room, for the second time */
            held[room + i] = __float_as_uint(sums.y);
        }
        total = block_reduce<false>(total, scratch);

        const long long word = problem.target[row];
        const bool valid = word != problem.ignore_index;
        const int at = valid ? (int)min(max(word, 0ll), (long long)words - 1) : 0;
        const float weight = problem.weighted ? problem.class_weight[at] : 1.0f;
        const float scale = valid ? problem.row_scale[(long long)row * problem.row_scale_stride] : 0.0f;
        const float share = scale * weight;
        const float factor = (share + 2.0f * scale * problem.z_loss * (peak + logf(total))) / total;
#pragma unroll 4
        for (int o = 0; o < own; o++) {
            const int i = threadIdx.x + o * THREADS;
            const unsigned word = held[i], second = PACKED ? 0u : held[room + i];
            if (word == 0u && second == 0u) continue;
            if (valid) {
                float2 sums = make_float2(__uint_as_float(word), __uint_as_float(second));
                if (PACKED) {
                    const float n = (float)(word >> PLACE_BITS), t = (float)(word & ((1u << PLACE_BITS) - 1u)) * per_fine;
                    sums = interval_sums(__ldg(table.pairs + origin + i), table.step, n, t, peak);
                }
                const float2 old = mine[i];
                mine[i] = make_float2(fmaf(factor, sums.x, old.x), fmaf(factor, sums.y, old.y));
            }
            held[i] = 0u;
            if (!PACKED) held[room + i] = 0u;
        }
        if (valid) visit<true>(outside, table, peak, factor, problem.spill, problem.beyond);
        if (threadIdx.x == 0) {
            float offset;
            const int i = table.locate(logits[at], offset);
            problem.stats[row] = peak;
            problem.stats[rows + row] = total;
            problem.stats[2 * rows + row] = table.value(i, offset);
            if (share != 0.0f) add_one(table, logits[at], i, offset, -share, problem.spill, problem.beyond);
        }
        __syncthreads(); /* everybody has read the list and what was counted */
        if (threadIdx.x == 0) *listed = *lost = 0;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
table_counts(const float *z, int z_stride, const long long *target, const float *class_weight, int weighted,
             const float *row_scale, int row_scale_stride, const float2 *pairs, const int *window, float *stats,
             float2 *staging, float2 *spill, double *beyond, int rows, int words, int intervals, int ignore_index,
             double z_loss, double bound) {
    extern __shared__ unsigned held[];
    __shared__ float scratch[WARPS];
    __shared__ int listed, lost;
    const Table table = {pairs, (float)bound, (float)(2.0 * bound / intervals), (float)(intervals / (2.0 * bound)),
                         0.5f * intervals, (float)(intervals - 1)};
    const Problem problem = {z, z_stride, target, class_weight, weighted, row_scale, row_scale_stride, stats, staging,
                             spill, beyond, rows, words, intervals, ignore_index, (float)z_loss};
    for (int i = threadIdx.x; i < WORDS; i += THREADS) held[i] = 0u;
    if (threadIdx.x == 0) listed = lost = 0;
    __syncthreads();
    if (window[1] != 0)
        count_rows<true>(problem, table, window[0], held, scratch, &listed, &lost);
    else
        count_rows<false>(problem, table, window[0], held, scratch, &listed, &lost);
}
