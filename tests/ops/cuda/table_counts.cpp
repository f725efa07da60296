/* Runs table_counts for every block; the test puts the source into the folder it compiles in. */
#include "shim.h"

alignas(16) static unsigned held[WORDS];
#include "kernel.cu"

extern "C" void run(const float *z, const float *given, const long long *target, const float *weight,
                    const float *scale, const float2 *pairs, const int *window, float *stats, float *dz,
                    float2 *staging, float2 *spill, double *beyond, int rows, int words, int intervals,
                    double z_loss, double bound) {
    gridDim.x = BLOCKS;
    for (blockIdx.x = 0; blockIdx.x < BLOCKS; blockIdx.x++)
        run_block(THREADS, [&] {
            table_counts(z, words, target, weight, 1, scale, 1, pairs, window, stats, (float *)staging, spill, beyond, rows,
                         words, intervals, -100, z_loss, bound);
        });
}
