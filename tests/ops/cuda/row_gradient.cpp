/* Runs row_gradient for every block; the test puts the source into the folder it compiles in. */
#include "shim.h"

static uint4 held[WINDOW / 4 + 1];
#include "kernel.cu"

template <typename Out> static void run_all(float *memory, int pitch, const long long *target, const float *stats,
                                            const float2 *pairs, const uint4 *growth,
                                            const int *window, int counted, int width, int rows, int words,
                                            int intervals, double bound) {
    const auto kernel = pitch % 4 == 0 ? row_gradient<Out, true> : row_gradient<Out, false>;
    gridDim.x = BLOCKS;
    for (blockIdx.x = 0; blockIdx.x < BLOCKS; blockIdx.x++)
        run_block(THREADS, [&] {
            kernel(memory, (Out *)memory, pitch, 2 * pitch, target, stats, pairs, growth, window, counted, width,
                   rows, words, intervals, bound);
        });
}

extern "C" void run(float *memory, int pitch, int is_half, const long long *target, const float *stats,
                    const float2 *pairs, const uint4 *growth, const int *window, int counted,
                    int width, int rows, int words, int intervals, double bound) {
    const auto all = is_half ? run_all<__half> : run_all<__nv_bfloat16>;
    all(memory, pitch, target, stats, pairs, growth, window, counted, width, rows, words, intervals, bound);
}
