/* The row of AITER's tuned table for a pipeline: what the coordinator exports, and what a runner checks
 * through aiter.fused_moe before it times a winner again. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>

#include "common/moe/device_class.h"
#include "common/moe/shape.h"
#include "common/moe/step.h"

/* The members of struct mf_step that the row depends on. */
struct mf_aiter_step {
    const char *name;
    mf_ops covers;
    int32_t ksplit;
    bool aiter;
};

/* AITER's columns without times and errors. */
struct mf_aiter_row {
    int32_t block_m, ksplit, flat;                             /* block_m 1: a pipeline without blocks */
    char kernel1[MF_STEP_NAME_MAX], kernel2[MF_STEP_NAME_MAX]; /* kernel2 "": one kernel for both GEMMs */
    bool run_1stage, xbf16;
};

/* block_m: of the pipeline; 0: none. Returns -ENOENT if no step covers gemm1, or no step covers gemm2. */
int mf_aiter_row(const struct mf_aiter_step *steps, size_t n, int32_t block_m, struct mf_aiter_row *ret);
/* Returns the row as an object with the names of AITER's columns: the key and the columns of `row`. NULL if
 * out of memory. */
cJSON *mf_aiter_row_json(const struct mf_device_class *class, const struct mf_shape *shape,
                         const struct mf_aiter_row *row);
