/* Computes the table key that AITER's production looks up for a requested layer.
 *
 * fused_moe() pads the token count to its bucket. For 1x32 weights it also chooses the activation format from
 * the weight format, the activation function, the token count and the order of gate and up in w1 (ROCm/aiter,
 * fused_moe.py: get_padded_M, fused_moe_). A row under any other key is never used, however fast it is.
 *
 * A table does not record the order of gate and up. With fp4 weights, this module assumes interleaved rows
 * for fp8 activations and for bf16 activations below 256 tokens, and separated rows otherwise. Applying the
 * function to its own result therefore changes nothing. The environment variables that influence the choice
 * are assumed to be unset. */
#pragma once

#include <stddef.h>

#include "common/moe/shape.h"

/* Returns 0 if production looks up the shape itself. Returns 1 if production looks up *ret instead; `why`
 * then names the rule. */
int mf_production_shape(const struct mf_shape *requested, struct mf_shape *ret, char *why, size_t why_cap);
/* Like mf_production_shape, but for a table row. A row can serve every token count that production pads to
 * the count of the row. Returns 0 if a call with at least one of these token counts looks up the row.
 * Example: a row of 256 tokens with bf16 activations serves 129 to 255 tokens, although a call with 256
 * tokens looks up another key. */
int mf_production_row(const struct mf_shape *row, struct mf_shape *ret, char *why, size_t why_cap);
