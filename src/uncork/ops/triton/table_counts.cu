/* logsumexp of each row under a table function, and the table's sums per interval, without a look-up per logit.
 *
 * A logit z in interval i, at t in [0, 1] between its two knots, adds g (1 - t) to the sum of the left knot and g t to
 * that of the right one, where g = c exp(f(z)), c a factor of the row. Inside a narrow interval f hardly changes:
 *
 *     exp(f(z)) = exp(f(middle)) (1 + a (t - 1/2) + O(a^2)),    a = slope times width
 *
 * so a row needs only the number n of its logits in each interval and the sum of their t. Both are integers (t in
 * units as fine as 32 bits allow, finer than a float32 logit tells), and shared memory adds integers natively, but
 * floats by a loop. When the row has been read, exp(f(middle)) times the integers gives its logsumexp, hence c, hence
 * its part of the sums, which the thread that owns the interval adds to the block's own in global memory.
 *
 * Each block holds a window of intervals. Logits outside it are looked up one by one, read again when c is known,
 * and added to sums that all blocks share; so is the part of the target word.
 */
#ifndef THREADS
#define THREADS 1024
#endif
#ifndef EACH
#define EACH 8 /* logits per thread and tile, on their way while the last ones are counted */
#endif
#ifndef OWN
#define OWN 28 /* intervals per thread: the window is OWN * THREADS wide */
#endif
#define TILE (EACH * THREADS)
#define WIDTH (OWN * THREADS)
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
table_counts(const float *z, int z_stride, const long long *target, const float *class_weight, int weighted, const float *row_scale,
             int row_scale_stride, const float2 *pairs, const int *window, float *stats, float2 *staging, float2 *spill,
             double *beyond, int rows, int words, int intervals, int ignore_index, double z_loss_, double bound_) {
    extern __shared__ unsigned held[];
    __shared__ float scratch[WARPS];
    unsigned *number = held, *places = held + WIDTH;
    const Table table = {pairs, (float)bound_, (float)(2.0 * bound_ / intervals), (float)(intervals / (2.0 * bound_)),
                         0.5f * intervals, (float)(intervals - 1)};
    const int origin = *window, tiles = (words + TILE - 1) / TILE, width = min(WIDTH, intervals);
    const float fine = (float)(1u << min(__clz(words), 22)), per_fine = 1.0f / fine, z_loss = (float)z_loss_;
    float2 *mine = staging + (long long)blockIdx.x * WIDTH;
    for (int i = threadIdx.x; i < 2 * WIDTH; i += THREADS) held[i] = 0u;
    __syncthreads();

    float ahead[EACH];
    if (blockIdx.x < rows) read_tile(ahead, z + (long long)blockIdx.x * z_stride, threadIdx.x, words);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *logits = z + (long long)row * z_stride;
        float top = NEGATIVE_INFINITY, total = 0.0f; /* of the logits this thread looked up */
        float highest = NEGATIVE_INFINITY;           /* of those it counted */
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
                if (counted) highest = fmaxf(highest, x[q]);
                if (__all_sync(ALL, counted && i == first_lane)) {
                    tau = warp_sum(tau); /* one interval takes the whole warp */
                    one = 32u;
                    if ((threadIdx.x & 31) != 0) continue;
                }
                if (counted) {
                    atomicAdd(number + place, one);
                    atomicAdd(places + place, tau);
                } else if (real) {
                    const float f = table.value(i, offset), higher = fmaxf(top, f);
                    const float safe = higher == NEGATIVE_INFINITY ? 0.0f : higher;
                    total = total * __expf(top - safe) + expf(f - safe);
                    top = higher;
                }
            }
        }
        const bool looked_up = __syncthreads_or(total != 0.0f || isnan(total));

        /* The integers of the row become floats, exp(f(middle) - peak) times the sums of 1 - t and t. */
        float peak = top;
        if (highest != NEGATIVE_INFINITY) {
            float offset;
            const int i = table.locate(highest, offset);
            peak = fmaxf(peak, table.value(i, offset)); /* f increases */
        }
        peak = block_reduce<true>(peak, scratch);
        if (peak == NEGATIVE_INFINITY) peak = 0.0f;
        total = total == 0.0f ? 0.0f : total * expf(top - peak);
#pragma unroll 4
        for (int o = 0; o < OWN; o++) {
            const int i = threadIdx.x + o * THREADS;
            const unsigned count = number[i];
            if (count == 0u) continue;
            const float2 pair = __ldg(pairs + origin + i);
            const float a = pair.y * table.step, n = (float)count, t = (float)places[i] * per_fine;
            const float scale = expf(fmaf(0.5f, a, pair.x) - peak);
            /* With sum t^2 = t - n/6, as for places spread evenly: off by less than a/6 of an interval. */
            const float right = fmaf(a, 0.5f * t - n * (1.0f / 6.0f), t);
            const float both = fmaf(a, t - 0.5f * n, n) + a * a * n * (1.0f / 24.0f);
            total += scale * both;
            number[i] = __float_as_uint(scale * (both - right));
            places[i] = __float_as_uint(scale * right);
        }
        total = block_reduce<false>(total, scratch);

        const long long word = target[row];
        const bool valid = word != ignore_index;
        const int at = valid ? (int)min(max(word, 0ll), (long long)words - 1) : 0;
        const float rest = logf(total), weight = weighted ? class_weight[at] : 1.0f;
        const float scale = valid ? row_scale[(long long)row * row_scale_stride] : 0.0f, share = scale * weight;
        const float factor = (share + 2.0f * scale * z_loss * (peak + rest)) / total;
#pragma unroll 4
        for (int o = 0; o < OWN; o++) {
            const int i = threadIdx.x + o * THREADS;
            if (number[i] == 0u && places[i] == 0u) continue;
            if (valid) {
                const float2 old = mine[i];
                mine[i] = make_float2(fmaf(factor, __uint_as_float(number[i]), old.x),
                                      fmaf(factor, __uint_as_float(places[i]), old.y));
            }
            number[i] = places[i] = 0u;
        }
        if (threadIdx.x == 0) {
            float offset;
            const int i = table.locate(logits[at], offset);
            stats[row] = peak;
            stats[rows + row] = total;
            stats[2 * rows + row] = table.value(i, offset);
            if (share != 0.0f) add_one(table, logits[at], i, offset, -share, spill, beyond);
        }
        for (int tile = 0; looked_up && valid && tile < tiles; tile++) {
            const int first = tile * TILE + threadIdx.x;
            float x[EACH];
            read_tile(x, logits, first, words);
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                float offset;
                const int i = table.locate(x[q], offset);
                if (first + q * THREADS >= words) continue;
                if ((unsigned)(i - origin) < width && fabsf(x[q]) <= table.bound) continue;
                add_one(table, x[q], i, offset, factor * expf(table.value(i, offset) - peak), spill, beyond);
            }
        }
        __syncthreads(); /* the next row counts from zero */
    }
}
