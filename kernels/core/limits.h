/* Error limits of a correct result. The verification of a step and the check of a tuned table row both use
 * these limits, and no family can relax them. */
#pragma once

#include <stdbool.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"

/* AITER's rtol and atol: an output a and its reference b mismatch if |a - b| > 0.01 + 0.01·|b|
 * (checkAllclose). */
#define MF_TOLERANCE 0.01
/* A row's error may be at most this factor times the row's own quantisation error. The limit is never below
 * mf_row_floor. */
#define MF_ROW_TIMES 4.0

/* True if AITER compares by cosine for the shape's formats. The formats are then so coarse that a mismatch of
 * single values means little. `err` is then the distance 1 - 2·<a, b> / (|a|² + |b|²) = |a - b|² / (|a|² +
 * |b|²) of the whole tensor instead of the mismatch ratio (aiter/test_common.py, calc_diff). The other
 * limits, such as those of the worst row and the worst expert, still apply. */
static inline bool mf_err_by_cosine(const struct mf_shape *shape)
{
    return shape->q_type == MF_QTYPE_PER_1X32 || shape->q_type == MF_QTYPE_PER_1X16;
}

/* Returns the lowest value that the limit of a row's relative error may have. A correct kernel rounds its
 * output once and may sum in any order. Rounding to bf16 causes a row error of about 0.002; fp8 values that
 * are rounded to an adjacent value cause a row error below 0.005. */
static inline double mf_row_floor(enum mf_format format)
{
    switch (format) {
    case MF_FORMAT_F32:
        return 0.005;
    case MF_FORMAT_BF16:
    case MF_FORMAT_FP16:
        return 0.01;
    case MF_FORMAT_FP8FN:
    case MF_FORMAT_FP8FNUZ:
    case MF_FORMAT_INT8:
    case MF_FORMAT_INT4:
    case MF_FORMAT_FP4:
        return 0.02;
    case MF_FORMAT_INDEX:
    case MF_FORMAT_N_:
        break;
    }
    return 0;
}
