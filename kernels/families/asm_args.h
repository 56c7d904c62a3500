/* How AITER's prebuilt kernels are called: the argument blocks, the grids, and the pick among kernels of no name.
 *
 * Source of the contract: ROCm/aiter, csrc/py_itfs_cu/asm_fmoe.cu and asm_moe_2stage.cu. An argument takes a slot of 16
 * bytes, little endian: an address of 8 or a number of 4, the rest zero. A one-stage block has 28 slots, a stage 1 block
 * 23. Numbers have 32 bits: a stride that needs more is refused, not cut. Strides are in bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "kernels/families/asm_manifest.h"

#define MF_ASM_SLOT         16
#define MF_ASM_ONE_BYTES    448
#define MF_ASM_STAGE1_BYTES 368
#define MF_ASM_THREADS      256 /* of a work group */

/* Slots of the one-stage block. */
/* clang-format off */
enum mf_asm_one_slot {
    MF_ASM_ONE_O, MF_ASM_ONE_X, MF_ASM_ONE_GU, MF_ASM_ONE_XC, MF_ASM_ONE_D, MF_ASM_ONE_XQ, MF_ASM_ONE_GUQ,
    MF_ASM_ONE_DQ, MF_ASM_ONE_SMQ, MF_ASM_ONE_STP, MF_ASM_ONE_SW, MF_ASM_ONE_SEP, MF_ASM_ONE_DIM,
    MF_ASM_ONE_INTER_DIM, MF_ASM_ONE_TOKEN_CNT, MF_ASM_ONE_EPRT_CNT, MF_ASM_ONE_XS, MF_ASM_ONE_GUS, MF_ASM_ONE_DS,
    MF_ASM_ONE_OS, MF_ASM_ONE_EGUS, MF_ASM_ONE_EDS, MF_ASM_ONE_EGUQS, MF_ASM_ONE_EDQS, MF_ASM_ONE_ESMQS,
    MF_ASM_ONE_TOPK, MF_ASM_ONE_TOTAL_TGS, MF_ASM_ONE_PS_DENO,
};
/* Slots of the stage 1 block. */
enum mf_asm_stage1_slot {
    MF_ASM_S1_O, MF_ASM_S1_X, MF_ASM_S1_GU, MF_ASM_S1_XC, MF_ASM_S1_XQ, MF_ASM_S1_GUQ, MF_ASM_S1_SMQ, MF_ASM_S1_STP,
    MF_ASM_S1_SEP, MF_ASM_S1_DIM, MF_ASM_S1_HIDDEN_DIM, MF_ASM_S1_TOKEN_CNT, MF_ASM_S1_EPRT_CNT, MF_ASM_S1_XS,
    MF_ASM_S1_GUS, MF_ASM_S1_OS, MF_ASM_S1_EGUS, MF_ASM_S1_EGUQS, MF_ASM_S1_ESMQS, MF_ASM_S1_TOPK, MF_ASM_S1_SPLITK,
    MF_ASM_S1_ACTIVATION, MF_ASM_S1_SW,
};
/* clang-format on */

/* One call, in the words of its tensors. */
struct mf_asm_call {
    /* addresses; scales are NULL for a call without quantisation */
    const void *out, *x, *w1, *w2, *num_valid, *x_scale, *w1_scale, *w2_scale, *smooth_scale;
    const void *sorted_ids, *sorted_weights, *sorted_experts; /* FLAT kernels: topk ids, weights, ids */
    int32_t token, model_dim, inter_dim, expert, topk;
    bool gated;       /* w1 has 2 x inter_dim rows */
    int32_t x_bytes;  /* of an element of x */
    int64_t x_stride; /* elements from a row of x to the next */
    int32_t w_bits;   /* of an element of w1 and w2: 4, 8 or 16 */
    int32_t out_bytes;
    int64_t w1_scale_stride, w2_scale_stride; /* elements of an expert's scales */
    int32_t scale_bytes;                      /* of one of them */
    int32_t ksplit;                           /* stage 1: 1 << ksplit parts */
    enum mf_act act;
    int32_t cu_num;
    int64_t n_blocks; /* expert blocks that the sort has room for */
};

struct mf_asm_grid {
    uint32_t x, y, z;
};

/* inter_dim as AITER derives it from the shapes of w1 [E, N, K] and w2 [E, H, J], whose last dimensions count bytes where
 * elements have four bits: J * (H / K). */
int64_t mf_asm_inter_dim(int64_t w1_dim2, int64_t w2_dim1, int64_t w2_dim2);

/* Groups of a persistent kernel, 0 for others; and what of them take part: the largest multiple of its tiles. */
int64_t mf_asm_persistent(const struct mf_asm_kernel *k, int32_t cu_num);
int64_t mf_asm_total_tgs(const struct mf_asm_kernel *k, const struct mf_asm_call *c);

/* Writes the block. -ERANGE: *ret_slot (static text) needs more than 32 bits. */
int mf_asm_one_block(const struct mf_asm_kernel *k, const struct mf_asm_call *c,
                     unsigned char block[MF_ASM_ONE_BYTES], const char **ret_slot);
int mf_asm_stage1_block(const struct mf_asm_call *c, unsigned char block[MF_ASM_STAGE1_BYTES],
                        const char **ret_slot);
/* Groups of MF_ASM_THREADS. switch_xy: the entries without a gate that have the axes the other way round. */
struct mf_asm_grid mf_asm_grid_of(const struct mf_asm_kernel *k, const struct mf_asm_call *c, bool switch_xy);

/* AITER's pick where no kernel is named: among the kernels of that kind, vskip, smf 0, block_m and flat 0 whose width
 * divides inter_dim, the fewest rounds over the compute units, then the fewest idle units in the last round, then a
 * persistent one. NULL: none. */
struct mf_asm_wish {
    const char *arch;
    enum mf_asm_kind kind;
    int32_t vskip, block_m;
};
const struct mf_asm_kernel *mf_asm_pick(const struct mf_asm_manifest *m, const struct mf_asm_wish *wish,
                                        const struct mf_asm_call *c);
