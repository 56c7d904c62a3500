/* Dequantises weights to bf16 in panels of 32 rows (kernels/core/layout.h), for kernels that read only bf16
 * weights. Each value is rounded once.
 *
 * The unit of work is a strip: 32 rows of one expert over all of K. Strips are independent, so threads may
 * process them in any order. */
#pragma once

#include "kernels/core/tensors.h"
#include "kernels/cpu/ops.h"

#define MF_DEQUANT_ROWS 32

struct mf_dequant {
    const struct mf_cpu_ops *ops;
    const struct mf_codec *codec; /* must have scales */
    int panel;                    /* panel width of the quantised weights: 1 (row), 16, 32 */
    /* size of one expert's weight; N is a multiple of MF_DEQUANT_ROWS, K of 32 */
    size_t N, K;
    struct mf_tensor_ref from; /* the weight's parts, all experts */
    uint16_t *to;              /* [E, N, K] */
};

/* Returns the bytes of workspace per thread. The caller aligns the workspace to 64 bytes. */
size_t mf_dequant_workspace(void);
/* Dequantises the strip that begins at row n0 of the expert. */
void mf_dequant_strip(const struct mf_dequant *d, size_t expert, size_t n0, void *workspace);
