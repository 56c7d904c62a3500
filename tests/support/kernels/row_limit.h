/* How far a right kernel's row may be from the reference's: drawn from that row of the reference itself, by moving what a
 * kernel may round as far as rounding can take it and looking where the row ends.
 *
 *   rounding     a value to bf16: 2^-8 of it at most, 2^-7/sqrt(12) over 1.44 = 1.6e-3 of it on average; two that are
 *                rounded from almost the same may be neighbours, 2^-7 apart
 *   sums         int4 times the scale of its group is rounded to bf16 before it is multiplied (other weights are exact in
 *                bf16): a sum of products moves by 1.6e-3 of what such sums are in that row; four times that is allowed
 *   activation   is asked at the ends of what its two inputs may be, and at the gate's least value between them
 *   codes        h is quantised with its values moved as far as they may, up and down in several patterns: a code that can
 *                tip over does, and so does the scale of a group whose largest value can
 *   y            the slots' errors, independent of each other, against what is left of their sum */
#pragma once

#include "common/moe/step.h"
#include "kernels/reference/reference.h"

struct row_limit {
    double norm;    /* of the difference, to the row's */
    double element; /* of any one difference, to the row's norm */
};

struct row_limits;
struct row_limits *row_limits_new(const struct mf_layer_data *data, const struct mf_reference *ref);
void row_limits_free(struct row_limits *l);

/* Of a row that the step gives in g, h, z, zw or y. source: the slot row t·k + j, of y the token. */
struct row_limit row_limit(struct row_limits *l, const struct mf_step *step, const struct mf_tensor_spec *a,
                           int64_t source);
