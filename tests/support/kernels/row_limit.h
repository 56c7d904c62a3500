/* Maximum error of a correct kernel's row against the reference. Derived per row: perturbs every value that a
 * kernel may round by the maximum rounding error, and takes the resulting error of the row.
 *
 *   rounding     a value to bf16: at most 2^-8 of it, on average 2^-7/sqrt(12)/1.44 = 1.6e-3 of it. Two
 *                values rounded from almost the same number may be neighbours, 2^-7 apart.
 *   sums         int4 times its group's scale is rounded to bf16 before the multiplication (other weights are
 *                exact in bf16): a sum of products has an error of 1.6e-3 of the typical sum of that row; the
 *                limit is four times that.
 *   activation   evaluated at the ends of the ranges of its two inputs, and at the gate's minimum in them
 *   quantised    h is quantised with its values perturbed up and down in several patterns, so that every
 *                value and every group scale that can change does
 *   y            independent errors of the slots, relative to the norm of their sum */
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

/* Limit for a row of g, h, z, zw or y that the step gives. source: slot row t·k + j; the token for y. */
struct row_limit row_limit(struct row_limits *l, const struct mf_step *step, const struct mf_tensor_spec *a,
                           int64_t source);
