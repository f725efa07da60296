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
 *   a float32 logit of a few units. A row with 2048 logits in one interval overflows: its numbers do not add up.
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
#ifndef PACKED
#define PACKED 40 /* and of a packed one */
#endif
#ifndef WORDS
#define WORDS 57344 /* of shared memory, for the window and the list */
#endif
#define TILE (EACH * THREADS)
#define STAGED (PACKED > OWN ? PACKED * THREADS : OWN * THREADS)
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
__device__ void add_one(const Table &table, float z, int i, float offset, float g, float2 *spill, double *beyond) {
    if (g == 0.0f) return; /* of a logit of minus infinity, say */
    const float t = fminf(fmaxf(offset * table.per_step, 0.0f), 1.0f);
    add_pair(spill + i, g * (1.0f - t), g * t);
    if (fabsf(z) > table.bound) atomicAdd(beyond + (offset > 0.0f), (double)g * (offset - t * table.step));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
table_counts(const float *z, int z_stride, const long long *target, const float *class_weight, int weighted,
             const float *row_scale, int row_scale_stride, const float2 *pairs, const int *window, float *stats,
             float2 *staging, float2 *spill, double *beyond, int rows, int words, int intervals, int ignore_index,
             double z_loss_, double bound_) {
    extern __shared__ unsigned held[];
    __shared__ float scratch[WARPS];
    __shared__ int listed, number_counted;
    const Table table = {pairs, (float)bound_, (float)(2.0 * bound_ / intervals), (float)(intervals / (2.0 * bound_)),
                         0.5f * intervals, (float)(intervals - 1)};
    const int origin = window[0], tiles = (words + TILE - 1) / TILE;
    const bool packed = window[1] != 0;
    const int own = packed ? PACKED : OWN, room = own * THREADS, width = min(room, intervals);
    float *list = (float *)held + (packed ? room : 2 * room);
    const int list_room = WORDS - (packed ? room : 2 * room);
    /* The sum of t over a whole row must fit 32 bits, or 21 if packed. */
    const float fine = packed ? 1024.0f : (float)(1u << min(__clz(words), 22)), z_loss = (float)z_loss_;
    float2 *mine = staging + (long long)blockIdx.x * STAGED;
    for (int i = threadIdx.x; i < WORDS; i += THREADS) held[i] = 0u;
    if (threadIdx.x == 0) listed = number_counted = 0;
    __syncthreads();

    /* What one interval of the row adds to the sums of its knots, but for the factor of the row. */
    auto interval_sums = [&](int i, float peak) {
        const unsigned word = held[i];
        const float n = (float)(packed ? word >> 21 : word);
        const float t = (float)(packed ? word & 0x1fffffu : held[room + i]) / fine;
        const float2 pair = __ldg(pairs + origin + i);
        const float a = pair.y * table.step, scale = expf(fmaf(0.5f, a, pair.x) - peak);
        /* With sum t^2 = t - n/6, as for places spread evenly: off by less than a/6 of an interval. */
        const float right = fmaf(a, 0.5f * t - n * (1.0f / 6.0f), t);
        const float both = fmaf(a, t - 0.5f * n, n) + a * a * n * (1.0f / 24.0f);
        return make_float2(scale * (both - right), scale * right);
    };

    float ahead[EACH];
    if (blockIdx.x < rows) read_tile(ahead, z + (long long)blockIdx.x * z_stride, threadIdx.x, words);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *logits = z + (long long)row * z_stride;
        float highest = NEGATIVE_INFINITY;
        int counted_here = 0;
        for (int tile = 0; tile < tiles; tile++) {
            const int first = tile * TILE + threadIdx.x;
            float x[EACH];
#pragma unroll
            for (int q = 0; q < EACH; q++) x[q] = ahead[q];
            const int next_row = tile + 1 < tiles ? row : row + gridDim.x;
            const int next_first = tile + 1 < tiles ? first + TILE : threadIdx.x;
            if (next_row < rows) read_tile(ahead, z + (long long)next_row * z_stride, next_first, words);
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                float offset;
                const int i = table.locate(x[q], offset);
                const unsigned place = i - origin;
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
                if (counted && packed) {
                    atomicAdd(held + place, (one << 21) + tau);
                } else if (counted) {
                    atomicAdd(held + place, one);
                    atomicAdd(held + room + place, tau);
                } else if (real) {
                    const int at = atomicAdd(&listed, 1);
                    if (at < list_room) list[at] = x[q];
                }
            }
        }
        float peak = block_reduce<true>(highest, scratch); /* its barriers also end the counting */
        {
            float offset;
            const int i = table.locate(peak, offset);
            peak = peak == NEGATIVE_INFINITY ? 0.0f : table.value(i, offset); /* f increases */
        }
        bool read_again = listed > list_room;
        if (packed) {
            int found = 0;
            for (int o = 0; o < PACKED; o++) found += (int)(held[threadIdx.x + o * THREADS] >> 21);
            atomicAdd(&number_counted, counted_here - found);
            __syncthreads();
            if (number_counted != 0) { /* some number has overflowed: count nothing, look up everything */
                for (int i = threadIdx.x; i < room; i += THREADS) held[i] = 0u;
                read_again = true;
            }
        }
        const int limit = packed && number_counted != 0 ? 0 : width, many = listed;
        auto each_outside = [&](auto act) {
            if (!read_again) {
                for (int e = threadIdx.x; e < many; e += THREADS) act(list[e]);
                return;
            }
            for (int tile = 0; tile < tiles; tile++) {
                const int first = tile * TILE + threadIdx.x;
                float x[EACH];
                read_tile(x, logits, first, words);
#pragma unroll
                for (int q = 0; q < EACH; q++) {
                    float offset;
                    const int i = table.locate(x[q], offset);
                    const bool counted = (unsigned)(i - origin) < limit && fabsf(x[q]) <= table.bound;
                    if (first + q * THREADS < words && !counted) act(x[q]);
                }
            }
        };

        float total = 0.0f;
        each_outside([&](float x) {
            float offset;
            const int i = table.locate(x, offset);
            total += expf(table.value(i, offset) - peak);
        });
#pragma unroll 4
        for (int o = 0; o < own; o++) {
            const int i = threadIdx.x + o * THREADS;
            if (held[i] == 0u) continue;
            const float2 sums = interval_sums(i, peak);
            total += sums.x + sums.y;
        }
        total = block_reduce<false>(total, scratch);

        const long long word = target[row];
        const bool valid = word != ignore_index;
        const int at = valid ? (int)min(max(word, 0ll), (long long)words - 1) : 0;
        const float weight = weighted ? class_weight[at] : 1.0f;
        const float scale = valid ? row_scale[(long long)row * row_scale_stride] : 0.0f, share = scale * weight;
        const float factor = (share + 2.0f * scale * z_loss * (peak + logf(total))) / total;
#pragma unroll 4
        for (int o = 0; o < own; o++) {
            const int i = threadIdx.x + o * THREADS;
            if (held[i] == 0u) continue;
            if (valid) {
                const float2 old = mine[i], sums = interval_sums(i, peak);
                mine[i] = make_float2(fmaf(factor, sums.x, old.x), fmaf(factor, sums.y, old.y));
            }
            held[i] = 0u;
            if (!packed) held[room + i] = 0u;
        }
        if (valid) {
            each_outside([&](float x) {
                float offset;
                const int i = table.locate(x, offset);
                add_one(table, x, i, offset, factor * expf(table.value(i, offset) - peak), spill, beyond);
            });
        }
        if (threadIdx.x == 0) {
            float offset;
            const int i = table.locate(logits[at], offset);
            stats[row] = peak;
            stats[rows + row] = total;
            stats[2 * rows + row] = table.value(i, offset);
            if (share != 0.0f) add_one(table, logits[at], i, offset, -share, spill, beyond);
        }
        __syncthreads(); /* everybody has read the list and what was counted */
        if (threadIdx.x == 0) listed = number_counted = 0;
        __syncthreads();
    }
}
