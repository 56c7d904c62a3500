/* How far a right result may be from the reference: the one place that says so. The gates that a step has to pass and the
 * verdict on a table's row both read it, and no family can loosen it. */
#pragma once

#include <stdbool.h>

#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"

#define MF_TOLERANCE \
    0.01 /* AITER's rtol and atol: values with |a - b| > 0.01 + 0.01·|b| mismatch (checkAllclose) */
#define MF_ROW_TIMES \
    4.0 /* times what the format's own quantisation costs the same row; never less than its floor */

/* Where AITER compares by cosine, err is the distance 1 - 2·<a, b> / (|a|² + |b|²) of the whole tensor, which equals
 * |a - b|² / (|a|² + |b|²), in place of the mismatch ratio (aiter/test_common.py, calc_diff): formats so coarse that single
 * values say little. Our own gates, the worst row and expert among them, are asked besides. */
static inline bool mf_err_by_cosine(const struct mf_shape *shape)
{
    return shape->q_type == MF_QTYPE_PER_1X32 || shape->q_type == MF_QTYPE_PER_1X16;
}

/* Relative error of a row. A correct kernel rounds its output once and its products in some other order: bf16 costs
 * about 0.002 of a row, the odd fp8 code that tips over to its neighbour less than 0.005. */
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
