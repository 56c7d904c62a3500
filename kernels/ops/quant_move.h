/* Rows that leave their format on the way: quantised tokens into expert order as bf16, where a dispatch sends fewer bits
 * than the GEMM takes; and quantised expert outputs back to their tokens, decoded while they are summed. The other way
 * round, quantising on the way into expert order, is a step of family move.
 *
 * These two are operators and no steps: a layer takes x in 16 bits and gives y in 16 bits, and quantises x and h and nothing
 * else (common/moe/layer.h), so that no tensor spec between its steps is one that a later step wants decoded. They are for who exchanges
 * coded rows with other ranks before and behind the layer.
 *
 * Thread rule: a call runs on the pool and returns when it is done; nothing is allocated. */
#pragma once

#include "kernels/core/codec.h"
#include "kernels/ops/permute.h"

struct mf_coded_rows {
    const struct mf_codec *codec;
    const void *q, *scale; /* as the codec stores a matrix of these rows; scale NULL for a codec without */
    float global;
};

/* Bytes for so many threads. */
size_t mf_quant_move_workspace(size_t width, int threads);
/* p says where rows go; its copies are not used. `to` is bf16 [last - first, width]. A token is decoded once. */
void mf_permute_decoded(const struct mf_permute *p, const struct mf_coded_rows *from, size_t width,
                        uint16_t *to, float *workspace, int threads);
/* As mf_unpermute_rows(), of coded rows: u->from is not used. */
void mf_unpermute_decoded(const struct mf_unpermute *u, const struct mf_coded_rows *from, float *workspace,
                          int threads);
