/* Dequantises weights to bf16 in panels of 32 rows (kernels/core/layout.h), each value rounded once, for
 * kernels that read bf16 weights only.
 *
 * The unit of work is a strip: 32 rows of one expert over all of K. Strips are independent: threads may
 * process them in any order. */
#pragma once

#include "kernels/core/tensors.h"
#include "kernels/cpu/ops.h"

#define MF_DEQUANT_ROWS 32

struct mf_dequant {
    const struct mf_cpu_ops *ops;
    const struct mf_codec *codec; /* a codec with scales */
    int panel;                    /* of the quantised weights: 1 (row), 16, 32 */
    size_t N, K;                  /* of one expert; N is a multiple of MF_DEQUANT_ROWS, K of 32 */
    struct mf_tensor_ref from;    /* the weight's parts, all experts */
    uint16_t *to;                 /* [E, N, K] */
};

/* Bytes of workspace per thread. The caller aligns it to 64 bytes. */
size_t mf_dequant_workspace(void);
/* Dequantises the strip that begins at row n0 of the expert. */
void mf_dequant_strip(const struct mf_dequant *d, size_t expert, size_t n0, void *workspace);
