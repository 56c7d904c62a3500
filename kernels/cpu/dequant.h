/* Weights of codes as bf16 in panels of 32 rows (kernels/core/layout.h), each value rounded once: for kernels that read no codes.
 *
 * The unit of work is a strip: 32 rows of one expert, all of K. Threads take strips as they like; nothing is shared. */
#pragma once

#include "kernels/core/tensors.h"
#include "kernels/cpu/ops.h"

#define MF_DEQUANT_ROWS 32

struct mf_dequant {
    const struct mf_cpu_ops *ops;
    const struct mf_codec *codec; /* one with scales */
    int panel;                    /* of the codes: 1 (row), 16, 32 */
    size_t N, K;                  /* of an expert; N a multiple of the strip, K of 32 */
    struct mf_tensor_ref from;    /* the weight's parts, all experts */
    uint16_t *to;                 /* [E, N, K] */
};

/* Bytes of room for one thread, 64-byte aligned. */
size_t mf_dequant_room(void);
/* The strip that begins at row n0 of that expert. */
void mf_dequant_strip(const struct mf_dequant *d, size_t expert, size_t n0, void *room);
