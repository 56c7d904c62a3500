/* Maximum error of a correct kernel's row against the reference. The limit is derived for each row: every
 * value that a kernel may round is moved by the maximum rounding error, and the limit is the resulting error
 * of the row.
 *
 *   rounding     Rounding to bf16 changes a value by at most 2^-8 of the value, and on average by
 *                2^-7/sqrt(12)/1.44 = 1.6e-3 of it. Two almost equal numbers may be rounded to
 *                neighbouring values, which are 2^-7 apart.
 *   sums         The product of an int4 weight and its group's scale is rounded to bf16 before the
 *                multiplication (other weights are exact in bf16). So a sum of products has an error of
 *                1.6e-3 of the typical sum in that row. The limit is four times this error.
 *   activation   The activation is evaluated at the ends of the ranges of its two inputs, and at the minimum
 *                of the gate function if that is within the range.
 *   quantised    h is quantised after its values are moved up or down in several patterns, so that every
 *                value and every group scale that can change does change.
 *   y            The errors of the slots are independent, so their squares are added. The limit is relative
 *                to the norm of the output row. */
#pragma once

#include "common/moe/step.h"
#include "kernels/reference/reference.h"

struct row_limit {
    double norm;    /* norm of the difference, relative to the row's norm */
    double element; /* largest single difference, relative to the row's norm */
};

struct row_limits;
struct row_limits *row_limits_new(const struct mf_layer_data *data, const struct mf_reference *ref);
void row_limits_free(struct row_limits *l);

/* Returns the limit for a row of tensor `a` (g, h, z, zw or y), which the step writes. source: row t·k + j of
 * the slot, or the token if the tensor is y. */
struct row_limit row_limit(struct row_limits *l, const struct mf_step *step, const struct mf_tensor_spec *a,
                           int64_t source);
