/* How good the CPU kernels are: the best own pipeline of a shape against the floor of the machine and against the
 * best pipeline with oneDNN in it. Pipelines are opened by name and run as production runs them. */
#pragma once

#include "common/moe/shape.h"
#include "kernels/core/device.h"

struct bench_shape {
    const char *name;
    int32_t model_dim, inter_dim;
    enum mf_dtype dtype_a, dtype_w;
    enum mf_qtype q_type;
    int32_t topk; /* 0: 8 */
};

/* What pipelines are told apart by. */
enum bench_kind {
    BENCH_OWN,
    BENCH_LIB,
    BENCH_A16,   /* of ours, with stage 1 that takes bf16 and quantises it itself */
    BENCH_SPLIT, /* of ours, with K of stage 1 in parts */
    BENCH_N_KINDS,
};

struct bench_result {
    double us[BENCH_N_KINDS]; /* best end to end; 0 where nothing of that kind is offered */
    double floor_us;          /* weights of active experts and activations at the measured read bandwidth, or
                                       the arithmetic at the measured peak, whichever is longer */
    double read_us; /* the same weights read and nothing else, in turns with the finalists of ours: best */
    double space;   /* worst over best of the stage-1 steps */
    int n_steps;
    char best[BENCH_N_KINDS][512]; /* names of those pipelines */
};

/* The shapes of the demo, Qwen3-30B-A3B and Qwen3-235B-A22B; *ret_n of them. */
const struct bench_shape *bench_shapes(size_t *ret_n);

/* Weights of a layer model in every layout, made once for its ladder. */
struct bench_weights;
struct bench_weights *bench_weights_new(struct mf_device *d, const struct bench_shape *b);
struct bench_weights *bench_weights_free(struct bench_weights *w);

/* Searches the steps of one token count: each stage by itself, then the best of each block and layout end to end.
 * Every call has its experts shifted, so that it finds its weights cold. */
int bench_tokens(struct bench_weights *w, int64_t token, struct bench_result *ret);
