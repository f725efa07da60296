/* The recurrence of one LSTM layer over a whole window in one launch, forward and backward.
 *
 * A step of an LSTM is a product of a small batch with the recurrent matrix. Reading that matrix anew for every step,
 * and starting kernels for it, takes far longer than the product. Here each block owns a few hidden units and keeps
 * their part of the matrix on the chip for all steps, in registers and what these cannot hold in shared memory. The
 * blocks exchange the hidden state (forward) or the gradient of the gates (backward) through global memory, and each
 * warp waits in every step for the blocks it reads from. All blocks must be on the chip at once: the caller launches no
 * more of them than it has multiprocessors.
 *
 * The product of a step, in tiles of 16 x 8 x 16 on tensor cores with bfloat16 operands and float32 sums:
 * rows are the gates of the block's units (forward) or the units (backward), columns are streams of the batch, 24 at
 * a time. The summed index is dealt out to the warps; their partial sums meet in shared memory, where a
 * thread takes on one or two pairs of (unit, stream). The order of the summed index within 32 is permuted alike in both
 * operands, so that a thread reads 16 bytes at once.
 *
 * Given as macros: HIDDEN (H, even), STREAMS (B), PITCH (from one stream's hidden state to the next, 32 WARPS
 * FORWARD_PAIRS), and for each direction _UNITS (of a block), _PAIRS (blocks of 32 of the summed index for each warp),
 * _HELD (how many of a thread's fragment pairs, one for each tile of rows and block of 32, are in registers) and
 * _AHEAD (how many blocks of 32 of the other operand are read at once).
 * Gates are in torch's order i, f, g, o.
 */
#define WARPS 12
#define THREADS (32 * WARPS)
#define COLUMN_TILES 3 /* of 8 columns */
#define COLUMNS (8 * COLUMN_TILES)
#define GROUPS ((STREAMS + COLUMNS - 1) / COLUMNS)
#define FLAG_PITCH 32 /* a line of the cache for each block's flag, lest all look at one */
#define FORWARD_TILES ((4 * FORWARD_UNITS + 15) / 16) /* of 16 rows */
#define BACKWARD_TILES ((BACKWARD_UNITS + 15) / 16)

typedef unsigned short bf16;

struct alignas(16) Fragment { unsigned part[4]; };

#ifndef ON_CPU
extern __shared__ Fragment on_chip[];

__device__ __forceinline__ void multiply(float (&sum)[4], const Fragment &a, unsigned b0, unsigned b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b0), "r"(b1));
}
/* What all threads of the block wrote before their own barrier is there for whoever sees the count that follows. */
__device__ __forceinline__ void arrive(unsigned *flag, unsigned count) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(count) : "memory");
}
__device__ __forceinline__ unsigned arrived(const unsigned *flag) {
    unsigned count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(flag) : "memory");
    return count;
}
/* The same number, unknown to the compiler: what follows from it is computed anew in each step instead of being kept in
 * registers, which the weights need. */
__device__ __forceinline__ int anew(int v) {
    asm volatile("" : "+r"(v));
    return v;
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
/* Within 3e-7 by the bounds that the CUDA guide gives for their parts. */
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float tanh_of(float x) {
    const float t = __expf(-2.0f * fabsf(x));
    return copysignf(__fdividef(1.0f - t, 1.0f + t), x);
}

/* The block whose flag this lane watches, or -1: a warp watches all those whose units are in its share of the summed
 * index, which runs over all units `turns` times and reads the last 8 again instead of any after them. */
template <int UNITS, int PAIRS> __device__ __forceinline__ int watched_block(int turns) {
    static_assert(32 * PAIRS / UNITS + 3 <= 32, "a lane watches one block");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int end = 32 * PAIRS * (warp + 1), start = min(end - 32 * PAIRS, turns * HIDDEN - 8);
    int found = 0, watched = -1;
    for (int block = 0; block < (int)gridDim.x; block++) {
        bool feeds = false;
        for (int turn = 0; turn < turns; turn++) {
            const int first = turn * HIDDEN + block * UNITS;
            const int last = turn * HIDDEN + min((block + 1) * UNITS, HIDDEN) - 1;
            feeds = feeds || (first < end && last >= start);
        }
        if (feeds && found++ == lane) watched = block;
    }
    return watched;
}
__device__ __forceinline__ void wait_for(const unsigned *flags, int watched, unsigned goal) {
    if (watched >= 0)
        while (arrived(flags + watched * FLAG_PITCH) < goal) {}
    __syncwarp(); /* what one lane has seen holds for all */
}

/* A sum of one warp in shared memory. Neither store_tile nor collect has two lanes at one memory bank: a bank depends
 * on the row within 8 alone, and rows 4 apart have their halves of 8 columns swapped. */
template <int ROW_TILES> __device__ __forceinline__ int place_of(int warp, int row, int column) {
    return (warp * 16 * ROW_TILES + row) * COLUMNS + (column ^ (row & 4));
}
template <int ROW_TILES>
__device__ __forceinline__ void store_tile(const float (&sum)[COLUMN_TILES][4], int tile, float *partial) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    #pragma unroll
    for (int j = 0; j < COLUMN_TILES; j++)
        #pragma unroll
        for (int lower = 0; lower < 2; lower++) {
            const int row = 16 * tile + lane / 4 + 8 * lower, column = 8 * j + 2 * (lane % 4);
            float2 two;
            two.x = sum[j][2 * lower];
            two.y = sum[j][2 * lower + 1];
            *(float2 *)(partial + place_of<ROW_TILES>(warp, row, column)) = two;
        }
}
template <int ROW_TILES> __device__ __forceinline__ float collect(const float *partial, int row, int column) {
    float sum = 0.0f;
    #pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += partial[place_of<ROW_TILES>(warp, row, column)];
    return sum;
}

/* A warp's share of the matrix, a pair of fragments for each tile of rows and block of 32: the first HELD of
 * them in registers, the others in shared memory, where no thread reads what another wrote. */
template <int ROW_TILES, int PAIRS, int HELD> struct Weights {
    Fragment held[HELD][2];
    Fragment *stored;

    static __device__ __forceinline__ float *after(Fragment *start) {
        return (float *)(start + 2 * (ROW_TILES * PAIRS - HELD) * THREADS);
    }
    __device__ __forceinline__ Fragment get(int tile, int pair, int half) const {
        const int i = tile * PAIRS + pair;
        return i < HELD ? held[min(i, HELD - 1)][half] : stored[(2 * (i - HELD) + half) * THREADS + threadIdx.x];
    }
    /* From anything indexed (row, k). */
    template <typename Entry> __device__ __forceinline__ void load(Entry entry, Fragment *memory) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        stored = memory;
        #pragma unroll
        for (int i = 0; i < ROW_TILES * PAIRS; i++) {
            const int k = 32 * (warp * PAIRS + i % PAIRS) + 8 * (lane % 4);
            Fragment pair[2];
            #pragma unroll
            for (int word = 0; word < 4; word++)
                #pragma unroll
                for (int lower = 0; lower < 2; lower++) {
                    const int row = 16 * (i / PAIRS) + lane / 4 + 8 * lower;
                    pair[word / 2].part[lower + 2 * (word % 2)] =
                        (unsigned)entry(row, k + 2 * word) | ((unsigned)entry(row, k + 2 * word + 1) << 16);
                }
            #pragma unroll
            for (int half = 0; half < 2; half++)
                if (i < HELD) held[min(i, HELD - 1)][half] = pair[half];
                else stored[(2 * (i - HELD) + half) * THREADS + threadIdx.x] = pair[half];
        }
    }
};

/* This warp's share of the product with columns `first` to `first + 24` of B, to shared memory. */
template <int AHEAD, int ROW_TILES, int PAIRS, int HELD>
__device__ __forceinline__ void multiply_into(const Weights<ROW_TILES, PAIRS, HELD> &weights, const bf16 *b, int pitch,
                                              int summed, int first, float *partial) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum[ROW_TILES][COLUMN_TILES][4];
    #pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        #pragma unroll
        for (int j = 0; j < COLUMN_TILES; j++)
            #pragma unroll
            for (int i = 0; i < 4; i++) sum[m][j][i] = 0.0f;
    /* Clamped instead of left out: a column too many is never looked at, and weights are zero past the end. */
    const int from = anew(32 * warp * PAIRS + 8 * (lane % 4)), most = summed - 8 - from;
    const bf16 *place[COLUMN_TILES];
    #pragma unroll
    for (int j = 0; j < COLUMN_TILES; j++)
        place[j] = b + (min(first + 8 * j + lane / 4, STREAMS - 1) * pitch + from);
    #pragma unroll
    for (int start = 0; start < PAIRS; start += AHEAD) {
        uint4 v[AHEAD][COLUMN_TILES]; /* all on their way before the first is needed */
        #pragma unroll
        for (int p = 0; p < AHEAD; p++)
            #pragma unroll
            for (int j = 0; j < COLUMN_TILES; j++)
                if (start + p < PAIRS)
                    v[p][j] = read(place[j] + min(32 * (start + p), most));
        #pragma unroll
        for (int m = 0; m < ROW_TILES; m++) { /* one tile to its end before the next: few sums at a time */
            #pragma unroll
            for (int p = 0; p < AHEAD; p++)
                if (start + p < PAIRS) {
                    const Fragment upper = weights.get(m, start + p, 0), lower = weights.get(m, start + p, 1);
                    #pragma unroll
                    for (int j = 0; j < COLUMN_TILES; j++) multiply(sum[m][j], upper, v[p][j].x, v[p][j].y);
                    #pragma unroll
                    for (int j = 0; j < COLUMN_TILES; j++) multiply(sum[m][j], lower, v[p][j].z, v[p][j].w);
                }
            if (start + AHEAD >= PAIRS) store_tile<ROW_TILES>(sum[m], m, partial);
        }
    }
}

/* The pairs of (unit, stream) of a thread: lanes are 8 units by 4 streams, so that neither the partial sums nor the
 * memory are read one by one. */
template <int UNITS> struct Share {
    static constexpr int FOURS = ((STREAMS < COLUMNS ? STREAMS : COLUMNS) + 3) / 4;
    static constexpr int EACH = (4 * FOURS * UNITS + THREADS - 1) / THREADS;

    int slot, unit, column;
    __device__ __forceinline__ explicit Share(int which) {
        const int index = anew(threadIdx.x) + which * THREADS;
        slot = index % (4 * UNITS) / 4;
        unit = blockIdx.x * UNITS + slot;
        column = index / (4 * UNITS) * 4 + index % 4;
    }
    __device__ __forceinline__ int stream(int group) const { return group * COLUMNS + column; }
    __device__ __forceinline__ bool mine(int group) const {
        return column < COLUMNS && unit < HIDDEN && stream(group) < STREAMS;
    }
};

struct GateRows { /* of the recurrent matrix (4H, H): the four gates of this block's units */
    const bf16 *weight;
    __device__ bf16 operator()(int row, int k) const {
        const int gate = row / FORWARD_UNITS, unit = blockIdx.x * FORWARD_UNITS + row % FORWARD_UNITS;
        const bool there = gate < 4 && unit < HIDDEN && k < HIDDEN;
        return there ? weight[((long long)gate * HIDDEN + unit) * HIDDEN + k] : (bf16)0;
    }
};
struct UnitColumns { /* of the same matrix: what of all gates' gradients comes back to this block's units */
    const bf16 *weight;
    __device__ bf16 operator()(int row, int k) const {
        const int unit = blockIdx.x * BACKWARD_UNITS + row;
        const bool there = row < BACKWARD_UNITS && unit < HIDDEN && k < 4 * HIDDEN;
        return there ? weight[(long long)k * HIDDEN + unit] : (bf16)0;
    }
};

/* input (T, B, 4H): x W_ih' + both biases. hidden (T + 1, B, PITCH) and cell (T + 1, B, H): the first row given.
 * gates (T, B, 4H): their values, for backward. flags: 0, FLAG_PITCH for each block. */
extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_forward(
    const float *input, const bf16 *weight, bf16 *hidden, float *cell, bf16 *gates, unsigned *flags, int steps) {
    typedef Share<FORWARD_UNITS> Mine;
    constexpr int EACH = Mine::EACH;
    Weights<FORWARD_TILES, FORWARD_PAIRS, FORWARD_HELD> weights;
    weights.load(GateRows{weight}, on_chip);
    float *partial = weights.after(on_chip);
    const int watched = watched_block<FORWARD_UNITS, FORWARD_PAIRS>(1);
    for (int t = 0; t < steps; t++) {
        #pragma unroll 1
        for (int g = 0; g < GROUPS; g++) {
            const long long row = (long long)t * STREAMS;
            float c[EACH], value[EACH][4];
            #pragma unroll
            for (int e = 0; e < EACH; e++) {
                const Mine at(e);
                const bool mine = at.mine(g);
                c[e] = mine ? (cell + row * HIDDEN)[at.stream(g) * HIDDEN + at.unit] : 0.0f; /* its own, of before */
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    value[e][i] = mine ? (input + row * 4 * HIDDEN)[(at.stream(g) * 4 + i) * HIDDEN + at.unit] : 0.0f;
            }
            if (g == 0 && t > 0) wait_for(flags, watched, t);
            multiply_into<FORWARD_AHEAD>(weights, hidden + row * PITCH, PITCH, PITCH, g * COLUMNS, partial);
            __syncthreads();
            #pragma unroll
            for (int e = 0; e < EACH; e++) {
                const Mine at(e);
                if (!at.mine(g)) continue;
                float (&v)[4] = value[e];
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    v[i] += collect<FORWARD_TILES>(partial, i * FORWARD_UNITS + at.slot, at.column);
                v[0] = sigmoid(v[0]);
                v[1] = sigmoid(v[1]);
                v[2] = tanh_of(v[2]);
                v[3] = sigmoid(v[3]);
                c[e] = v[1] * c[e] + v[0] * v[2];
                (hidden + (row + STREAMS) * PITCH)[at.stream(g) * PITCH + at.unit] = narrow(v[3] * tanh_of(c[e]));
            }
            __syncthreads();
            if (g == GROUPS - 1 && threadIdx.x == 0) arrive(flags + blockIdx.x * FLAG_PITCH, t + 1);
            #pragma unroll
            for (int e = 0; e < EACH; e++) { /* while the others arrive: what only backward reads */
                const Mine at(e);
                if (!at.mine(g)) continue;
                (cell + (row + STREAMS) * HIDDEN)[at.stream(g) * HIDDEN + at.unit] = c[e];
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    (gates + row * 4 * HIDDEN)[(at.stream(g) * 4 + i) * HIDDEN + at.unit] = narrow(value[e][i]);
            }
        }
    }
}

/* dhidden (T, B, pitch): the gradient of every hidden state but through the next step, to be multiplied with keep
 * (B, H), the mask that what read the states had on them, unless that is null. dcell (B, H): in, of the last cell; out,
 * of the first. dgates (T, B, 4H): of the gates before their functions. flags: 0, FLAG_PITCH for each block. */
extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_backward(
    const float *dhidden, const float *keep, const bf16 *weight, const bf16 *gates, const float *cell, float *dcell,
    bf16 *dgates, unsigned *flags, int pitch, int steps) {
    typedef Share<BACKWARD_UNITS> Mine;
    constexpr int EACH = Mine::EACH;
    Weights<BACKWARD_TILES, BACKWARD_PAIRS, BACKWARD_HELD> weights;
    weights.load(UnitColumns{weight}, on_chip);
    float *partial = weights.after(on_chip);
    const int watched = watched_block<BACKWARD_UNITS, BACKWARD_PAIRS>(4);
    for (int s = 0; s < steps; s++) {
        const long long row = (long long)(steps - 1 - s) * STREAMS;
        #pragma unroll 1
        for (int g = 0; g < GROUPS; g++) {
            float dc[EACH], dh[EACH], kept[EACH], before[EACH], after[EACH];
            bf16 value[EACH][4];
            #pragma unroll
            for (int e = 0; e < EACH; e++) {
                const Mine at(e);
                const bool mine = at.mine(g);
                const int place = at.stream(g) * HIDDEN + at.unit;
                dc[e] = mine ? dcell[place] : 0.0f;
                dh[e] = mine ? (dhidden + row * pitch)[at.stream(g) * pitch + at.unit] : 0.0f;
                kept[e] = mine && keep ? keep[place] : 1.0f;
                before[e] = mine ? (cell + row * HIDDEN)[place] : 0.0f;
                after[e] = mine ? (cell + (row + STREAMS) * HIDDEN)[place] : 0.0f;
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const bf16 *from = gates + row * 4 * HIDDEN + ((at.stream(g) * 4 + i) * HIDDEN + at.unit);
                    value[e][i] = mine ? *from : (bf16)0;
                }
            }
            if (s > 0) {
                if (g == 0) wait_for(flags, watched, s);
                multiply_into<BACKWARD_AHEAD>(weights, dgates + (row + STREAMS) * 4 * HIDDEN, 4 * HIDDEN, 4 * HIDDEN,
                                              g * COLUMNS, partial);
                __syncthreads();
            }
            #pragma unroll
            for (int e = 0; e < EACH; e++) {
                const Mine at(e);
                if (!at.mine(g)) continue;
                dh[e] *= kept[e];
                if (s > 0) dh[e] += collect<BACKWARD_TILES>(partial, at.slot, at.column);
                const float i = widen(value[e][0]), f = widen(value[e][1]);
                const float m = widen(value[e][2]), o = widen(value[e][3]);
                const float out = tanh_of(after[e]);
                const float d = dc[e] + dh[e] * o * (1.0f - out * out);
                bf16 *place = dgates + row * 4 * HIDDEN + (at.stream(g) * 4 * HIDDEN + at.unit);
                place[0] = narrow(d * m * i * (1.0f - i));
                place[HIDDEN] = narrow(d * before[e] * f * (1.0f - f));
                place[2 * HIDDEN] = narrow(d * i * (1.0f - m * m));
                place[3 * HIDDEN] = narrow(dh[e] * out * o * (1.0f - o));
                dcell[at.stream(g) * HIDDEN + at.unit] = d * f;
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) arrive(flags + blockIdx.x * FLAG_PITCH, s + 1);
    }
}
