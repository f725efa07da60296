/* Runs row_stats for every block; the test puts the source into the folder it compiles in. */
#include "shim.h"

static uint4 held[(WINDOW + WINDOW / 32) / 4 + 2];
#include "kernel.cu"

extern "C" void run(const float *z, int pitch, const long long *target, float *stats, const float2 *pairs,
                    const uint4 *codes, const uint4 *bases, const int *window, int width, int rows, int components,
                    int words, int intervals, int is_dense, int ignored, double bound) {
    const auto kernel = pitch % 4 == 0 ? row_stats<true> : row_stats<false>;
    gridDim.x = BLOCKS;
    for (blockIdx.x = 0; blockIdx.x < BLOCKS; blockIdx.x++)
        run_block(THREADS, [&] {
            kernel(z, pitch, target, stats, pairs, codes, bases, window, width, rows, components, words, intervals,
                   is_dense, ignored, bound);
        });
}
