/* Enough of CUDA to run persistent.cu on a CPU: all threads of all blocks are fibers.
 *
 * A fiber runs up to its next barrier, product or look at a flag. A barrier opens when every thread of the block is
 * at it, that of a warp or a product when every thread of the warp is. Blocks run in turn, each as far as it gets
 * without the others, so that one which does not wait for them reads what is not there yet; one block may be held back
 * until no other can go on. If nobody can, as when threads stand at different points, the run is aborted: a GPU would
 * hang. So is one that wrote past its shared memory. Races within a block between barriers are not found.
 */
#undef _FORTIFY_SOURCE /* it takes a jump to another stack for a mistake */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#define ON_CPU
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct Index { int x; };
static Index threadIdx, blockIdx, gridDim;
static std::vector<std::vector<float>> shared_memory;
#define on_chip ((Fragment *)shared_memory[blockIdx.x].data())

enum State { RUNNING, BARRIER, WARP_BARRIER, PRODUCT, LOOK, LOOKING, ENDED };
/* A context begins a fiber; jumps go on, which unlike contexts need no call of the system. */
struct Fiber {
    ucontext_t start;
    jmp_buf point;
    bool begun;
    State state;
    unsigned operands[6];
    std::vector<char> stack;
};
static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static int current, block_threads;
static void (*body)();

static void stop_at(State state) {
    fibers[current].state = state;
    if (!_setjmp(fibers[current].point)) _longjmp(scheduler, 1);
}
static void enter() {
    body();
    stop_at(ENDED);
}
static void go_on(Fiber &fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.point, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
}
static bool together(int first, int count, State state) {
    for (int i = first; i < first + count; i++)
        if (fibers[i].state != state) return false;
    return true;
}
static void release(int first, int count) {
    for (int i = first; i < first + count; i++) fibers[i].state = RUNNING;
}
/* As far as it gets without the other blocks: whoever must wait for them shows it. Whether it moved at all. */
static bool run_block(int block, int threads) {
    const int first = block * threads;
    bool ever = false;
    for (int i = first; i < first + threads; i++)
        if (fibers[i].state == LOOK) fibers[i].state = LOOKING;
    for (bool moved = true; moved;) {
        moved = false;
        for (current = first; current < first + threads; current++) {
            const State before = fibers[current].state;
            if (before != RUNNING && before != LOOKING) continue;
            threadIdx.x = current - first;
            blockIdx.x = block;
            fibers[current].state = RUNNING;
            go_on(fibers[current]);
            moved = moved || before == RUNNING || fibers[current].state != LOOK;
        }
        if (together(first, threads, BARRIER)) release(first, threads), moved = true;
        for (int warp = first; warp < first + threads; warp += 32)
            if (together(warp, 32, PRODUCT) || together(warp, 32, WARP_BARRIER)) release(warp, 32), moved = true;
        ever = ever || moved;
    }
    return ever;
}
static void run_grid(int blocks, int threads, size_t shared_bytes, int held_back, void (*kernel)()) {
    body = kernel;
    block_threads = threads;
    gridDim.x = blocks;
    /* Not a number: what is read before it is written shows. So does a write to the margin. */
    const size_t floats = shared_bytes / 4, margin = 1024;
    shared_memory.assign(blocks, std::vector<float>(floats + margin, NAN));
    fibers = std::vector<Fiber>(blocks * threads);
    for (Fiber &fiber : fibers) {
        fiber.stack.resize(1 << 15);
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack.data();
        fiber.start.uc_stack.ss_size = fiber.stack.size();
        makecontext(&fiber.start, enter, 0);
        fiber.state = RUNNING;
    }
    const int count = (int)fibers.size();
    while (!together(0, count, ENDED)) {
        bool moved = false;
        for (int block = 0; block < blocks; block++)
            if (block != held_back) moved = run_block(block, threads) || moved;
        if (!moved && (held_back < 0 || !run_block(held_back, threads))) {
            fprintf(stderr, "the blocks wait for each other\n");
            abort();
        }
    }
    for (const std::vector<float> &memory : shared_memory)
        for (size_t i = floats; i < floats + margin; i++)
            if (!std::isnan(memory[i])) {
                fprintf(stderr, "a block wrote past its shared memory\n");
                abort();
            }
}

static void __syncthreads() { stop_at(BARRIER); }
static void __syncwarp() { stop_at(WARP_BARRIER); }
static void arrive(unsigned *flag, unsigned count) { *flag = count; }
static unsigned arrived(const unsigned *flag) { stop_at(LOOK); return *flag; }
static int anew(int v) { return v; }
static float __uint_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned v; memcpy(&v, &f, 4); return v; }
static int min(int a, int b) { return a < b ? a : b; }
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
static uint4 read(const unsigned short *place) {
    if ((size_t)place % 16) { fprintf(stderr, "a read of 16 bytes off their beat\n"); abort(); }
    uint4 v;
    memcpy(&v, place, 16);
    return v;
}
struct Fragment;
static void multiply(float (&sum)[4], const Fragment &a, unsigned b0, unsigned b1);

#include "kernel.cu"

static float half_of(unsigned word, int odd) { return __uint_as_float(odd ? word & 0xffff0000u : word << 16); }
/* The tensor core's product of 16 x 16 by 16 x 8, by the layout of fragments in the PTX manual. */
static void multiply(float (&sum)[4], const Fragment &a, unsigned b0, unsigned b1) {
    Fiber *warp = &fibers[current / 32 * 32];
    unsigned *mine = fibers[current].operands;
    memcpy(mine, a.part, 16);
    mine[4] = b0;
    mine[5] = b1;
    stop_at(PRODUCT);
    const int lane = current % 32;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        for (int k = 0; k < 16; k++) {
            const int place = k % 8 / 2, later = k / 8;
            const float left = half_of(warp[4 * (row % 8) + place].operands[row / 8 + 2 * later], k % 2);
            const float right = half_of(warp[4 * column + place].operands[4 + later], k % 2);
            sum[i] += left * right;
        }
    }
    stop_at(PRODUCT);
}

static void *pointers[8];
static int pitch_given, steps_given;
static void forward_body() {
    lstm_forward((const float *)pointers[0], (const bf16 *)pointers[1], (bf16 *)pointers[2], (float *)pointers[3],
                 (bf16 *)pointers[4], (unsigned *)pointers[5], steps_given);
}
static void backward_body() {
    lstm_backward((const float *)pointers[0], (const float *)pointers[1], (const bf16 *)pointers[2],
                  (const bf16 *)pointers[3], (const float *)pointers[4], (float *)pointers[5], (bf16 *)pointers[6],
                  (unsigned *)pointers[7], pitch_given, steps_given);
}
extern "C" void run(int backward, int blocks, int shared_bytes, int held_back, int pitch, int steps, void **given) {
    for (int i = 0; i < 8; i++) pointers[i] = given[i];
    pitch_given = pitch;
    steps_given = steps;
    run_grid(blocks, THREADS, shared_bytes, held_back, backward ? backward_body : forward_body);
}
