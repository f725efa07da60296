/* What table_counts.cu counts with: the table, a window of its intervals in shared memory, and a tile of logits. */
#include "power.cu"
#include "spill.cu"

#ifndef THREADS
#define THREADS 1024
#endif
#ifndef EACH
#define EACH 8 /* logits per thread and tile, on their way while the last ones are counted */
#endif
#ifndef OWN
#define OWN 48 /* knots of the window per thread, a multiple of 8; its intervals are one less than its knots */
#endif
#ifndef WORDS
#define WORDS 57344 /* of shared memory, for the window and the lists */
#endif
#define TILE (EACH * THREADS)
#define WIDTH (OWN * THREADS)
#define WARPS (THREADS / 32)
#define BATCH 256 /* intervals that a warp takes together, so that all their loads are on the way at once */
#define BATCHES (WIDTH / BATCH)
#define LISTED ((WORDS - WIDTH) / WARPS)
#define UNIT_BITS 10
#define PLACE_BITS 21
#define FEW (1u << (32 - PLACE_BITS)) /* a packed number is less */
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

/* The window, the words its integers are in, and what its intervals hand on to the knot after their batch. */
struct Window {
    unsigned *held;
    unsigned address, nowhere; /* of these words, and of one that is not read: from pointers they would be made anew */
    unsigned packed;           /* the number 1 in a word; a constant would be moved to a register for every logit */
    float *carry;
    float scale;           /* of a logit, to units */
    int zero, first, reach; /* the unit of a logit of 0 from the first interval counted, that one, and how many are */

    /* A logit's place in units from the first interval counted. Conversion saturates, and far from any window. */
    __device__ __forceinline__ unsigned units(float z) const { return (unsigned)__float2int_rn(z * scale) + zero; }
    /* NaN has the place of 0, but the highest logit of its row is NaN too. */
    __device__ __forceinline__ bool counts(unsigned units) const { return units < (unsigned)reach << UNIT_BITS; }
    /* The table's intervals from `from` on, of this window that starts at `origin`. */
    __device__ __forceinline__ void choose(int from, int most, int origin, int intervals) {
        first = from;
        reach = max(min(most, intervals - origin - from), 0);
        zero = (intervals << (UNIT_BITS - 1)) - ((origin + from) << UNIT_BITS);
    }
    template <bool APART> __device__ __forceinline__ void add(unsigned interval, unsigned number, unsigned places) const {
        if (!APART) {
            atomicAdd(held + interval, (number << PLACE_BITS) + places);
            return;
        }
        const int i = (int)interval + first;
        atomicAdd(held + i, number);
        atomicAdd(held + other(i), places);
    }
    /* Adds a logit if it is to be counted, and returns the lanes of which it is not. */
    template <bool APART> __device__ __forceinline__ unsigned count(float z) const {
        const unsigned at = units(z), interval = at >> UNIT_BITS, places = at & ((1u << UNIT_BITS) - 1u);
#ifdef __CUDA_ARCH__
        if (!APART) { /* without a branch: what is outside is added where nobody looks */
            unsigned outside;
            asm volatile("{\n\t.reg .pred p;\n\t.reg .u32 to;\n\t"
                         "setp.lt.u32 p, %1, %2;\n\t"
                         "selp.u32 to, %3, %4, p;\n\t"
                         "red.shared.add.u32 [to], %5;\n\t"
                         "vote.sync.ballot.b32 %0, !p, 0xffffffff;\n\t}"
                         : "=r"(outside)
                         : "r"(at), "r"(reach << UNIT_BITS), "r"(address + 4u * interval), "r"(nowhere),
                           "r"(packed | places)
                         : "memory");
            return outside;
        }
#endif
        const bool counted = counts(at);
        if (counted) add<APART>(interval, 1u, places);
        return __ballot_sync(ALL, !counted);
    }
    /* With a word for each integer: where the sum of t is, if the number is at i in the half that counts. */
    static __device__ __forceinline__ int other(int i) { return i < WIDTH / 2 ? i + WIDTH / 2 : i - WIDTH / 2; }
};

/* What a warp found in its part of a row. */
struct Tally {
    float highest;
    int listed, missed; /* outside the window: all finite ones, even if the list is too short, and all */
};

__device__ __forceinline__ unsigned warp_sum(unsigned v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(ALL, v);
#else
    for (int lane = 16; lane > 0; lane >>= 1) v += __shfl_xor_sync(ALL, v, lane);
    return v;
#endif
}
/* NaN if one of them is. */
__device__ __forceinline__ float higher(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
#else
    return isnan(a) ? a : a < b || isnan(b) ? b : a;
#endif
}
__device__ __forceinline__ float warp_max(float v) {
    for (int lane = 16; lane > 0; lane >>= 1) v = higher(v, __shfl_xor_sync(ALL, v, lane));
    return v;
}

/* A tile of a row; beyond its end come masked words, which add nothing to anything. Read once, so first to leave the
 * cache: the blocks' sums are to stay there. */
__device__ __forceinline__ void read_tile(float (&x)[EACH], const float *row, int start, int words) {
    const float *from = row + start + threadIdx.x;
    if (start + TILE <= words) {
#pragma unroll
        for (int q = 0; q < EACH; q++) x[q] = __ldcs(from + q * THREADS);
    } else {
        const int left = words - start - threadIdx.x;
#pragma unroll
        for (int q = 0; q < EACH; q++) x[q] = q * THREADS < left ? __ldcs(from + q * THREADS) : NEGATIVE_INFINITY;
    }
}

/* Those of a warp's 32 logits that are outside the window. */
__device__ __forceinline__ void list_outside(float z, unsigned outside, float *list, Tally &tally) {
    const int lane = threadIdx.x & 31;
    const bool listed = (outside >> lane & 1u) != 0u && z != NEGATIVE_INFINITY; /* a masked word adds nothing */
    const unsigned those = __ballot_sync(ALL, listed);
    const int at = tally.listed + __popc(those & ((1u << lane) - 1u));
    if (listed && at < LISTED) list[at] = z;
    tally.listed += __popc(those);
    tally.missed += __popc(outside);
}

/* A tile of logits that mostly share an interval: adding one by one they would wait for each other. */
template <bool APART>
__device__ __forceinline__ void count_crowded(const float (&x)[EACH], const Window &window, float *list, Tally &tally) {
#pragma unroll
    for (int q = 0; q < EACH; q++) {
        const unsigned units = window.units(x[q]), places = units & ((1u << UNIT_BITS) - 1u);
        const int interval = (int)(units >> UNIT_BITS), lead = __shfl_sync(ALL, interval, 0);
        const bool counted = window.counts(units);
        tally.highest = higher(tally.highest, x[q]);
        if (__all_sync(ALL, counted && interval == lead)) {
            const unsigned sum = warp_sum(places);
            if ((threadIdx.x & 31) == 0) window.add<APART>(interval, 32u, sum);
            continue;
        }
        const unsigned outside = window.count<APART>(x[q]);
        if (outside != 0u) list_outside(x[q], outside, list, tally);
    }
}

template <bool APART>
__device__ __forceinline__ void count_tile(const float (&x)[EACH], const Window &window, float *list, Tally &tally) {
    const int some = (int)(window.units(x[0]) >> UNIT_BITS);
    if (__all_sync(ALL, some == __shfl_sync(ALL, some, 0))) {
        count_crowded<APART>(x, window, list, tally);
        return;
    }
    unsigned outside[EACH], any = 0u;
#pragma unroll
    for (int q = 0; q < EACH; q++) {
        tally.highest = higher(tally.highest, x[q]);
        any |= outside[q] = window.count<APART>(x[q]);
    }
    if (any == 0u) return;
#pragma unroll
    for (int q = 0; q < EACH; q++)
        if (outside[q] != 0u) list_outside(x[q], outside[q], list, tally);
}
