/* Dequantises rows while moving them. One operator permutes quantised tokens into expert order as bf16, so
 * that a dispatch between ranks sends fewer bits than the GEMM reads. The other operator decodes quantised
 * expert outputs while adding them to their tokens. The opposite, quantising rows while permuting them, is a
 * step of family move.
 *
 * These are stand-alone operators, not steps: a layer has 16-bit x and y and quantises only x and h
 * (common/moe/layer.h). These operators are for callers that exchange quantised rows with other ranks before
 * and after the layer.
 *
 * A call runs on the threads of the CPU pool, returns when all rows are written, and allocates nothing. */
#pragma once

#include "kernels/core/codec.h"
#include "kernels/ops/permute.h"

struct mf_quantised_rows {
    const struct mf_codec *codec;
    /* elements and scales, in the form in which the codec stores a matrix; scale is NULL for codecs without
     * scales */
    const void *q, *scale;
    float global;
};

/* Returns the bytes of workspace that `threads` threads need. */
size_t mf_quant_move_workspace(size_t width, int threads);
/* Permutes and dequantises the rows that `p` describes; p->copies is ignored. `to` is bf16 [last - first,
 * width]. Each token is decoded once. */
void mf_permute_decoded(const struct mf_permute *p, const struct mf_quantised_rows *from, size_t width,
                        uint16_t *to, float *workspace, int threads);
/* Does the same as mf_unpermute_rows(), for quantised rows; u->from is ignored. */
void mf_unpermute_decoded(const struct mf_unpermute *u, const struct mf_quantised_rows *from,
                          float *workspace, int threads);
