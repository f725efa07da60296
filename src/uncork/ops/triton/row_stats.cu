/* The highest f of each row under a table function, the sum of exp(f - highest), and f at the target word, as
 * row_kernel gives them, for short rows: with a window of the compressed table in shared memory, where logits spread.
 *
 * A block takes a row at a time, and each of its warps pieces of 128 words. Rows differ in which warp gets one piece
 * more. No warp waits for another at a row's end: it leaves the highest f and the sum of its pieces in shared memory.
 * After SLOTS rows there is a barrier, and a warp for each of them puts its parts together, while the others go on to
 * leave theirs in the other half of that memory: when it is used again, all have passed the next barrier.
 *
 * A value that is NaN, outside the window or not held by a code, is looked up in the table in global memory. So is the
 * target word's: its probability may be close to 1, and the loss as close to 0.
 */
#ifndef THREADS
#define THREADS 1024
#endif
#ifndef QUADS
#define QUADS 3 /* times four logits per thread, on their way while the last ones are worked on */
#endif
#define WARPS (THREADS / 32)
#define PIECE 128
#define SLOTS 8
#define ALL 0xffffffffu
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

#include "compressed.cu"

/* Of log2(e) f: the highest of some, and the sum of 2^(each - highest). */
struct Part {
    float top, total;

    /* Of nothing but minus infinity there is no finite one to subtract. */
    __device__ __forceinline__ static float safe(float top) { return top == NEGATIVE_INFINITY ? 0.0f : top; }
    __device__ __forceinline__ void raise(float higher) {
        total *= power_of_2(top - safe(higher));
        top = higher;
    }
    /* Those of all lanes together. */
    __device__ __forceinline__ void join() {
        float highest = top;
        for (int lane = 16; lane > 0; lane >>= 1) highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, lane));
        raise(highest);
        for (int lane = 16; lane > 0; lane >>= 1) total += __shfl_xor_sync(ALL, total, lane);
    }
};

struct Table {
    const float2 *pairs; /* value at the left knot, slope */
    float bound, step, per_step, half, last;

    __device__ __forceinline__ float value(float z) const {
        float position = (z + bound) * per_step;
        position = position > 0.0f ? position : 0.0f; /* NaN too */
        const int i = (int)fminf(position, last);
        const float2 pair = __ldg(pairs + i);
        return fmaf(pair.y, fmaf(-((float)i - half), step, z), pair.x);
    }
};

/* Which word of a row a lane's c-th of a piece is. WIDE: four neighbours, of rows that start at multiples of 16 bytes. */
template <bool WIDE> __device__ __forceinline__ int word_of(int piece, int c) {
    const int lane = threadIdx.x % 32;
    return piece * PIECE + (WIDE ? 4 * lane + c : 32 * c + lane);
}

template <bool WIDE> __device__ __forceinline__ void read_piece(float (&x)[4], const float *row, int piece, int words) {
    const int j = word_of<WIDE>(piece, 0);
    if (WIDE && j + 3 < words) {
        const float4 four = __ldcg((const float4 *)(row + j)); /* to be read again, from the larger cache */
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        return;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) x[c] = word_of<WIDE>(piece, c) < words ? __ldcg(row + word_of<WIDE>(piece, c)) : 0.0f;
}

/* The word whose f is wanted; that of an ignored token does not matter, but is one. */
__device__ __forceinline__ int ask_word(const long long *target, int token, int ignored, int words) {
    const long long asked = target[token];
    return (int)min(max(asked == ignored ? 0ll : asked, 0ll), (long long)words - 1);
}

/* The parts of one row together, by one warp. */
__device__ __forceinline__ void write_row(const Part *parts, int row, int rows, float *stats) {
    const int lane = threadIdx.x % 32;
    Part all = lane < WARPS ? parts[lane] : Part{NEGATIVE_INFINITY, 0.0f};
    all.join();
    if (lane != 0) return;
    const float top = all.top * LN_2;
    /* What the rounding of this product took from the highest f goes into the sum. */
    const float left = fmaf(-top, LOG2_E, all.top) - top * LOG2_E_REST;
    stats[row] = top;
    stats[rows + row] = isnan(left) ? all.total : all.total * power_of_2(left);
}

/* The table has a multiple of 128 codes, as has the window, `width` of them around that of the sums, `window`. */
template <bool WIDE>
__global__ void __launch_bounds__(THREADS, 1)
row_stats(const float *z, int z_stride, const long long *target, float *stats, const float2 *pairs, const uint4 *codes,
          const uint4 *bases, const int *window, int width, int rows, int components, int words, int intervals,
          int is_dense, int ignored, double bound_) {
    extern __shared__ uint4 held[];
    __shared__ Part parts[2][SLOTS][WARPS];
    const unsigned *code_at = (const unsigned *)held, *base_at = (const unsigned *)(held + width / 4 + 1);
    const Table table = {pairs, (float)bound_, (float)(2.0 * bound_ / intervals), (float)(intervals / (2.0 * bound_)),
                         0.5f * intervals, (float)(intervals - 1)};
    /* As in row_gradient.cu. */
    const float part = 0.5f * (intervals & 1), centre = 8388608.0f + (float)(intervals / 2);
    const int end = (intervals + 127) / 128 * 128;
    const int origin = min(max(window[1] - width / 2, 0), end - width) / 128 * 128;
    const unsigned start_bits = 0x4B000000u + origin;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pieces = (words + PIECE - 1) / PIECE, batches = (pieces + QUADS * WARPS - 1) / (QUADS * WARPS);

    float ahead[QUADS][4];
    int asked = -1;
    unsigned place_ahead = warp; /* among the warps, in the row that is read ahead */
    if (blockIdx.x < rows) {
        /* The last rows first: those are still in the cache, and the first will be when they are read again. */
        const int row = rows - 1 - blockIdx.x;
#pragma unroll
        for (int q = 0; q < QUADS; q++)
            read_piece<WIDE>(ahead[q], z + (long long)row * z_stride, q * WARPS + warp, words);
        if (!is_dense) asked = ask_word(target, row / components, ignored, words);
    }
    copy_window(held, codes, bases, origin, width);
    __syncthreads();

    int done = 0; /* rows of this block */
    for (int turn = blockIdx.x; turn < rows; turn += gridDim.x, done++) {
        const int row = rows - 1 - turn, word = asked;
        Part mine = {NEGATIVE_INFINITY, 0.0f};
        for (int batch = 0; batch < batches; batch++) {
            const int first = batch * QUADS * WARPS + place_ahead;
            float f[QUADS][4];
#pragma unroll
            for (int q = 0; q < QUADS; q++)
#pragma unroll
                for (int c = 0; c < 4; c++) f[q][c] = ahead[q][c];
            const bool more = batch + 1 < batches;
            const int next_row = more ? row : row - (int)gridDim.x;
            if (!more) place_ahead = (place_ahead + WARPS - pieces % WARPS) % WARPS;
            if (next_row >= 0) {
                const int next_first = (more ? (batch + 1) * QUADS * WARPS : 0) + place_ahead;
#pragma unroll
                for (int q = 0; q < QUADS; q++)
                    read_piece<WIDE>(ahead[q], z + (long long)next_row * z_stride, next_first + q * WARPS, words);
                if (!more && !is_dense) asked = ask_word(target, next_row / components, ignored, words);
            }
            float highest = mine.top;
#pragma unroll
            for (int q = 0; q < QUADS; q++) {
                const int piece = first + q * WARPS;
                if (piece >= pieces) {
#pragma unroll
                    for (int c = 0; c < 4; c++) f[q][c] = NEGATIVE_INFINITY;
                    continue;
                }
                float sum = 0.0f; /* NaN if one of them is */
                float x[4];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    x[c] = f[q][c];
                    const float moved = __fadd_rd(fmaf(x[c], table.per_step, part), centre);
                    const unsigned place = min(__float_as_uint(moved) - start_bits, (unsigned)width);
                    const unsigned code = code_at[place], base = base_at[place / GROUP];
                    const float offset = fmaf(centre - moved, table.step, x[c]);
                    f[q][c] = fmaf(coded_slope(code), offset, coded_value(code, base));
                    sum += f[q][c];
                }
                if (isnan(sum) || (unsigned)word / PIECE == (unsigned)piece) {
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        const bool is_word = word_of<WIDE>(piece, c) == word;
                        if (!is_word && !isnan(f[q][c])) continue;
                        const float exact = table.value(x[c]);
                        f[q][c] = exact * LOG2_E;
                        if (is_word) stats[2 * rows + row] = exact;
                    }
                }
                if ((piece + 1) * PIECE > words) {
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        if (word_of<WIDE>(piece, c) >= words) f[q][c] = NEGATIVE_INFINITY;
                }
                highest = fmaxf(highest, fmaxf(fmaxf(f[q][0], f[q][1]), fmaxf(f[q][2], f[q][3])));
            }
            mine.raise(highest);
            const float low = Part::safe(highest);
#pragma unroll
            for (int q = 0; q < QUADS; q++)
                mine.total += (power_of_2(f[q][0] - low) + power_of_2(f[q][1] - low)) +
                              (power_of_2(f[q][2] - low) + power_of_2(f[q][3] - low));
        }
        mine.join();
        Part(*const batch_parts)[WARPS] = parts[done / SLOTS % 2];
        const int slot = done % SLOTS;
        if (lane == 0) batch_parts[slot][warp] = mine;
        if (slot == SLOTS - 1 || turn + (int)gridDim.x >= rows) {
            __syncthreads();
            for (int s = warp; s <= slot; s += WARPS)
                write_row(batch_parts[s], row + (slot - s) * (int)gridDim.x, rows, stats);
        }
    }
}
