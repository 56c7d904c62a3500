/* Ranks kernels by the additive rule of ROCm/aiter's tuner (gemm_moe_tune.py, post_process), from measured
 * candidates. Users compare its winner with that of moefarm's race.
 *
 *   1  "_sk4" at the end of a stage1 name means split-K 4 and is stripped from the name
 *   2  candidates without a time or with an error above the limit are dropped
 *   3  the fastest of each (stage, block_m, flat, v2, fused) is kept
 *   4  stage1 x stage2 of equal block_m and v2 are combined, in that order
 *   5  one-stage kernels follow
 *   6  if nothing is left, the shape failed
 *   7  "fairness": if some rows do work inside their kernels that other rows do outside, its cost is added to
 *      us1 of the other rows:
 *        1x32, weights not int4, activations fp4 or fp8: quantising between the stages, for rows whose
 *                                                        stage 1 does not do it and whose v2 is 0
 *        per_1x128 and a row takes bf16 input:           quantising the input, for rows that do not take bf16
 *        some row is FLAT:                               the sort, for rows that need one
 *   8  us = us1 + us2, rounded to four decimals; the smallest wins, and of equal rows the first
 *
 * A time of zero or below means no time, although AITER's rule treats 0.0 as the fastest. No I/O, no
 * measurement. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/shape.h"

/* AITER's stages, and moefarm's names for the costs that step 7 adds. */
/* clang-format off */
#define MF_COMPAT_MAP(X, P)                                                   \
    X(P, STAGE1, "stage1") X(P, STAGE2, "stage2") X(P, ONE, "asm_1stage")     \
    X(P, ONE_XBF16, "asm_1stage_xbf16") /* reads the hidden states as bf16 */ \
    X(P, SORT, "cost_sort") X(P, QUANT1, "cost_quant1") X(P, QUANT2, "cost_quant2")
/* clang-format on */
MF_NAMES_DECLARE(mf_compat, MF_COMPAT_, MF_COMPAT_MAP);

#define MF_COMPAT_NAME_MAX 160

struct mf_compat_candidate {
    enum mf_compat stage;
    char name[MF_COMPAT_NAME_MAX];
    int32_t block_m; /* 0 for a cost that applies to any */
    int32_t flat;    /* 1: needs no sort */
    bool v2, fused;  /* fused: stage 1 quantises for stage 2 */
    double us, err;  /* us: no time if not finite or not above 0 */
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

/* Builds the merged table of one shape; *ret_best is the index of the winner. The caller frees *ret_rows.
 * -ENOENT if no candidate is left; -ENOMEM. */
int mf_compat_rank(const struct mf_shape *shape, const struct mf_compat_candidate *candidates, size_t n,
                   double err_ratio, struct mf_compat_row **ret_rows, size_t *ret_n, size_t *ret_best);
