/* The key that AITER's production looks a layer up by, of the key that somebody asks for.
 *
 * fused_moe() pads the token count to its bucket, and for 1x32 weights it chooses the format of the activations itself
 * (ROCm/aiter, fused_moe.py: get_padded_M, fused_moe_): by the weights, the activation function, the token count and the
 * order of gate and up in w1. A row under another key is never met, however fast it is.
 *
 * A table does not say the order of gate and up. Beside fp4 weights, activations of fp8, and of bf16 below 256 tokens,
 * are taken to be for interleaved ones, and all else for separated ones; so a key that is computed computes itself. The
 * environment variables that move the choice are taken as unset. */
#pragma once

#include <stddef.h>

#include "common/moe/shape.h"

/* 0: production asks for the shape as it is. 1: it asks for *ret in its place, and why says by which rule. */
int mf_production_shape(const struct mf_shape *asked, struct mf_shape *ret, char *why, size_t why_cap);
/* The same of a table's row, which is for every count that pads to its own: 0 as soon as one of them asks for it. So a row of
 * 256 tokens with bf16 activations is met, by 129 to 255 tokens, though 256 tokens ask for another. */
int mf_production_row(const struct mf_shape *row, struct mf_shape *ret, char *why, size_t why_cap);
