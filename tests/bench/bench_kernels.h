/* How good the CPU kernels are: the best own pipeline of a shape against the floor of the machine and against the
 * best pipeline with oneDNN in it. Pipelines are opened by name and run as production runs them. */
#pragma once

#include "common/shape.h"
#include "kernels/device.h"

struct bench_shape {
    const char *name;
    int32_t model_dim, inter_dim;
    enum mf_dtype dtype_a, dtype_w;
    enum mf_qtype q_type;
};

struct bench_result {
    double own_us, lib_us; /* best end to end; lib_us is 0 where lib offers nothing */
    double floor_us;       /* weights of active experts and activations at the measured read bandwidth, or
                                       the arithmetic at the measured peak, whichever is longer */
    double space;          /* worst over best of the stage-1 steps */
    int n_steps;
    char own[512]; /* names of the best pipeline */
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
