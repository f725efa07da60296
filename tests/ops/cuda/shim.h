/* Enough of CUDA to run a kernel as C++ on a CPU, so that its arithmetic and its barriers are tested without a GPU.
 *
 * The threads of a block are fibers that run in turn, each up to its next barrier, shuffle or vote; a warp has 32 of
 * them. The fibers of a warp must come to the same kind of such a point, and those of a block to the same barrier, or
 * the run is aborted: on a GPU threads that disagree there wait forever. Blocks run one after another. Races between
 * barriers are not found.
 */
#pragma once
#undef _FORTIFY_SOURCE /* it takes a jump to another stack for a mistake */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct Index { int x; };
static Index threadIdx{0}, blockIdx{0}, gridDim{1};

/* -- fibers: contexts begin them, jumps go on, which unlike contexts need no call of the system -- */
struct Fiber { ucontext_t start; jmp_buf point; bool begun; };
static jmp_buf scheduler;
static std::vector<Fiber> fibers;
enum { ENDED, BARRIER, ANY, SHUFFLE, EXCHANGE, VOTE }; /* the first three are for a block */
static std::vector<int> kinds;                         /* of the point each fiber waits at */
static std::vector<double> slots;
static std::function<void()> body;

static void meet(int kind) {
    kinds[threadIdx.x] = kind;
    if (!_setjmp(fibers[threadIdx.x].point)) _longjmp(scheduler, 1);
}
static void enter() {
    body();
    meet(ENDED);
}
static void go_on(Fiber &fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.point, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
}
static void resume(int first, int last) {
    for (int i = first; i < last; i++) {
        threadIdx.x = i;
        go_on(fibers[i]);
    }
}
static int agreed(int first, int last) {
    for (int i = first; i < last; i++)
        if (kinds[i] != kinds[first]) {
            fprintf(stderr, "threads %d and %d wait at points %d and %d\n", first, i, kinds[first], kinds[i]);
            abort();
        }
    return first;
}
static void run_block(int threads, std::function<void()> kernel) {
    const size_t stack = 1 << 16;
    std::vector<char> stacks(stack * threads);
    body = kernel;
    fibers.assign(threads, Fiber());
    kinds.assign(threads, ENDED);
    slots.assign(threads, 0.0);
    for (int i = 0; i < threads; i++) {
        getcontext(&fibers[i].start);
        fibers[i].start.uc_stack.ss_sp = &stacks[stack * i];
        fibers[i].start.uc_stack.ss_size = stack;
        makecontext(&fibers[i].start, enter, 0);
    }
    resume(0, threads);
    while (true) {
        bool moved = false;
        for (int warp = 0; warp < threads; warp += 32)
            if (kinds[agreed(warp, warp + 32)] >= SHUFFLE) {
                resume(warp, warp + 32);
                moved = true;
            }
        if (moved) continue;
        if (kinds[agreed(0, threads)] == ENDED) return;
        resume(0, threads);
    }
}

static inline void __syncthreads() { meet(BARRIER); }
static inline bool __syncthreads_or(bool v) {
    slots[threadIdx.x] = v;
    meet(ANY);
    bool any = false;
    for (double slot : slots) any = any || slot != 0.0;
    meet(ANY);
    return any;
}
template <typename T> static T exchange(T v, int lane, int kind) {
    slots[threadIdx.x] = (double)v;
    meet(kind);
    const T got = (T)slots[threadIdx.x / 32 * 32 + lane];
    meet(kind);
    return got;
}
template <typename T> static T __shfl_sync(unsigned, T v, int lane) { return exchange(v, lane, SHUFFLE); }
template <typename T> static T __shfl_xor_sync(unsigned, T v, int mask) {
    return exchange(v, (threadIdx.x % 32) ^ mask, EXCHANGE);
}
static inline unsigned __ballot_sync(unsigned, bool v) {
    slots[threadIdx.x] = v;
    meet(VOTE);
    unsigned those = 0u;
    for (int lane = 0; lane < 32; lane++) those |= (slots[threadIdx.x / 32 * 32 + lane] != 0.0 ? 1u : 0u) << lane;
    meet(VOTE);
    return those;
}
static inline void __syncwarp() { meet(VOTE); }
static inline bool __all_sync(unsigned all, bool v) { return __ballot_sync(all, v) == all; }

/* -- numbers -- */
static inline float __int_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
static inline float __uint_as_float(unsigned v) { return __int_as_float(v); }
static inline int __float_as_int(float f) { int v; memcpy(&v, &f, 4); return v; }
static inline unsigned __float_as_uint(float f) { unsigned v; memcpy(&v, &f, 4); return v; }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned found = 0;
    for (int i = 0; i < 4; i++) found |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return found;
}
static inline float __fadd_rd(float a, float b) {
    const float sum = (float)((double)a + b);
    return (double)sum > (double)a + b ? std::nextafterf(sum, -INFINITY) : sum;
}
#define __expf expf
static inline int __float2int_rn(float f) { /* saturates; 0 for NaN */
    if (f != f) return 0;
    return f >= 2147483648.0f ? INT32_MAX : f <= -2147483648.0f ? INT32_MIN : (int)std::nearbyint((double)f);
}
static inline int __clz(int v) { return __builtin_clz(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) {
    if ((uintptr_t)p % alignof(T)) abort(); /* a GPU would stop */
    return *p;
}
template <typename T> static inline T __ldcg(const T *p) { return __ldcs(p); }
static inline void __threadfence_block() {}
template <typename T, typename U> static inline T atomicAdd(T *p, U v) {
    const T old = *p;
    *p += v;
    return old;
}
static inline int min(int a, int b) { return a < b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }
using std::isnan;

/* -- low precisions: the kernels only write them -- */
struct __nv_bfloat16 { uint16_t bits; };
struct __half { uint16_t bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
struct __half2 { __half x, y; };
static inline __nv_bfloat16 __float2bfloat16(float v) {
    const unsigned bits = __float_as_uint(v);
    return {(uint16_t)(isnan(v) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
static inline __half __float2half(float v) {
    const unsigned sign = std::signbit(v) ? 0x8000 : 0;
    if (isnan(v)) return {0x7fff};
    const int exponent = v == 0.0f || std::isinf(v) ? -14 : std::max(std::ilogb(v), -14);
    const double units = std::nearbyint(std::ldexp(std::fabs((double)v), 10 - exponent)); /* of the last bit */
    const double bits = units + 1024.0 * (exponent + 14);
    return {(uint16_t)(sign | (unsigned)std::fmin(bits, 0x7c00))};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return {__float2bfloat16(a), __float2bfloat16(b)};
}
static inline __half2 __floats2half2_rn(float a, float b) { return {__float2half(a), __float2half(b)}; }
