/* Error limits of a correct result. The verification gates of a step and the verdict on a table row both use
 * them, and no family can relax them. */
#pragma once

#include <stdbool.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"

/* AITER's rtol and atol: a and b mismatch if |a - b| > 0.01 + 0.01·|b| (checkAllclose). */
#define MF_TOLERANCE 0.01
/* Limit of a row's error: this factor times the row's own quantisation error, at least mf_row_floor. */
#define MF_ROW_TIMES 4.0

/* True if AITER compares by cosine for the shape's formats. These formats are so coarse that single values
 * say little. `err` is then the distance 1 - 2·<a, b> / (|a|² + |b|²) = |a - b|² / (|a|² + |b|²) of the whole
 * tensor instead of the mismatch ratio (aiter/test_common.py, calc_diff). The other gates, such as worst row
 * and worst expert, still apply. */
static inline bool mf_err_by_cosine(const struct mf_shape *shape)
{
    return shape->q_type == MF_QTYPE_PER_1X32 || shape->q_type == MF_QTYPE_PER_1X16;
}

/* Minimum limit of a row's relative error. A correct kernel rounds its output once and may sum in any order.
 * Rounding to bf16 causes a row error of about 0.002; fp8 values that round to the adjacent code cause less
 * than 0.005. */
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
