/* Configuration of a Triton fused-MoE kernel: block sizes, warps and stages, as vLLM and SGLang read them
 * from a JSON object.
 *
 * The kernels' step names contain the same values: `triton_m64_n128_k64_g8_w4_s3`, with `_tma` for USE_TMA.
 * An SGLang step whose second GEMM has a configuration of its own appends `-down_m64_n128_k64_g8_w4_s3`. The
 * step `default` is the framework's own choice; it has no configuration. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/names.h"
#include "common/moe/consumer.h"
#include "common/moe/step.h"

/* Fields in the order of the files. SPLIT_K and the fields after it are rare: backends of AMD and Intel, and
 * values that the kernels ignore. */
/* clang-format off */
#define MF_TRITON_MAP(X, P)              \
    X(P, BLOCK_M, "BLOCK_SIZE_M")        \
    X(P, BLOCK_N, "BLOCK_SIZE_N")        \
    X(P, BLOCK_K, "BLOCK_SIZE_K")        \
    X(P, GROUP_M, "GROUP_SIZE_M")        \
    X(P, WARPS, "num_warps")             \
    X(P, STAGES, "num_stages")           \
    X(P, TMA, "USE_TMA")                 \
    X(P, SPLIT_K, "SPLIT_K")             \
    X(P, WAVES, "waves_per_eu")          \
    X(P, MFMA, "matrix_instr_nonkdim")   \
    X(P, KPACK, "kpack")                 \
    X(P, CTAS, "num_ctas")               \
    X(P, GRF, "grf_mode")
/* clang-format on */
MF_NAMES_DECLARE(mf_triton, MF_TRITON_, MF_TRITON_MAP);

struct mf_triton_config {
    uint32_t set; /* bit i is set if the configuration has field i */
    int32_t value[MF_TRITON_N_];
};

static inline bool mf_triton_has(const struct mf_triton_config *c, enum mf_triton field)
{
    return c->set & (1u << field);
}
bool mf_triton_config_equal(const struct mf_triton_config *a, const struct mf_triton_config *b);

/* True if the kernels cannot be launched without the field. */
bool mf_triton_is_required(enum mf_triton field);
/* True if the field is an option of AMD's or Intel's Triton backend, which NVIDIA's backend refuses. */
bool mf_triton_is_backend_option(enum mf_triton field);
/* Reads one field from JSON. -EINVAL: the value is invalid; *ret_expected (static text) describes valid
 * values. */
int mf_triton_value(enum mf_triton field, const cJSON *value, int32_t *ret, const char **ret_expected);
cJSON *mf_triton_config_json(const struct mf_triton_config *c);

/* The parameters of a step. */
struct mf_triton_step {
    struct mf_triton_config up; /* both GEMMs, or only the first one if has_down */
    bool has_down;
    struct mf_triton_config down; /* the second GEMM */
};
#define MF_TRITON_DEFAULT MF_CONSUMER_DEFAULT_STEP

/* Parses a step's name. -ENOENT: the name is `default`. -EINVAL: another name, a required value is missing,
 * or a value is out of range. */
int mf_triton_step_parse(const char *name, struct mf_triton_step *ret);
void mf_triton_step_print(const struct mf_triton_step *step, char buf[MF_STEP_NAME_MAX]);
