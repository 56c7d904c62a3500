/* Ranks kernels by the additive rule of ROCm/aiter's tuner (gemm_moe_tune.py, post_process), from measured
 * candidates. Users compare the rule's winner with the winner of moefarm's race.
 *
 *   1  "_sk4" at the end of a stage1 name means split-K 4 and is removed from the name
 *   2  candidates without a time or with an error above the limit are dropped
 *   3  the fastest candidate of each (stage, block_m, flat, v2, fused) is kept
 *   4  every stage1 candidate is combined with every stage2 candidate of equal block_m and v2, in this order
 *   5  one-stage kernels are appended
 *   6  if there is no row, the shape failed
 *   7  "fairness": some rows do work inside their kernels that other rows do in extra kernels. The cost of
 *      this work is added to us1 of the other rows, under these conditions:
 *        1x32, weights not int4, activations fp4 or fp8   cost of quantising between the stages, added to
 *                                                         rows whose stage 1 does not quantise and whose v2
 *                                                         is 0
 *        per_1x128, and a row takes bf16 input            cost of quantising the input, added to rows that
 *                                                         do not take bf16
 *        a row is FLAT                                    cost of the sort, added to rows that need a sort
 *   8  us = us1 + us2, rounded to four decimals; the smallest us wins, and of equal rows the first
 *
 * A time of zero or below counts as no time, although AITER's rule treats 0.0 as the fastest time. This
 * module does no I/O and measures nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/shape.h"
#include "common/moe/step.h"

/* AITER's stages, and moefarm's names for the costs that step 7 adds. */
/* clang-format off */
#define MF_COMPAT_MAP(X, P)                                                   \
    X(P, STAGE1, "stage1") X(P, STAGE2, "stage2") X(P, ONE, "asm_1stage")     \
    X(P, ONE_XBF16, "asm_1stage_xbf16") /* reads the hidden states as bf16 */ \
    X(P, SORT, "cost_sort") X(P, QUANT1, "cost_quant1") X(P, QUANT2, "cost_quant2")
/* clang-format on */
MF_NAMES_DECLARE(mf_compat, MF_COMPAT_, MF_COMPAT_MAP);

#define MF_COMPAT_NAME_MAX MF_STEP_NAME_MAX

struct mf_compat_candidate {
    enum mf_compat stage;
    char name[MF_COMPAT_NAME_MAX];
    int32_t block_m; /* 0: a cost that applies to every block_m */
    int32_t flat;    /* 1: the kernel needs no sort */
    bool v2, fused;  /* fused: stage 1 quantises for stage 2 */
    double us, err;  /* us counts as a time only if it is finite and above 0 */
};
/* True if the name ends in _fp4 or _fp8, AITER's convention for stage 1 kernels that quantise. */
bool mf_compat_name_is_fused(const char *name);

struct mf_compat_row {
    char kernel1[MF_COMPAT_NAME_MAX], kernel2[MF_COMPAT_NAME_MAX]; /* kernel2: "" for a one-stage kernel */
    int32_t block_m, ksplit, flat;
    bool run_1stage, xbf16, v2, fused;
    double us1, err1, us2, err2, us; /* us1 includes `added` */
    double added;
};

/* Builds the merged table of one shape. *ret_best is the index of the winner. The caller frees *ret_rows.
 * Returns -ENOENT if no candidate is left, or -ENOMEM. */
int mf_compat_rank(const struct mf_shape *shape, const struct mf_compat_candidate *candidates, size_t n,
                   double err_ratio, struct mf_compat_row **ret_rows, size_t *ret_n, size_t *ret_best);
