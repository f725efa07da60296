/* One pass over a chunk of float32 logits: f, logsumexp, loss, and dL/dz in place of the logits.
 *
 * The plain torch form of the same pass is `uncork/ops/torch_pass.py`; this file only makes it fast.
 * Rows come in groups of K (mixture components of one token). Tokens are split over threads; each thread
 * has its own sums for the function's parameters, so the result does not depend on timing.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { IDENTITY = 0, SCALE = 1, TABLE = 2 };
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    /* Logits in, gradients out (when row_scale is given): tokens x components x words. */
    float *z;
    int64_t tokens, components, words;
    /* Targets: a word per token (negative: ignored), or a dense row per token (components == 1). */
    const int64_t *target;
    const float *dense;
    /* Factor of the token's negative log-likelihood (its class weight). */
    const float *token_weight;
    /* Upstream gradient of each token's loss, or NULL for the loss alone. */
    const float *row_scale;
    const float *log_prior;   /* tokens x components, or NULL */
    float z_loss;
    int32_t kind;
    float scale;              /* SCALE */
    const float *value, *slope; /* TABLE */
    int64_t intervals;
    double bound;
    float *loss;              /* tokens */
    float *d_log_prior;       /* tokens x components, or NULL */
    double *sums;             /* threads x (1 or 2 x intervals), or NULL */
    int32_t threads;
} Pass;

typedef struct { const Pass *pass; int64_t begin, end; double *sums; int failed; } Share;

/* exp for x <= 0, relative error about 1e-7; the polynomial is that of Cephes. A function that is not
 * increasing makes x positive: right up to 88, then infinite, so that the loss shows it. */
INLINE float exp_nonpositive(float x) {
    float n = rintf(x * 1.44269504088896341f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    /* Clamped before the conversion: NaN and -inf must not make an undefined integer. */
    float m = n > -126.0f ? n : -126.0f;
    m = m < 127.0f ? m : 127.0f;
    union { int32_t i; float f; } two_to_n = {((int32_t)m + 127) * (1 << 23)};
    float e = x < -87.0f ? 0.0f : p * two_to_n.f;
    return x > 88.0f ? INFINITY : e;
}

/* NaN compares false and lands in interval 0. */
INLINE int32_t interval(float z, float bound, float step, float last) {
    float u = (z + bound) / step;
    u = u > 0.0f ? u : 0.0f;
    u = u < last ? u : last;
    return (int32_t)u;
}

INLINE float offset_in(float z, int32_t i, float half, float step) {
    return z - ((float)i - half) * step;
}

INLINE float apply(const Pass *p, int kind, float z) {
    if (kind == SCALE) return p->scale * z;
    if (kind == TABLE) {
        float step = (float)(2.0 * p->bound / (double)p->intervals), half = 0.5f * (float)p->intervals;
        int32_t i = interval(z, (float)p->bound, step, (float)(p->intervals - 1));
        return p->value[i] + p->slope[i] * offset_in(z, i, half, step);
    }
    return z;
}

INLINE float row_max(const float *z, int64_t words) {
    float top = -INFINITY;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < words; j++) top = z[j] > top ? z[j] : top;
    return top;
}

/* e_j = exp(f(z_j) - top), where top = f(highest z), the highest f since f is increasing; returns their sum. */
INLINE double exponentials(const Pass *p, int kind, const float *restrict z, float *restrict e,
                           int32_t *restrict index, float highest, float top) {
    const float step = (float)(2.0 * p->bound / (double)p->intervals), half = 0.5f * (float)p->intervals;
    const float bound = (float)p->bound, last = (float)(p->intervals - 1), scale = p->scale;
    const float *restrict value = p->value, *restrict slope = p->slope;
    double total = 0.0;
    /* Blocks keep the float sum short; the double one carries the row. */
    for (int64_t start = 0; start < p->words; start += 1024) {
        int64_t stop = start + 1024 < p->words ? start + 1024 : p->words;
        float part = 0.0f;
        int32_t ones = 0;
#pragma omp simd reduction(+ : part, ones)
        for (int64_t j = start; j < stop; j++) {
            float f = z[j];
            if (kind == TABLE) {
                int32_t i = interval(z[j], bound, step, last);
                index[j] = i;
                f = value[i] + slope[i] * offset_in(z[j], i, half, step);
            }
            /* Scaled after the subtraction: a fused multiply-add of the highest would not cancel to 0. */
            e[j] = exp_nonpositive(kind == SCALE ? scale * (z[j] - highest) : f - top);
            /* The highest are 1 exactly; beside them a float would forget the words of a confident token. */
            part += e[j] == 1.0f ? 0.0f : e[j];
            ones += e[j] == 1.0f;
        }
        total += (double)part + ones;
    }
    return total;
}

/* g_j = a e_j - b t_j (t dense, or c at the target word alone); z becomes g f'(z). */
INLINE void write_gradient(const Pass *p, int kind, float *restrict z, const float *restrict e,
                           const int32_t *restrict index, double share, const float *restrict dense,
                           float b, int64_t target, double c, double *restrict sums) {
    const float a = (float)share;
    const float step = (float)(2.0 * p->bound / (double)p->intervals), half = 0.5f * (float)p->intervals;
    const float z_target = target >= 0 ? z[target] : 0.0f;
    const float *restrict slope = p->slope;
    if (kind == TABLE) {
        for (int64_t j = 0; j < p->words; j++) {
            float g = a * e[j];
            if (dense) g -= b * dense[j];
            int32_t i = index[j];
            if (sums) {
                sums[2 * i] += g;
                /* A word masked by z = -inf has no g, and zero times its offset would not be a number. */
                if (g != 0.0f) sums[2 * i + 1] += g * offset_in(z[j], i, half, step);
            }
            z[j] = g * slope[i];
        }
    } else {
        float factor = kind == SCALE ? p->scale : 1.0f;
        double along = 0.0; /* terms of either sign, which cancel: float32 would keep too few digits */
#pragma omp simd reduction(+ : along)
        for (int64_t j = 0; j < p->words; j++) {
            float g = a * e[j];
            if (dense) g -= b * dense[j];
            if (kind == SCALE) along += g != 0.0f ? (double)g * z[j] : 0.0;
            z[j] = g * factor;
        }
        if (kind == SCALE && sums) sums[0] += along;
    }
    if (target < 0 || (float)c == 0.0f) return; /* a word of weight 0 may be masked, and 0 times its logit no number */
    /* p - 1 of a sure word: in double, or nothing would be left of it. */
    const double exact = share * e[target] - c, beyond = exact - (double)(a * e[target]);
    const float g = (float)exact;
    if (kind == TABLE) {
        int32_t i = index[target];
        z[target] = g * slope[i];
        if (sums) {
            sums[2 * i] += beyond;
            sums[2 * i + 1] += beyond * offset_in(z_target, i, half, step);
        }
    } else {
        z[target] = g * (kind == SCALE ? p->scale : 1.0f);
        if (kind == SCALE && sums) sums[0] += beyond * z_target;
    }
}

/* One token: its K rows, the responsibilities between them, and the K gradients. */
INLINE void token(const Pass *p, int kind, int64_t n, float *e, int32_t *index, double *work, double *sums) {
    const int64_t K = p->components, V = p->words;
    float *z = p->z + n * K * V;
    const float *dense = p->dense ? p->dense + n * V : NULL;
    const int64_t target = dense ? -1 : p->target[n];
    const int ignored = !dense && target < 0;
    double *lse = work, *joint = work + K, *total = work + 2 * K;
    double top_joint = -INFINITY, squares = 0.0, mass = 0.0, along = 0.0;

    if (ignored) {
        p->loss[n] = 0.0f;
        if (p->row_scale) memset(z, 0, sizeof(float) * K * V);
        if (p->d_log_prior) memset(p->d_log_prior + n * K, 0, sizeof(float) * K);
        return;
    }
    for (int64_t k = 0; k < K; k++) {
        float highest = row_max(z + k * V, V), top = apply(p, kind, highest);
        total[k] = exponentials(p, kind, z + k * V, e + k * V, index + k * V, highest, top);
        lse[k] = top + log(total[k]);
        squares += lse[k] * lse[k];
        if (!dense) {
            /* Less the top first: the logarithm of a sure word is small beside it. */
            joint[k] = ((double)apply(p, kind, z[k * V + target]) - top) - log(total[k]);
            if (p->log_prior) joint[k] += p->log_prior[n * K + k];
            if (joint[k] > top_joint) top_joint = joint[k];
        }
    }
    double log_p = 0.0;
    if (dense) { /* components == 1; log_p = sum_j t_j (f_j - lse) */
        for (int64_t j = 0; j < V; j++) {
            if (dense[j] == 0.0f) continue;
            mass += dense[j];
            along += (double)dense[j] * apply(p, kind, z[j]);
        }
        log_p = along - mass * lse[0];
        if (p->log_prior) log_p += mass * p->log_prior[n];
    } else if (K == 1) {
        log_p = joint[0];
    } else {
        double sum = 0.0;
        if (top_joint == -INFINITY) top_joint = 0.0; /* a word masked in all components, or NaN */
        for (int64_t k = 0; k < K; k++) sum += exp(joint[k] - top_joint);
        log_p = top_joint + log(sum);
    }
    const double weight = p->token_weight[n];
    p->loss[n] = (float)((weight == 0.0 ? 0.0 : -weight * log_p) + p->z_loss * squares / K);
    if (!p->row_scale) return;

    const double scale = p->row_scale[n];
    for (int64_t k = 0; k < K; k++) {
        double share = dense ? mass : (K == 1 ? 1.0 : exp(joint[k] - log_p));
        if (K > 1 && log_p == -INFINITY) share = 0.0; /* masked in all components: none is responsible */
        /* When all weigh nothing, the scale of a mean is 1/0. */
        double c = weight == 0.0 ? 0.0 : scale * weight * share;
        double a = (c + (p->z_loss == 0.0f ? 0.0 : scale * p->z_loss * 2.0 * lse[k] / K)) / total[k];
        if (p->d_log_prior) p->d_log_prior[n * K + k] = (float)-c;
        write_gradient(p, kind, z + k * V, e + k * V, index + k * V, a, dense,
                       (float)(scale * weight), target, c, sums);
    }
}

static void *run_share(void *argument) {
    Share *share = argument;
    const Pass *p = share->pass;
    const int64_t row = p->components * p->words;
    float *e = malloc(sizeof(float) * row);
    int32_t *index = malloc(p->kind == TABLE ? sizeof(int32_t) * row : 1);
    double *work = malloc(sizeof(double) * 3 * p->components);
    share->failed = !e || !index || !work;
    for (int64_t n = share->begin; !share->failed && n < share->end; n++) {
        if (p->kind == TABLE) token(p, TABLE, n, e, index, work, share->sums);
        else if (p->kind == SCALE) token(p, SCALE, n, e, index, work, share->sums);
        else token(p, IDENTITY, n, e, index, work, share->sums);
    }
    free(e);
    free(index);
    free(work);
    return NULL;
}

/* 0 when done, 1 when memory ran out. */
int uncork_pass(const Pass *p) {
    enum { MOST = 256 };
    Share shares[MOST];
    pthread_t threads[MOST];
    int running[MOST] = {0};
    int count = p->threads < MOST ? p->threads : MOST;
    const int64_t stride = p->kind == TABLE ? 2 * p->intervals : 1;
    int failed = 0;
    for (int t = 0; t < count; t++) {
        shares[t] = (Share){p, p->tokens * t / count, p->tokens * (t + 1) / count,
                            p->sums ? p->sums + t * stride : NULL, 0};
        if (t > 0) running[t] = pthread_create(&threads[t], NULL, run_share, &shares[t]) == 0;
    }
    for (int t = 0; t < count; t++) {
        if (running[t]) pthread_join(threads[t], NULL);
        else run_share(&shares[t]); /* the caller's own share, and any a thread could not be had for */
        failed |= shares[t].failed;
    }
    return failed;
}
