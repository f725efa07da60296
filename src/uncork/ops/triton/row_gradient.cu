/* dL/dz of long rows under a table function, in half precision over the float32 logits, with a window of a table of
 * what it needs in shared memory: where logits spread, look-ups in the whole table miss the first cache.
 *
 * dL/dz is exp(f(z)) f'(z), the growth of exp(f), times a factor of the row. Inside a narrow interval with slope s,
 * t in [0, 1] from its left knot and a = s times its width,
 *
 *     exp(f(z)) s = exp(f(middle)) s (1 + a (t - 1/2) + O(a^2))
 *
 * growth.py makes a word for each interval: the bits of exp(f(middle) - reference) s, the last 8 of which are a in
 * units of 2^-13. No bit is cleared first: the others were rounded knowing them, so the word is right to 2^-16. What is
 * left out is a^2/8 at the most, 2^-13 in the steepest interval held. The reference is f in the middle of the table.
 *
 * An interval for which this is too coarse has a word of NaN: the first and the last, where f goes on without end, those
 * too steep, those whose exponential is no normal float32. So has the place that stands for everything outside the
 * window. A gradient that is NaN is computed again, from the pairs in global memory; and so is that of the target word.
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
#define MISSING 0x7fffffffu

struct Row {
    float top, rest, factor, share;
    int word;
};

/* What is behind the words of a table. */
struct Behind {
    float reference;
    unsigned one; /* the bits of 1; as a constant it would be moved to a register for every logit */
};

/* The growth of exp(f) times a factor of the row, from the word of a logit's interval and t. */
struct Growth {
    unsigned one;
    float twice, thrice; /* the factor */

    /* NaN, so that all of the row is computed again, where its factor relative to the reference is too small or large. */
    __device__ __forceinline__ Growth(const Row &row, const Behind &behind) : one(behind.one) {
        const float factor = row.factor * expf((behind.reference - row.top) - row.rest), size = fabsf(factor);
        const bool fine = row.factor == 0.0f || (size > 0x1p-100f && size < 0x1p100f);
        twice = fine ? 2.0f * factor : __uint_as_float(MISSING);
        thrice = 1.5f * twice;
    }
    /* With a at bits 15 to 8, the bits of 1 are those of 1 + a/4: times 4 t - 2, plus 3 - 4 t, it is 1 + a (t - 1/2). */
    __device__ __forceinline__ float at(unsigned word, float t) const {
        const float and_a = __uint_as_float(__byte_perm(word, one, 0x7604));
        return __uint_as_float(word) * fmaf(and_a, fmaf(t, 2.0f * twice, -twice), fmaf(t, -2.0f * twice, thrice));
    }
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

/* A thread's logits of a tile, the first of which is at `from`; `left` is how far from there the row ends. Of a tile that
 * is whole no place need be looked at. */
template <bool WIDE>
__device__ __forceinline__ void read_tile(float (&x)[EACH], const float *from, int left, bool whole) {
    if (WIDE && whole) {
#pragma unroll
        for (int q = 0; q < EACH; q += 4) {
            const float4 four = __ldcs((const float4 *)(from + q * THREADS));
            x[q] = four.x, x[q + 1] = four.y, x[q + 2] = four.z, x[q + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int q = 0; q < EACH; q++) {
        const int at = place_of<WIDE>(q) - place_of<WIDE>(0);
        x[q] = at < left ? __ldcs(from + at) : 0.0f;
    }
}

template <bool WIDE, typename Out>
__device__ __forceinline__ void write_tile(Out *to, const float (&g)[EACH], int left, bool whole) {
    if (WIDE && whole) {
#pragma unroll
        for (int q = 0; q < EACH; q += 4)
            *(uint2 *)(to + q * THREADS) = make_uint2(two(to, g[q], g[q + 1]), two(to, g[q + 2], g[q + 3]));
        return;
    }
#pragma unroll
    for (int q = 0; q < EACH; q++) {
        const int at = place_of<WIDE>(q) - place_of<WIDE>(0);
        if (at < left) put(to + at, g[q]);
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

/* `counted` is the width of the window of `window`, in whose middle this one lies; the table has a multiple of 4 words,
 * as has this window, `width` of them, so that they are copied by 16 bytes. */
template <typename Out, bool WIDE>
__global__ void __launch_bounds__(THREADS, 1)
row_gradient(const float *z, Out *dz, int z_stride, int dz_stride, const long long *target, const float *stats,
             const float2 *pairs, const uint4 *growth, const int *window, int counted, int width, int rows, int words,
             int intervals, double bound_) {
    extern __shared__ uint4 held[];
    const unsigned *const word_at = (const unsigned *)held;
    const Table table = {pairs, (float)bound_, (float)(2.0 * bound_ / intervals), (float)(intervals / (2.0 * bound_)),
                         0.5f * intervals, (float)(intervals - 1)};
    /* 2^23 is where a float32's last bit is 1: adding it rounding down is floor. The middle of the table is a knot, or
     * the middle of an interval. */
    const float part = 0.5f * (intervals & 1), centre = 8388608.0f + (float)(intervals / 2);
    const int tiles = (words + TILE - 1) / TILE, end = (intervals + 3) / 4 * 4;
    const int origin = min(max(*window + (counted - width) / 2, 0), end - width) / 4 * 4;
    const unsigned start_bits = 0x4B000000u + origin;
    const Behind behind = {__uint_as_float(growth[end / 4].x), growth[end / 4].y};

    const int mine = place_of<WIDE>(0);
    z += mine, dz += mine;
    float ahead[EACH];
    int asked = 0;
    /* The last rows first: a kernel has just read them all, and those it read last may still be in the cache. */
    if (blockIdx.x < rows) {
        const int row = rows - 1 - blockIdx.x;
        read_tile<WIDE>(ahead, z + (long long)row * z_stride, words - mine, TILE <= words);
        asked = ask_row(row, rows, stats, target);
    }
#pragma unroll 8
    for (int i = threadIdx.x; i < width / 4; i += THREADS) held[i] = __ldg(growth + origin / 4 + i);
    if (threadIdx.x == 0) held[width / 4] = {MISSING, MISSING, MISSING, MISSING};
    __syncthreads();

    for (int turn = blockIdx.x; turn < rows; turn += gridDim.x) {
        const int index = rows - 1 - turn, next_index = index - gridDim.x;
        const float *const logits = z + (long long)index * z_stride;
        Out *const out = dz + (long long)index * dz_stride;
        const Row row = answer(asked);
        if (next_index >= 0) asked = ask_row(next_index, rows, stats, target);
        const bool ignored = row.factor == 0.0f && row.share == 0.0f;
        const Growth growth_of(row, behind);
        const int word_tile = is_mine<WIDE>(row.word % TILE) ? row.word / TILE : -1;
        int left = words - mine; /* from the thread's first logit of the tile to the row's end */
#pragma unroll 2
        for (int tile = 0; tile < tiles; tile++, left -= TILE) {
            const int start = tile * TILE;
            float x[EACH], g[EACH];
#pragma unroll
            for (int q = 0; q < EACH; q++) x[q] = ahead[q];
            if ((tile & (tile + 1)) == 0) __syncthreads();
            if (tile + 1 < tiles)
                read_tile<WIDE>(ahead, logits + start + TILE, left - TILE, start + 2 * TILE <= words);
            else if (next_index >= 0)
                read_tile<WIDE>(ahead, z + (long long)next_index * z_stride, words - mine, TILE <= words);
            float sum = 0.0f; /* NaN if one of them is */
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                const float position = fmaf(x[q], table.per_step, part), moved = __fadd_rd(position, centre);
                const unsigned place = min(__float_as_uint(moved) - start_bits, (unsigned)width);
                g[q] = growth_of.at(word_at[place], position - (moved - centre));
                sum += g[q];
            }
            if (isnan(sum) || tile == word_tile) {
#pragma unroll
                for (int q = 0; q < EACH; q++) {
                    const bool is_word = start + place_of<WIDE>(q) == row.word;
                    if (is_word || isnan(g[q])) g[q] = ignored ? 0.0f : table.gradient(x[q], row, is_word);
                }
            }
            write_tile<WIDE>(out + start, g, left, start + TILE <= words);
        }
    }
}
