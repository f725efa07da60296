/* dL/dz of a table function, and its sums per knot, in one pass over a chunk of logits.
 *
 * Each block keeps the sums of a window of knots in shared memory: every logit adds g (1 - t) to the knot on its
 * left and g t to the one on its right, t its place between them. A short table is kept in several copies, so that
 * warps do not wait for each other. What falls outside the window goes to pairs of sums in global memory. `t` stays
 * in [0, 1]; what is left of an offset beyond the table's ends has two sums of its own, in double.
 *
 * The target is a word; a distribution, `dense`; or a distribution under a mixture, of which `dense` and `tops` hold two
 * numbers per word: see dense_kernels.py.
 *
 * The gradient may be half as wide as a logit and lies on the logits' memory: a thread may write only what every
 * thread has read. Writing tile i covers logits of tile i/2, so a barrier at tiles 0, 1, 3, 7, ... is enough.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define THREADS 1024
#ifndef EACH
#define EACH 8 /* logits per thread and tile: enough table look-ups in flight to hide their latency */
#endif
#define TILE (EACH * THREADS)

__device__ __forceinline__ void put(float *out, float v) { *out = v; }
__device__ __forceinline__ void put(__nv_bfloat16 *out, float v) { *out = __float2bfloat16(v); }
__device__ __forceinline__ void put(__half *out, float v) { *out = __float2half(v); }

__device__ __forceinline__ float warp_sum(float v) {
    for (int lane = 16; lane > 0; lane >>= 1) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

__device__ __forceinline__ void add_pair(float2 *to, float a, float b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
#else
    atomicAdd(&to->x, a);
    atomicAdd(&to->y, b);
#endif
}

__device__ __forceinline__ void read_tile(float (&x)[EACH], const float *row, int first, int words) {
#pragma unroll
    for (int q = 0; q < EACH; q++) x[q] = first + q * THREADS < words ? row[first + q * THREADS] : 0.0f;
}

template <typename Out, bool MIXTURE>
__global__ void __launch_bounds__(THREADS, 1)
table_gradient(const float *z, Out *dz, int z_stride, int dz_stride, const long long *target, const float *dense,
               const float *tops, const float *stats, const float2 *pairs, const int *window, float *staging, float2 *spill,
               double *beyond, int rows, int components, int words, int intervals, int width, int copies, int is_dense,
               int first_chunk, double bound_) {
    extern __shared__ float held[];
    const float bound = (float)bound_, step = (float)(2.0 * bound_ / intervals), half = 0.5f * intervals;
    const float per_step = (float)(intervals / (2.0 * bound_)), last = (float)(intervals - 1);
    const int origin = *window, tiles = (words + TILE - 1) / TILE;
    float *mine = held + (threadIdx.x / 32 % copies) * width;
    for (int i = threadIdx.x; i < width * copies; i += THREADS) held[i] = 0.0f;
    __syncthreads();

    float ahead[EACH]; /* the next tile is on its way while this one is worked on */
    if (blockIdx.x < rows) read_tile(ahead, z + (long long)blockIdx.x * z_stride, threadIdx.x, words);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        Out *out = dz + (long long)row * dz_stride;
        const float top = stats[row], rest = stats[rows + row];
        const float factor = stats[2 * rows + row], share = stats[3 * rows + row];
        const long long word = is_dense ? -1 : target[row / components];
        const long long at = (long long)(row / components) * words;
        const float *weights = is_dense ? dense + at : nullptr, *highest = MIXTURE ? tops + at : nullptr;
        const float prior = MIXTURE ? stats[4 * rows + row] : 0.0f;
        for (int tile = 0; tile < tiles; tile++) {
            const int first = tile * TILE + threadIdx.x;
            float x[EACH];
            float2 pair[EACH];
            int index[EACH];
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                x[q] = ahead[q];
                float position = (x[q] + bound) * per_step;
                position = position > 0.0f ? position : 0.0f; /* NaN too */
                index[q] = (int)fminf(position, last);
                pair[q] = __ldg(pairs + index[q]);
            }
            if ((tile & (tile + 1)) == 0) __syncthreads();
            const int next_row = tile + 1 < tiles ? row : row + gridDim.x;
            const int next_first = tile + 1 < tiles ? first + TILE : threadIdx.x;
            if (next_row < rows) read_tile(ahead, z + (long long)next_row * z_stride, next_first, words);
#pragma unroll
            for (int q = 0; q < EACH; q++) {
                const int j = first + q * THREADS, i = index[q];
                const float offset = fmaf(-((float)i - half), step, x[q]);
                const float log_p = (fmaf(pair[q].y, offset, pair[q].x) - top) - rest;
                float g = factor * expf(log_p);
                if (j == word) g -= share;
                if (is_dense && j < words) {
                    g -= share * weights[j] * (MIXTURE ? expf((log_p + prior) - highest[j]) : 1.0f);
                }
                if (j >= words || factor == 0.0f) g = 0.0f;
                if (j < words) put(out + j, g * pair[q].y);
                const float t = fminf(fmaxf(offset * per_step, 0.0f), 1.0f);
                float right = g * t, left = g - right;
                if (g != 0.0f && fabsf(x[q]) > bound) /* 0 times minus infinity is no number */
                    atomicAdd(beyond + (offset > 0.0f), (double)g * (offset - t * step));
                if (__all_sync(0xffffffffu, i == __shfl_sync(0xffffffffu, i, 0))) {
                    /* One knot takes the whole warp: add it up first. */
                    left = warp_sum(left);
                    right = warp_sum(right);
                    if ((threadIdx.x & 31) != 0) continue;
                }
                const unsigned place = i - origin;
                if (place < width - 1u) { /* unsigned: the interval left of the window is far to the right */
                    atomicAdd(mine + place, left);
                    atomicAdd(mine + place + 1, right);
                } else {
                    add_pair(spill + i, left, right);
                }
            }
        }
    }
    __syncthreads();
    float *total = staging + (long long)blockIdx.x * width;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float sum = first_chunk ? 0.0f : total[i];
        for (int copy = 0; copy < copies; copy++) sum += held[copy * width + i];
        total[i] = sum;
    }
}
