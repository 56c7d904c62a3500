/* The layer of a configuration file of vLLM or SGLang. The file's name contains the number of experts, the
 * intermediate size of a rank and the quantisation; options add the rest. Each call prints its own error
 * message and returns the exit code, or 0. */
#pragma once

#include "cli/support/model_arg.h"
#include "common/base/opts.h"
#include "common/table/triton/triton_file.h"

struct mf_bench_layer {
    struct mf_model_arg model; /* model.model NULL: none */
    const char *layer;         /* pattern of shape columns; NULL: none */
    const char *format;        /* "vllm" or "sglang"; NULL: guessed from the file */
    int64_t tp, ep;
};
#define MF_BENCH_LAYER_DEFAULTS \
    {                           \
        .tp = 1, .ep = 1        \
    }
#define MF_BENCH_LAYER_OPTS 5
void mf_bench_layer_opts(struct mf_bench_layer *o, struct mf_opt opts[MF_BENCH_LAYER_OPTS]);

/* Computes the layer, with token count 1, on a device with architecture gfx. Fails if the file's
 * name and the options contradict each other or do not determine the layer. */
int mf_bench_layer_read(const struct mf_bench_layer *o, const struct mf_triton_file *file, const char *gfx,
                        struct mf_shape *ret);
