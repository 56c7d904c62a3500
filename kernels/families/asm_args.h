/* Calling convention of AITER's prebuilt kernels: argument blocks, grids and the default kernel.
 *
 * The convention follows ROCm/aiter, csrc/py_itfs_cu/asm_fmoe.cu and asm_moe_2stage.cu. Each argument
 * occupies a 16-byte slot, little endian: an 8-byte address or a 4-byte number, zero-padded. A one-stage
 * block has 28 slots, a stage 1 block 23. Strides are in bytes. A number that does not fit 32 bits is an
 * error and is never truncated. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "kernels/families/asm_manifest.h"

#define MF_ASM_SLOT         16
#define MF_ASM_ONE_BYTES    448
#define MF_ASM_STAGE1_BYTES 368
#define MF_ASM_THREADS      256 /* per work group */

/* Slots of the one-stage block. */
/* clang-format off */
enum mf_asm_one_slot {
    MF_ASM_ONE_O, MF_ASM_ONE_X, MF_ASM_ONE_GU, MF_ASM_ONE_XC, MF_ASM_ONE_D, MF_ASM_ONE_XQ, MF_ASM_ONE_GUQ,
    MF_ASM_ONE_DQ, MF_ASM_ONE_SMQ, MF_ASM_ONE_STP, MF_ASM_ONE_SW, MF_ASM_ONE_SEP, MF_ASM_ONE_DIM,
    MF_ASM_ONE_INTER_DIM, MF_ASM_ONE_TOKEN_CNT, MF_ASM_ONE_EPRT_CNT, MF_ASM_ONE_XS, MF_ASM_ONE_GUS,
    MF_ASM_ONE_DS, MF_ASM_ONE_OS, MF_ASM_ONE_EGUS, MF_ASM_ONE_EDS, MF_ASM_ONE_EGUQS, MF_ASM_ONE_EDQS,
    MF_ASM_ONE_ESMQS, MF_ASM_ONE_TOPK, MF_ASM_ONE_TOTAL_TGS, MF_ASM_ONE_PS_DENO,
};
/* Slots of the stage 1 block. */
enum mf_asm_stage1_slot {
    MF_ASM_S1_O, MF_ASM_S1_X, MF_ASM_S1_GU, MF_ASM_S1_XC, MF_ASM_S1_XQ, MF_ASM_S1_GUQ, MF_ASM_S1_SMQ,
    MF_ASM_S1_STP, MF_ASM_S1_SEP, MF_ASM_S1_DIM, MF_ASM_S1_HIDDEN_DIM, MF_ASM_S1_TOKEN_CNT,
    MF_ASM_S1_EPRT_CNT, MF_ASM_S1_XS, MF_ASM_S1_GUS, MF_ASM_S1_OS, MF_ASM_S1_EGUS, MF_ASM_S1_EGUQS,
    MF_ASM_S1_ESMQS, MF_ASM_S1_TOPK, MF_ASM_S1_SPLITK, MF_ASM_S1_ACTIVATION, MF_ASM_S1_SW,
};
/* clang-format on */

/* Tensors and sizes of one call. */
struct mf_asm_call {
    /* device addresses; scales are NULL without quantisation */
    const void *out, *x, *w1, *w2, *num_valid, *x_scale, *w1_scale, *w2_scale, *smooth_scale;
    const void *sorted_ids, *sorted_weights, *sorted_experts; /* FLAT kernels: topk ids, weights, ids */
    int32_t token, model_dim, inter_dim, expert, topk;
    bool gated;       /* w1 has 2 x inter_dim rows */
    int32_t x_bytes;  /* bytes per element of x */
    int64_t x_stride; /* elements between rows of x */
    int32_t w_bits;   /* bits per element of w1 and w2: 4, 8 or 16 */
    int32_t out_bytes;
    int64_t w1_scale_stride, w2_scale_stride; /* scales per expert */
    int32_t scale_bytes;                      /* bytes per scale */
    int32_t ksplit;                           /* stage 1: K is split into 1 << ksplit parts */
    enum mf_act act;
    int32_t cu_num;
    int64_t n_blocks; /* capacity of the sorted order, in expert blocks */
};

struct mf_asm_grid {
    uint32_t x, y, z;
};

/* Returns inter_dim as AITER derives it from the shapes of w1 [E, N, K] and w2 [E, H, J]: J * (H / K). The
 * last dimension of a 4-bit tensor counts bytes, not elements. */
int64_t mf_asm_inter_dim(int64_t w1_dim2, int64_t w2_dim1, int64_t w2_dim2);

/* mf_asm_persistent returns the number of work groups of a persistent kernel, or 0 for other kernels.
 * mf_asm_total_tgs rounds this number down to a multiple of the kernel's tile count, which gives the number
 * of work groups that do work. */
int64_t mf_asm_persistent(const struct mf_asm_kernel *k, int32_t cu_num);
int64_t mf_asm_total_tgs(const struct mf_asm_kernel *k, const struct mf_asm_call *c);

/* Writes the argument block. Returns -ERANGE if the value of slot *ret_slot (a static text) does not fit 32
 * bits. */
int mf_asm_one_block(const struct mf_asm_kernel *k, const struct mf_asm_call *c,
                     unsigned char block[MF_ASM_ONE_BYTES], const char **ret_slot);
int mf_asm_stage1_block(const struct mf_asm_call *c, unsigned char block[MF_ASM_STAGE1_BYTES],
                        const char **ret_slot);
/* Returns the grid in work groups of MF_ASM_THREADS. switch_xy: true swaps the x and y axes, as AITER's entry
 * points without a gate do. */
struct mf_asm_grid mf_asm_grid_of(const struct mf_asm_kernel *k, const struct mf_asm_call *c, bool switch_xy);

/* Input of mf_asm_pick, which is AITER's choice of a kernel if the caller names none. Eligible kernels match
 * the kind, vskip and block_m, have smf 0 and flat 0, and have a tile width that divides inter_dim. Among the
 * eligible kernels, the kernel with the fewest rounds over the CUs wins. Ties go to the kernel with the
 * fewest idle CUs in the last round, then to a persistent kernel. mf_asm_pick returns NULL if no kernel is
 * eligible. */
struct mf_asm_wish {
    const char *arch;
    enum mf_asm_kind kind;
    int32_t vskip, block_m;
};
const struct mf_asm_kernel *mf_asm_pick(const struct mf_asm_manifest *m, const struct mf_asm_wish *wish,
                                        const struct mf_asm_call *c);
