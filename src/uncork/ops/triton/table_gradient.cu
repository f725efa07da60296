/* dL/dz of a table function, and its sums per knot, in one pass over a chunk of logits.
 *
 * Each block keeps the sums of a window of knots in shared memory: every logit adds g (1 - t) to the knot on its
 * left and g t to the one on its right, t its place between them. What falls outside the window, or beyond the
 * table, goes to global memory in double. `t` stays in [0, 1]; what is left of an offset beyond the table's ends
 * has two slots of its own behind the knots.
 *
 * The gradient may be half as wide as a logit and lies on the logits' memory: a thread may write only what every
 * thread has read. Writing tile i covers logits of tile i/2, so a barrier at tiles 0, 1, 3, 7, ... is enough.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ void put(float *out, float v) { *out = v; }
__device__ __forceinline__ void put(__nv_bfloat16 *out, float v) { *out = __float2bfloat16(v); }
__device__ __forceinline__ void put(__half *out, float v) { *out = __float2half(v); }

__device__ __forceinline__ float warp_sum(float v) {
    for (int lane = 16; lane > 0; lane >>= 1) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

template <typename Out>
__global__ void __launch_bounds__(1024, 1)
table_gradient(const float *z, Out *dz, int z_stride, int dz_stride, const long long *target,
               const float *stats, const float2 *pairs, const int *window, float *staging, double *sums,
               int rows, int components, int words, int intervals, int width, int want_sums, double bound_) {
    extern __shared__ float held[];
    const float bound = (float)bound_, step = (float)(2.0 * bound_ / intervals), half = 0.5f * intervals;
    const float per_step = (float)(intervals / (2.0 * bound_));
    const int origin = want_sums ? *window : 0;
    if (want_sums)
        for (int i = threadIdx.x; i < width; i += blockDim.x) held[i] = 0.0f;
    __syncthreads();

    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *in = z + (long long)row * z_stride;
        Out *out = dz + (long long)row * dz_stride;
        const float lse = stats[row], factor = stats[rows + row], share = stats[2 * rows + row];
        const long long word = target[row / components];
        const int tiles = (words + 4095) / 4096;
        for (int tile = 0; tile < tiles; tile++) {
            float logit[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                int j = tile * 4096 + q * 1024 + threadIdx.x;
                logit[q] = j < words ? in[j] : 0.0f;
            }
            if ((tile & (tile + 1)) == 0) __syncthreads();
#pragma unroll
            for (int q = 0; q < 4; q++) {
                int j = tile * 4096 + q * 1024 + threadIdx.x;
                float x = logit[q];
                float position = (x + bound) / step;
                position = position > 0.0f ? position : 0.0f; /* NaN too */
                int i = min((int)fminf(position, (float)intervals), intervals - 1);
                float2 pair = __ldg(pairs + i);
                float offset = fmaf(-((float)i - half), step, x);
                float g = factor * __expf(fmaf(pair.y, offset, pair.x) - lse);
                if (j == word) g -= share;
                if (j >= words || factor == 0.0f) g = 0.0f;
                if (j < words) put(out + j, g * pair.y);
                if (!want_sums) continue;
                float t = fminf(fmaxf(offset * per_step, 0.0f), 1.0f);
                float right = g * t, left = g - right;
                if (j < words && (x < -bound || x > bound))
                    atomicAdd(sums + intervals + 1 + (offset > 0.0f), (double)g * (offset - t * step));
                int alike;
                __match_all_sync(0xffffffffu, i, &alike);
                if (alike) { /* one knot takes the whole warp: add it up first */
                    left = warp_sum(left);
                    right = warp_sum(right);
                    if ((threadIdx.x & 31) != 0) continue;
                }
                if (left == 0.0f && right == 0.0f) continue;
                int place = i - origin;
                if (place >= 0 && place + 1 < width) {
                    atomicAdd(held + place, left);
                    atomicAdd(held + place + 1, right);
                } else {
                    atomicAdd(sums + i, (double)left);
                    atomicAdd(sums + i + 1, (double)right);
                }
            }
        }
    }
    if (!want_sums) return;
    __syncthreads();
    float *mine = staging + (long long)blockIdx.x * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) mine[i] += held[i];
}
