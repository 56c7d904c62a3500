/* Steps: one kernel (or library call) that a family offers for a shape on a device class.
 *
 * A step covers zero or more ops; it reads tensor specs (`needs`) and writes tensor specs (`gives`). A step
 * without ops is a conversion of tensor specs, and its time counts as part of the pipeline's time. A step is
 * plain data. Its name is unique within its family and shape and contains its parameters, because production
 * rebuilds a step from its name alone. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/layer.h"
#include "common/moe/tensor_spec.h"

/* clang-format off */
#define MF_STAGE_MAP(X, P)                                        \
    X(P, MOVE, "move")     /* sort, quantise, permute, combine */ \
    X(P, STAGE1, "stage1") /* contains gemm1 */                   \
    X(P, STAGE2, "stage2") /* contains gemm2 */                   \
    X(P, ONE, "one")       /* contains both GEMMs */
/* clang-format on */
MF_NAMES_DECLARE(mf_stage, MF_STAGE_, MF_STAGE_MAP);

#define MF_STEP_NAME_MAX         160
#define MF_FAMILY_NAME_MAX       32
#define MF_STEP_TENSOR_SPECS_MAX 8

struct mf_step {
    char name[MF_STEP_NAME_MAX]; /* [A-Za-z0-9_.-]+ */
    char family[MF_FAMILY_NAME_MAX];
    enum mf_stage stage;
    mf_ops covers;
    int32_t block_m; /* rows of an expert block; 0 if irrelevant to the step */
    int32_t ksplit;  /* split-K factor; 0: none */
    int32_t n_needs, n_gives;
    struct mf_tensor_spec needs[MF_STEP_TENSOR_SPECS_MAX];
    struct mf_tensor_spec gives[MF_STEP_TENSOR_SPECS_MAX];
    uint64_t workspace_bytes;
    double flops; /* FLOPs of this step, for active experts only */
    double bytes; /* minimum traffic in bytes, for active experts only */
    double saved; /* memory traffic saved by fusing these ops, in bytes; 0 if none or unknown */
    /* maximum relative difference of a row between two runs; 0: the runs are bitwise equal */
    double reorder_tolerance;
    /* true: AITER's production runs this step, either by its name or as a helper of a named kernel */
    bool aiter;
    /* true: the step belongs to a Python family or another program, so libfmoe cannot dispatch it */
    bool foreign;
};

/* Compares steps by family, then by name. */
int mf_step_compare(const struct mf_step *a, const struct mf_step *b);

/* Copies a name without the factor of split-K at its end: "name_sk4" becomes "name". Returns the factor, or 0
 * if the name has none. The names of AITER's kernels in tables have no factor. Names that are too long for
 * `ret` are truncated and keep their factor. */
int32_t mf_step_drop_ksplit(const char *name, char ret[MF_STEP_NAME_MAX]);

/* Returns a JSON object as a heap string that the caller frees; NULL if memory runs out. */
char *mf_step_print(const struct mf_step *step);
/* Reads a step from JSON. -EINVAL: a field is missing or invalid; *ret_field (static text) names the first
 * such field. The stage must match `covers`. Unknown members are ignored. */
int mf_step_from_json(const cJSON *json, struct mf_step *ret, const char **ret_field);
