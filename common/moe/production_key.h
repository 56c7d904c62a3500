/* Computes the table key that AITER's production looks up for a requested layer.
 *
 * fused_moe() pads the token count to its bucket. For 1x32 weights it also chooses the activation format from
 * the weight format, the activation function, the token count and the order of gate and up in w1 (ROCm/aiter,
 * fused_moe.py: get_padded_M, fused_moe_). A row under any other key is never used, however fast it is.
 *
 * A table does not record the order of gate and up. With fp4 weights, this module assumes interleaved rows
 * for fp8 activations and for bf16 activations below the bound, and separated rows otherwise, unless the
 * shape's gate_up says so. Applying the function to its own result therefore changes nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"

/* AITER's environment variables that influence the choice. */
struct mf_production_env {
    int64_t bf16_fp8_bound; /* AITER_BF16_FP8_MOE_BOUND, in tokens */
    bool situv2_a8w4;       /* AITER_SITUV2_A8W4 */
    bool situv2_a4w4;       /* AITER_SITUV2_A4W4; without effect if situv2_a8w4 is set */
};
/* The values if the variables are unset. */
#define MF_PRODUCTION_ENV_INITIAL \
    {                             \
        .bf16_fp8_bound = 256     \
    }

/* Returns 0 if production looks up the shape itself. Returns 1 if production looks up *ret instead; `why`
 * then names the rule. env NULL: the variables are unset. */
int mf_production_shape(const struct mf_shape *requested, const struct mf_production_env *env,
                        struct mf_shape *ret, char *why, size_t why_cap);
/* Like mf_production_shape, but for a table row. A row can serve every token count that production pads to
 * the count of the row. Returns 0 if a call with at least one of these token counts looks up the row.
 * Example: a row of 256 tokens with bf16 activations serves 129 to 255 tokens, although a call with 256
 * tokens looks up another key. */
int mf_production_row(const struct mf_shape *row, const struct mf_production_env *env, struct mf_shape *ret,
                      char *why, size_t why_cap);
/* Returns an assignment such as "AITER_SITUV2_A8W4=1" with which production looks up the row, or NULL if none
 * of the variables has such a value. */
const char *mf_production_setting(const struct mf_shape *row);
