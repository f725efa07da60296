/* Sums outside a window of knots, in global memory: for each interval those of its left and its right knot. */
#pragma once
#ifndef SPILLS
#define SPILLS 1 /* copies of them, which blocks take in turn */
#endif
#define ALL 0xffffffffu

__device__ __forceinline__ void add_pair(float2 *to, float a, float b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
#else
    atomicAdd(&to->x, a);
    atomicAdd(&to->y, b);
#endif
}

__device__ __forceinline__ float warp_sum(float v) {
    for (int lane = 16; lane > 0; lane >>= 1) v += __shfl_xor_sync(ALL, v, lane);
    return v;
}
