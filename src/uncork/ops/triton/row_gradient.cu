/* dL/dz of long rows under a table function, in half precision over the float32 logits, with a window of the table in
 * shared memory: where logits spread, look-ups in the whole table miss the first cache.
 *
 * The window is of the compressed table: see compressed.cu. Beside the intervals it does not hold, the place that stands
 * for everything outside the window has a slope of NaN. A gradient that is NaN is computed again, from the table in
 * global memory; and so is that of the target word.
 *
 * The gradient lies on the logits' memory: a thread may write only what every thread has read. Tile i is the logits
 * from i TILE on, whichever of them a thread takes. Its gradient has half their bytes and covers logits of tile i/2.
 * Tile 0 is read before the row, tile j in iteration j - 1, behind its barrier. The last barrier before i is written is
 * that of iteration 2^n - 1 <= i < 2^(n+1) - 1; tiles up to 2^n - 1 >= i/2 have been read there.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef THREADS
#define THREADS 1024
#endif
#ifndef EACH
#define EACH 8 /* logits per thread and tile, on their way while the last ones are worked on; a multiple of 4 */
#endif
#define TILE (EACH * THREADS)
#define ALL 0xffffffffu

#include "compressed.cu"

struct Row {
    float top, rest, factor, share;
    int word;
};

struct Table {
    const float2 *pairs; /* value at the left knot, slope */
    float bound, step, per_step, half, last;

    __device__ __forceinline__ float gradient(float z, const Row &row, bool is_word) const {
        float position = (z + bound) * per_step;
        position = position > 0.0f ? position : 0.0f; /* NaN too */
        const int i = (int)fminf(position, last);
        const float2 pair = __ldg(pairs + i);
        const float f = fmaf(pair.y, fmaf(-((float)i - half), step, z), pair.x);
        const float g = row.factor * expf((f - row.top) - row.rest);
        return (is_word ? g - row.share : g) * pair.y;
    }
};

__device__ __forceinline__ void put(__nv_bfloat16 *out, float v) { *out = __float2bfloat16(v); }
__device__ __forceinline__ void put(__half *out, float v) { *out = __float2half(v); }
__device__ __forceinline__ unsigned two(const __nv_bfloat16 *, float a, float b) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *(const unsigned *)&both;
}
__device__ __forceinline__ unsigned two(const __half *, float a, float b) {
    const __half2 both = __floats2half2_rn(a, b);
    return *(const unsigned *)&both;
}

/* Where in a tile a thread's logits are. WIDE: four neighbours at a time, of rows that start at multiples of 16
 * bytes. */
template <bool WIDE> __device__ __forceinline__ int place_of(int q) {
    return WIDE ? (q & ~3) * THREADS + 4 * threadIdx.x + (q & 3) : q * THREADS + threadIdx.x;
}

template <bool WIDE> __device__ __forceinline__ bool is_mine(int place) {
    return (unsigned)place < TILE && (WIDE ? place / 4 : place) % THREADS == threadIdx.x;
}

template <bool WIDE>
__device__ __forceinline__ void read_tile(float (&x)[EACH], const float *row, int start, int words) {
#pragma unroll
    for (int q = 0; q < EACH; q += WIDE ? 4 : 1) {
        const int j = start + place_of<WIDE>(q);
        if (WIDE && j + 3 < words) {
            const float4 four = __ldcs((const float4 *)(row + j));
            x[q] = four.x, x[q + 1] = four.y, x[q + 2] = four.z, x[q + 3] = four.w;
            continue;
        }
#pragma unroll
        for (int c = 0; c < (WIDE ? 4 : 1); c++) x[q + c] = j + c < words ? __ldcs(row + j + c) : 0.0f;
    }
}

template <bool WIDE, typename Out>
__device__ __forceinline__ void write_tile(Out *row, const float (&g)[EACH], int start, int words) {
#pragma unroll
    for (int q = 0; q < EACH; q += WIDE ? 4 : 1) {
        const int j = start + place_of<WIDE>(q);
        if (WIDE && j + 3 < words) {
            *(uint2 *)(row + j) = make_uint2(two(row, g[q], g[q + 1]), two(row, g[q + 2], g[q + 3]));
            continue;
        }
#pragma unroll
        for (int c = 0; c < (WIDE ? 4 : 1); c++)
            if (j + c < words) put(row + j + c, g[q + c]);
    }
}

/* The numbers of a row, each in a lane of every warp until the row begins. */
__device__ __forceinline__ int ask_row(int row, int rows, const float *stats, const long long *target) {
    const int lane = threadIdx.x % 32;
    return lane < 4 ? __float_as_int(stats[(long long)lane * rows + row]) : (int)target[row];
}
__device__ __forceinline__ Row answer(int asked) {
    return {__int_as_float(__shfl_sync(ALL, asked, 0)), __int_as_float(__shfl_sync(ALL, asked, 1)),
            __int_as_float(__shfl_sync(ALL, asked, 2)), __int_as_float(__shfl_sync(ALL, asked, 3)),
            __shfl_sync(ALL, asked, 4)};
}

/* `counted` is the width of the window of `window`, in whose middle this one lies; the table has a multiple of 128
 * codes, as has this window, `width` of them, so that codes and bases are copied by 16 bytes. */
template <typename Out, bool WIDE>
__global__ void __launch_bounds__(THREADS, 1)
row_gradient(const float *z, Out *dz, int z_stride, int dz_stride, const long long *target, const float *stats,
             const float2 *pairs, const uint4 *codes, const uint4 *bases, const int *window, int counted, int width,
             int rows, int words, int intervals, double bound_) {
    extern __shared__ uint4 held[];
    const unsigned *code_at = (const unsigned *)held, *base_at = (const unsigned *)(held + width / 4 + 1);
    const Table table = {pairs, (float)bound_, (float)(2.0 * bound_ / intervals), (float)(intervals / (2.0 * bound_)),
                         0.5f * intervals, (float)(intervals - 1)};
    /* 2^23 is where a float32's last bit is 1: adding it rounding down is floor. Counted from `centre`, an interval's
     * number times the step is where its value belongs to. */
    const float part = 0.5f * (intervals & 1), centre = 8388608.0f + (float)(intervals / 2);
    const int tiles = (words + TILE - 1) / TILE, end = (intervals + 127) / 128 * 128;
    const int origin = min(max(*window + (counted - width) / 2, 0), end - width) / 128 * 128;
    const unsigned start_bits = 0x4B000000u + origin;

    float ahead[EACH];
    int asked = 0;
    /* The last rows first: a kernel has just read them all, and those it read last may still be in the cache. */
    if (blockIdx.x < rows) {
        const int row = rows - 1 - blockIdx.x;
        read_tile<WIDE>(ahead, z + (long long)row * z_stride, 0, words);
        asked = ask_row(row, rows, stats, target);
    }
    copy_window(held, codes, bases, origin, width);
    __syncthreads();

    for (int turn = blockIdx.x; turn < rows; turn += gridDim.x) {
        const int index = rows - 1 - turn, next_index = index - gridDim.x;
        Out *out = dz + (long long)index * dz_stride;
        const Row row = answer(asked);
        if (next_index >= 0) asked = ask_row(next_index, rows, stats, target);
        const bool ignored = row.factor == 0.0f && row.share == 0.0f;
        const float shift = (row.top + row.rest) * LOG2_E, factor = row.factor * LN_2;
        for (int tile = 0; tile < tiles; tile++) {
            const int start = tile * TILE;
            float x[EACH], g[EACH];
#pragma unroll
            for (int q = 0; q < EACH; q++) x[q] = ahead[q];
            if ((tile & (tile + 1)) == 0) __syncthreads();
            const bool more = tile + 1 < tiles;
            const int from = more ? index : next_index;
            if (from >= 0) read_tile<WIDE>(ahead, z + (long long)from * z_stride, more ? start + TILE : 0, words);
            const int word = row.word - start;
            float sum = 0.0f; /* NaN if one of them is */
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                const float moved = __fadd_rd(fmaf(x[q], table.per_step, part), centre);
                const unsigned place = min(__float_as_uint(moved) - start_bits, (unsigned)width);
                const unsigned code = code_at[place], base = base_at[place / GROUP];
                const float slope = coded_slope(code);
                const float offset = fmaf(centre - moved, table.step, x[q]);
                g[q] = factor * power_of_2(fmaf(slope, offset, coded_value(code, base)) - shift) * slope;
                sum += g[q];
            }
            if (ignored) {
#pragma unroll
                for (int q = 0; q < EACH; q++) g[q] = 0.0f;
            } else if (isnan(sum) || is_mine<WIDE>(word)) {
#pragma unroll
                for (int q = 0; q < EACH; q++) {
                    const bool is_word = place_of<WIDE>(q) == word;
                    if (is_word || isnan(g[q])) g[q] = table.gradient(x[q], row, is_word);
                }
            }
            write_tile<WIDE>(out, g, start, words);
        }
    }
}
