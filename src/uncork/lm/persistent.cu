/* The recurrence of one LSTM layer over a whole window in one launch, forward and backward.
 *
 * A step of an LSTM is a product of a small batch with the recurrent matrix. Reading that matrix anew for every step,
 * and starting kernels for it, takes far longer than the product. Here each block owns a few hidden units and keeps
 * their part of the matrix in registers for all steps; the blocks exchange the hidden state (forward) or the gradient
 * of the gates (backward) through global memory and meet at a barrier after each step. All blocks must be on the chip
 * at once: the caller launches no more of them than it has multiprocessors.
 *
 * The product of a step, in tiles of 16 x 8 x 16 on tensor cores with bfloat16 operands and float32 sums:
 * rows are the gates of the block's units (forward) or the units (backward), columns are streams of the batch, 24 at
 * a time. The summed index is dealt out to the warps; their partial sums meet in shared memory, where one
 * thread per (unit, stream) takes them on. The order of the summed index within 32 is permuted alike in both
 * operands, so that a thread reads 16 bytes at once.
 *
 * Given as macros: HIDDEN (H, even), STREAMS (B), FORWARD_PAIRS and BACKWARD_PAIRS (blocks of 32 of the summed
 * index for each warp), PITCH (from one stream's hidden state to the next, 32 WARPS FORWARD_PAIRS).
 * Gates are in torch's order i, f, g, o.
 */
#define WARPS 12
#define THREADS (32 * WARPS)
#define TILES 3                /* of 8 columns */
#define COLUMNS (8 * TILES)
#define GROUPS ((STREAMS + COLUMNS - 1) / COLUMNS)
#define AHEAD 4                /* blocks of 32 that are read at once */
#define ROW_PITCH (COLUMNS + 1) /* of partial sums, off the beat of the memory banks */
#define FORWARD_UNITS 12       /* 48 gates: three tiles of rows */
#define BACKWARD_UNITS 16      /* one tile of rows */

typedef unsigned short bf16;

struct Fragment { unsigned part[4]; };

#ifndef ON_CPU
extern __shared__ float partial[];

__device__ __forceinline__ void multiply(float (&sum)[4], const Fragment &a, unsigned b0, unsigned b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b0), "r"(b1));
}
/* The barrier of the grid. What all threads of the block wrote before their own barrier is there for whoever sees the
 * count that follows. */
__device__ __forceinline__ void arrive(unsigned *counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ unsigned arrived(const unsigned *counter) {
    unsigned count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
}
__device__ __forceinline__ uint4 read(const bf16 *place) { /* past the first cache, which other blocks do not see */
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(place));
    return v;
}
#endif

__device__ __forceinline__ float widen(bf16 v) { return __uint_as_float((unsigned)v << 16); }
__device__ __forceinline__ bf16 narrow(float v) { /* to nearest, ties to even */
    const unsigned bits = __float_as_uint(v);
    return v != v ? 0x7fc0 : (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ __forceinline__ void wait_for_all(const unsigned *counter, unsigned goal) {
    if (threadIdx.x == 0)
        while (arrived(counter) < goal) {}
    __syncthreads();
}

/* The share of a product that this warp sums: `a` in registers, columns `first` to `first + 24` of B in memory. */
template <int ROW_TILES, int PAIRS>
__device__ __forceinline__ void warp_product(const Fragment (&a)[PAIRS][2][ROW_TILES], const bf16 *b, int pitch,
                                             int summed, int first, float (&sum)[ROW_TILES][TILES][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    #pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        #pragma unroll
        for (int j = 0; j < TILES; j++)
            #pragma unroll
            for (int i = 0; i < 4; i++) sum[m][j][i] = 0.0f;
    /* Clamped instead of left out: a column too many is never looked at, and rows of `a` are zero past the end. */
    const bf16 *place[TILES];
    #pragma unroll
    for (int j = 0; j < TILES; j++) place[j] = b + (long long)min(first + 8 * j + lane / 4, STREAMS - 1) * pitch;
    #pragma unroll
    for (int start = 0; start < PAIRS; start += AHEAD) {
        uint4 v[AHEAD][TILES]; /* all on their way before the first is needed */
        #pragma unroll
        for (int p = 0; p < AHEAD; p++)
            #pragma unroll
            for (int j = 0; j < TILES; j++)
                if (start + p < PAIRS)
                    v[p][j] = read(place[j] + min(32 * (warp * PAIRS + start + p) + 8 * (lane % 4), summed - 8));
        #pragma unroll
        for (int p = 0; p < AHEAD; p++)
            #pragma unroll
            for (int j = 0; j < TILES; j++)
                #pragma unroll
                for (int m = 0; m < ROW_TILES; m++)
                    if (start + p < PAIRS) {
                        multiply(sum[m][j], a[start + p][0][m], v[p][j].x, v[p][j].y);
                        multiply(sum[m][j], a[start + p][1][m], v[p][j].z, v[p][j].w);
                    }
    }
}

/* To shared memory: partial[warp][row][column]. */
template <int ROW_TILES>
__device__ __forceinline__ void store_partial(const float (&sum)[ROW_TILES][TILES][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    #pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        #pragma unroll
        for (int j = 0; j < TILES; j++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = 16 * m + lane / 4 + 8 * (i / 2), column = 8 * j + 2 * (lane % 4) + i % 2;
                partial[(warp * 16 * ROW_TILES + row) * ROW_PITCH + column] = sum[m][j][i];
            }
}

template <int ROW_TILES> __device__ __forceinline__ float collect(int row, int column) {
    float sum = 0.0f;
    #pragma unroll
    for (int warp = 0; warp < WARPS; warp++)
        sum += partial[(warp * 16 * ROW_TILES + row) * ROW_PITCH + column];
    return sum;
}

/* The 16 bytes that `a` of row `row` and the blocks of 32 numbered `block` need, from anything indexed (row, k). */
template <typename Entry>
__device__ __forceinline__ void load_row(Entry entry, int row, int block, unsigned (&words)[4]) {
    const int k = 32 * block + 8 * (threadIdx.x % 4);
    #pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = (unsigned)entry(row, k + 2 * i) | ((unsigned)entry(row, k + 2 * i + 1) << 16);
}
template <int ROW_TILES, int PAIRS, typename Entry>
__device__ __forceinline__ void load_weights(Entry entry, Fragment (&a)[PAIRS][2][ROW_TILES]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    #pragma unroll
    for (int p = 0; p < PAIRS; p++)
        #pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            #pragma unroll
            for (int lower = 0; lower < 2; lower++) {
                unsigned words[4];
                load_row(entry, 16 * m + lane / 4 + 8 * lower, warp * PAIRS + p, words);
                a[p][0][m].part[lower] = words[0];
                a[p][0][m].part[lower + 2] = words[1];
                a[p][1][m].part[lower] = words[2];
                a[p][1][m].part[lower + 2] = words[3];
            }
}

struct GateRows { /* of the recurrent matrix (4H, H): the four gates of this block's units */
    const bf16 *weight;
    __device__ bf16 operator()(int row, int k) const {
        const int gate = row / FORWARD_UNITS, unit = blockIdx.x * FORWARD_UNITS + row % FORWARD_UNITS;
        return unit < HIDDEN && k < HIDDEN ? weight[((long long)gate * HIDDEN + unit) * HIDDEN + k] : (bf16)0;
    }
};
struct UnitColumns { /* of the same matrix: what of all gates' gradients comes back to this block's units */
    const bf16 *weight;
    __device__ bf16 operator()(int row, int k) const {
        const int unit = blockIdx.x * BACKWARD_UNITS + row;
        return unit < HIDDEN && k < 4 * HIDDEN ? weight[(long long)k * HIDDEN + unit] : (bf16)0;
    }
};

/* input (T, B, 4H): x W_ih' + both biases. hidden (T + 1, B, PITCH) and cell (T + 1, B, H): the first row given.
 * gates (T, B, 4H): their values, for backward. counter: 0. */
extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_forward(
    const float *input, const bf16 *weight, bf16 *hidden, float *cell, bf16 *gates, unsigned *counter, int steps) {
    constexpr int ROWS = 3;
    static_assert(16 * ROWS == 4 * FORWARD_UNITS, "rows are the gates of the units");
    const int slot = threadIdx.x % FORWARD_UNITS, unit = blockIdx.x * FORWARD_UNITS + slot;
    const int column = threadIdx.x / FORWARD_UNITS;
    const bool active = column < COLUMNS && unit < HIDDEN;
    Fragment a[FORWARD_PAIRS][2][ROWS];
    load_weights<ROWS, FORWARD_PAIRS>(GateRows{weight}, a);
    float c[GROUPS];
    #pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int b = g * COLUMNS + column;
        c[g] = active && b < STREAMS ? cell[(long long)b * HIDDEN + unit] : 0.0f;
    }
    for (int t = 0; t < steps; t++) {
        float given[GROUPS][4], value[GROUPS][4];
        #pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int b = g * COLUMNS + column;
            #pragma unroll
            for (int i = 0; i < 4; i++)
                given[g][i] = active && b < STREAMS
                    ? input[((long long)t * STREAMS + b) * 4 * HIDDEN + i * HIDDEN + unit] : 0.0f;
        }
        if (t > 0) wait_for_all(counter, (unsigned)t * gridDim.x);
        #pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            float sum[ROWS][TILES][4];
            warp_product<ROWS, FORWARD_PAIRS>(a, hidden + (long long)t * STREAMS * PITCH, PITCH, PITCH,
                                              g * COLUMNS, sum);
            store_partial<ROWS>(sum);
            __syncthreads();
            const int b = g * COLUMNS + column;
            if (active && b < STREAMS) {
                #pragma unroll
                for (int i = 0; i < 4; i++) given[g][i] += collect<ROWS>(i * FORWARD_UNITS + slot, column);
                value[g][0] = sigmoid(given[g][0]);
                value[g][1] = sigmoid(given[g][1]);
                value[g][2] = tanhf(given[g][2]);
                value[g][3] = sigmoid(given[g][3]);
                c[g] = value[g][1] * c[g] + value[g][0] * value[g][2];
                hidden[((long long)(t + 1) * STREAMS + b) * PITCH + unit] = narrow(value[g][3] * tanhf(c[g]));
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) arrive(counter);
        #pragma unroll
        for (int g = 0; g < GROUPS; g++) { /* while the others arrive: what only backward reads */
            const int b = g * COLUMNS + column;
            if (!active || b >= STREAMS) continue;
            cell[((long long)(t + 1) * STREAMS + b) * HIDDEN + unit] = c[g];
            #pragma unroll
            for (int i = 0; i < 4; i++)
                gates[((long long)t * STREAMS + b) * 4 * HIDDEN + i * HIDDEN + unit] = narrow(value[g][i]);
        }
    }
}

/* dhidden (T, B, H): the gradient of every hidden state but through the next step. dcell (B, H): in, of the last cell;
 * out, of the first. dgates (T, B, 4H): of the gates before their functions. counter: 0. */
extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_backward(
    const float *dhidden, const bf16 *weight, const bf16 *gates, const float *cell, float *dcell, bf16 *dgates,
    unsigned *counter, int steps) {
    const int slot = threadIdx.x % BACKWARD_UNITS, unit = blockIdx.x * BACKWARD_UNITS + slot;
    const int column = threadIdx.x / BACKWARD_UNITS;
    const bool active = column < COLUMNS && unit < HIDDEN;
    Fragment a[BACKWARD_PAIRS][2][1];
    load_weights<1, BACKWARD_PAIRS>(UnitColumns{weight}, a);
    float dc[GROUPS];
    #pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int b = g * COLUMNS + column;
        dc[g] = active && b < STREAMS ? dcell[(long long)b * HIDDEN + unit] : 0.0f;
    }
    for (int s = 0; s < steps; s++) {
        const int t = steps - 1 - s;
        float dh[GROUPS], value[GROUPS][4], before[GROUPS], after[GROUPS];
        #pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int b = g * COLUMNS + column;
            const bool mine = active && b < STREAMS;
            const long long at = ((long long)t * STREAMS + b) * HIDDEN + unit;
            dh[g] = mine ? dhidden[at] : 0.0f;
            before[g] = mine ? cell[at] : 0.0f;
            after[g] = mine ? cell[at + (long long)STREAMS * HIDDEN] : 0.0f;
            #pragma unroll
            for (int i = 0; i < 4; i++)
                value[g][i] = mine
                    ? widen(gates[((long long)t * STREAMS + b) * 4 * HIDDEN + i * HIDDEN + unit]) : 0.0f;
        }
        if (s > 0) wait_for_all(counter, (unsigned)s * gridDim.x);
        #pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (s > 0) {
                float sum[1][TILES][4];
                warp_product<1, BACKWARD_PAIRS>(a, dgates + (long long)(t + 1) * STREAMS * 4 * HIDDEN, 4 * HIDDEN,
                                                4 * HIDDEN, g * COLUMNS, sum);
                store_partial<1>(sum);
                __syncthreads();
                if (active) dh[g] += collect<1>(slot, column);
            }
            const int b = g * COLUMNS + column;
            if (active && b < STREAMS) {
                const float i = value[g][0], f = value[g][1], m = value[g][2], o = value[g][3];
                const float out = tanhf(after[g]);
                const float d = dc[g] + dh[g] * o * (1.0f - out * out);
                bf16 *place = dgates + ((long long)t * STREAMS + b) * 4 * HIDDEN + unit;
                place[0] = narrow(d * m * i * (1.0f - i));
                place[HIDDEN] = narrow(d * before[g] * f * (1.0f - f));
                place[2 * HIDDEN] = narrow(d * i * (1.0f - m * m));
                place[3 * HIDDEN] = narrow(dh[g] * out * o * (1.0f - o));
                dc[g] = d * f;
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) arrive(counter);
    }
    #pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int b = g * COLUMNS + column;
        if (active && b < STREAMS) dcell[(long long)b * HIDDEN + unit] = dc[g];
    }
}
