/* Runs table_gradient for every block; the test puts the source into the folder it compiles in. */
#include "shim.h"

static unsigned held[BASES + CODES + WINDOW];
#include "kernel.cu"

/* Of the compressed table; COARSE if there is one. */
static const unsigned *codes, *bases;
extern "C" void compress(const unsigned *codes_, const unsigned *bases_) {
    codes = codes_;
    bases = bases_;
}

extern "C" void run(const float *z, const float *given, const long long *target, const float *weight,
                    const float *scale, const float2 *pairs, const int *window, float *stats, float *dz,
                    float2 *staging, float2 *spill, double *beyond, int rows, int words, int intervals,
                    double z_loss, double bound) {
    const auto kernel = codes ? table_gradient<float, 0, true> : table_gradient<float, 0, false>;
    gridDim.x = BLOCKS;
    for (blockIdx.x = 0; blockIdx.x < BLOCKS; blockIdx.x++)
        run_block(THREADS, [&] {
            kernel(z, dz, words, words, target, nullptr, nullptr, given, pairs, codes, bases, window,
                   (float *)staging, spill, beyond, rows, 1, words, intervals, WINDOW, 1, 1, bound);
        });
}

/* Targets that are distributions: of a mixture if there are `tops`. */
extern "C" void run_dense(const float *z, const float *given, const float *pull, const float *tops,
                            const float2 *pairs, const int *window, float *dz, float *staging, float2 *spill,
                            double *beyond, int rows, int components, int words, int intervals, double bound) {
    const auto plain = codes ? table_gradient<float, 1, true> : table_gradient<float, 1, false>;
    const auto mixture = codes ? table_gradient<float, 2, true> : table_gradient<float, 2, false>;
    const auto kernel = tops ? mixture : plain;
    gridDim.x = BLOCKS;
    for (blockIdx.x = 0; blockIdx.x < BLOCKS; blockIdx.x++)
        run_block(THREADS, [&] {
            kernel(z, dz, words, words, nullptr, pull, tops, given, pairs, codes, bases, window, staging, spill,
                   beyond, rows, components, words, intervals, WINDOW, 1, 1, bound);
        });
}
