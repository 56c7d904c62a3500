/* Measures the quality of the CPU kernels: compares a shape's best own pipeline with the machine's lower
 * bound and with the best pipeline that uses oneDNN. Pipelines are opened by name and run as in production.
 */
#pragma once

#include "common/moe/shape.h"
#include "kernels/core/device.h"

struct bench_shape {
    const char *name;
    int32_t model_dim, inter_dim;
    enum mf_dtype dtype_a, dtype_w;
    enum mf_qtype q_type;
    int32_t topk; /* 0 means 8 */
};

/* Kinds of pipelines that are compared. */
enum bench_kind {
    BENCH_OWN,
    BENCH_LIB,
    BENCH_A16,   /* own pipeline; stage 1 reads bf16 and quantises it itself */
    BENCH_SPLIT, /* own pipeline with split-K in stage 1 */
    BENCH_N_KINDS,
};

struct bench_result {
    double us[BENCH_N_KINDS]; /* best end-to-end time; 0 if no pipeline of that kind is offered */
    /* Lower bound: the time to read the active experts' weights and the activations at the measured read
     * bandwidth, or the time of the FLOPs at the measured peak rate, whichever is longer. */
    double floor_us;
    double read_us; /* best time of a plain read of the same weights, interleaved with the own finalists */
    double space;   /* time of the slowest stage-1 step divided by that of the fastest */
    int n_steps;
    char best[BENCH_N_KINDS][512]; /* names of the best pipelines */
};

/* Returns the shapes of the demo, Qwen3-30B-A3B and Qwen3-235B-A22B; *ret_n is their number. */
const struct bench_shape *bench_shapes(size_t *ret_n);

/* Weights of a layer model in every layout, shared by its token counts. */
struct bench_weights;
struct bench_weights *bench_weights_new(struct mf_device *d, const struct bench_shape *b);
struct bench_weights *bench_weights_free(struct bench_weights *w);

/* Measures the steps of one token count: first each stage alone, then the best steps of each block_m and
 * layout end to end. Every call uses other experts, so that the weights are not in the cache. */
int bench_tokens(struct bench_weights *w, int64_t token, struct bench_result *ret);
