/* Powers of 2, which a GPU computes in one instruction. */
#pragma once
#define LOG2_E 1.44269504f
#define LOG2_E_REST 1.92596299e-8f
#define LN_2 0.69314718f

/* 2^x; what is too small for a normal float32 is 0. */
__device__ __forceinline__ float power_of_2(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}
