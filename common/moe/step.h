/* A step: one kernel (or call) that a family offers for a shape on a device class.
 *
 * It covers zero or more ops, needs some tensor specs and gives others. A step that covers none only turns
 * tensor specs into others, and is paid for. A step is a value; its name is unique within its family and shape,
 * and carries its parameters: production rebuilds a step from its name alone. */
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
    X(P, STAGE1, "stage1") /* holds gemm1 */                      \
    X(P, STAGE2, "stage2") /* holds gemm2 */                      \
    X(P, ONE, "one")       /* holds both */
/* clang-format on */
MF_NAMES_DECLARE(mf_stage, MF_STAGE_, MF_STAGE_MAP);

#define MF_STEP_NAME_MAX         160
#define MF_FAMILY_NAME_MAX       16
#define MF_STEP_TENSOR_SPECS_MAX 8

struct mf_step {
    char name[MF_STEP_NAME_MAX]; /* [A-Za-z0-9_.-]+ */
    char family[MF_FAMILY_NAME_MAX];
    enum mf_stage stage;
    mf_ops covers;
    int32_t block_m; /* rows of an expert block; 0 when the step does not care */
    int32_t ksplit;  /* 0: none */
    int32_t n_needs, n_gives;
    struct mf_tensor_spec needs[MF_STEP_TENSOR_SPECS_MAX];
    struct mf_tensor_spec gives[MF_STEP_TENSOR_SPECS_MAX];
    uint64_t workspace_bytes;
    double flops; /* of this step, active experts only */
    double bytes; /* least traffic of this step, active experts only */
    double saved; /* traffic that its ops in one kernel save beside a kernel for each; 0: none, or unknown */
    double reorder_tolerance; /* 0: two runs agree bitwise; else largest relative row difference */
    bool aiter;               /* AITER's production runs it by this name, or runs it around what it names */
};

/* A JSON object as text on the heap, which the caller frees; NULL when out of memory. */
char *mf_step_print(const struct mf_step *step);
/* -EINVAL with *ret_field (static text) naming the first field that is missing or wrong; a stage is wrong when
 * it is not the one that covers makes it. Members that are no field are ignored. */
int mf_step_from_json(const cJSON *json, struct mf_step *ret, const char **ret_field);
