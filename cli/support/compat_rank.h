/* The winner of a shape by the additive rule of ROCm/aiter's tuner (gemm_moe_tune.py, post_process), from a table of measured
 * candidates: what moefarm's race is held beside, for people who want to see the difference.
 *
 *   1  "_sk4" at the end of a stage1 name is its split-K, 4, and no part of the name
 *   2  candidates without a time, and those whose error is above the limit, are out
 *   3  by time, the first of each (stage, block_m, flat, v2, fused) stays
 *   4  stage1 x stage2 of one block_m and v2, in that order
 *   5  one-stage kernels behind them
 *   6  nothing left: failed
 *   7  what a row does outside its kernels while another does it inside is added to its us1 ("fairness"):
 *      1x32, weights not int4, activations fp4 or fp8   the quantising between the stages, where stage 1 does not do it and v2 is 0
 *      per_1x128 and a row takes bf16 as it is          the quantising of the input, to rows that do not
 *      some row is FLAT                                 the sort, to rows that need one
 *   8  us = us1 + us2 to four decimals, the least wins, of equals the first
 *
 * A time of zero or below is no time here; AITER's rule takes 0.0 for the fastest of all. Pure: nothing is read or measured. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/shape.h"

/* AITER's stages of a candidate, and ours of what step 7 adds. */
/* clang-format off */
#define MF_COMPAT_MAP(X, P)                                                   \
    X(P, STAGE1, "stage1") X(P, STAGE2, "stage2") X(P, ONE, "asm_1stage")     \
    X(P, ONE_XBF16, "asm_1stage_xbf16") /* takes the hidden states as bf16 */ \
    X(P, SORT, "cost_sort") X(P, QUANT1, "cost_quant1") X(P, QUANT2, "cost_quant2")
/* clang-format on */
MF_NAMES_DECLARE(mf_compat, MF_COMPAT_, MF_COMPAT_MAP);

#define MF_COMPAT_NAME_MAX 160

struct mf_compat_candidate {
    enum mf_compat stage;
    char name[MF_COMPAT_NAME_MAX];
    int32_t block_m; /* of a cost: 0 for any */
    int32_t flat;    /* 1: needs no sort */
    bool v2, fused;  /* fused: stage 1 quantises for stage 2 */
    double us, err;  /* not finite, or not above 0: no time */
};
/* By AITER's names: what ends in _fp4 or _fp8. */
bool mf_compat_name_is_fused(const char *name);

struct mf_compat_row {
    char kernel1[MF_COMPAT_NAME_MAX], kernel2[MF_COMPAT_NAME_MAX]; /* kernel2 "": a one-stage kernel */
    int32_t block_m, ksplit, flat;
    bool run_1stage, xbf16, v2, fused;
    double us1, err1, us2, err2, us; /* us1 with what was added */
    double added;
};

/* The merged table of one shape and, in *ret_best, the index of the winner. The caller frees *ret_rows. -ENOENT: nothing is
 * left, as AITER's failed shapes; -ENOMEM. */
int mf_compat_rank(const struct mf_shape *shape, const struct mf_compat_candidate *candidates, size_t n,
                   double err_ratio, struct mf_compat_row **ret_rows, size_t *ret_n, size_t *ret_best);
