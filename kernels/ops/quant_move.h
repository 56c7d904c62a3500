/* Dequantises rows while moving them. Permutes quantised tokens into expert order as bf16, for a dispatch
 * that sends fewer bits than the GEMM reads. Decodes quantised expert outputs while adding them to their
 * tokens. Quantising on the way into expert order is a step of family move.
 *
 * These are stand-alone operators, not steps: a layer has 16-bit x and y and quantises only x and h
 * (common/moe/layer.h). They are for callers that exchange quantised rows with other ranks before and after
 * the layer.
 *
 * Threads: a call runs on the pool and returns when it is complete. It allocates nothing. */
#pragma once

#include "kernels/core/codec.h"
#include "kernels/ops/permute.h"

struct mf_quantised_rows {
    const struct mf_codec *codec;
    /* stored as the codec stores a matrix of these rows; scale is NULL if the codec has no scales */
    const void *q, *scale;
    float global;
};

/* Returns the bytes of workspace that `threads` threads need. */
size_t mf_quant_move_workspace(size_t width, int threads);
/* `p` defines the rows; its copies are ignored. `to` is bf16 [last - first, width]. Each token is decoded
 * once. */
void mf_permute_decoded(const struct mf_permute *p, const struct mf_quantised_rows *from, size_t width,
                        uint16_t *to, float *workspace, int threads);
/* Does the same as mf_unpermute_rows(), for quantised rows; u->from is ignored. */
void mf_unpermute_decoded(const struct mf_unpermute *u, const struct mf_quantised_rows *from,
                          float *workspace, int threads);
