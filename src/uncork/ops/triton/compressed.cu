/* A table in half the bytes, as compressed.py builds it: 4 per interval, a code, and 4 per GROUP of them, a base.
 *
 * Both are of log2(e) f, so that exp(f) is a power of 2. With the bits of a code turned left by 21, its absolute value
 * is the slope; its bits 22 to 10, under the exponent in the base's last 8 bits, are what a value is above the base:
 * the one at the left knot, or in the middle where the number of intervals is odd and 0 is no knot. No bit is cleared
 * first: the slope was rounded, and the base chosen, knowing the others. The slope is right to 2^-12, the value to
 * 2^-13 of its rise over the group, or to float32.
 *
 * An interval for which this is too coarse has a code whose slope is NaN, and is read from the pairs: the first and
 * the last, where f goes on without end, and those too steep.
 */
#include "power.cu"

#define GROUP 32
#define MISSING 0xff8003ffu /* a code whose slope is NaN */

__device__ __forceinline__ float coded_slope(unsigned code) {
    return fabsf(__uint_as_float(code << 21 | code >> 11));
}
__device__ __forceinline__ float coded_value(unsigned code, unsigned base) {
    return __uint_as_float(base) + __uint_as_float(base << 23 | (code & 0x7ffc00u));
}

/* Codes and then bases of a window, a multiple of 128 intervals as is its origin; behind each what stands for everything
 * outside it. */
__device__ __forceinline__ void copy_window(uint4 *held, const uint4 *codes, const uint4 *bases, int origin, int width) {
    uint4 *const held_bases = held + width / 4 + 1;
#pragma unroll 8
    for (int i = threadIdx.x; i < width / 4; i += THREADS) held[i] = __ldg(codes + origin / 4 + i);
    for (int i = threadIdx.x; i < width / 128; i += THREADS) held_bases[i] = __ldg(bases + origin / 128 + i);
    if (threadIdx.x == 0) {
        held[width / 4] = {MISSING, MISSING, MISSING, MISSING};
        held_bases[width / 128] = {0u, 0u, 0u, 0u};
    }
}
