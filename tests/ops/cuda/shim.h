/* Enough of CUDA to run a kernel of one thread per block as C++: no GPU, no races, the arithmetic alone. */
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct float2 { float x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
struct Index { int x; };
static Index threadIdx{0}, blockIdx{0}, gridDim{1};

static inline float __int_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
static inline int __float_as_int(float f) { int v; memcpy(&v, &f, 4); return v; }
static inline unsigned __float_as_uint(float f) { unsigned v; memcpy(&v, &f, 4); return v; }
static inline float __fadd_rd(float a, float b) {
    float sum = (float)((double)a + b);
    return (double)sum > (double)a + b ? std::nextafterf(sum, -INFINITY) : sum;
}
static inline int __clz(int v) { return __builtin_clz(v); }
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T, typename U> static inline T atomicAdd(T *p, U v) { T old = *p; *p += v; return old; }

/* A warp of one lane has nobody to agree with. */
static inline int __shfl_sync(unsigned, int v, int) { return v; }
static inline float __shfl_xor_sync(unsigned, float, int) { return 0.0f; }
static inline unsigned __shfl_xor_sync(unsigned, unsigned, int) { return 0u; }
static inline bool __all_sync(unsigned, bool) { return false; }
static inline void __syncthreads() {}

static inline int min(int a, int b) { return a < b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }
using std::isnan;
