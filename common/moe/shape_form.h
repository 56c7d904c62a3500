/* The form of a shape: what the twelve columns of untuned_fmoe.csv cannot say, as one text of parts with + between, each
 * at most once and in any order; printed in the order of the table in shape_form.c. Only shape.c includes this. */
#pragma once

#include "common/moe/shape.h"

#define MF_SHAPE_FORM_EXPECTS                                                                     \
    "nothing, or parts with + between: limit:X, alpha:X with X above 0 and up to 65536, b1, b2, " \
    "gate_up:separated, "                                                                         \
    "gate_up:interleaved, gate_up:tiled, ep:FIRST/ALL"

/* Sets every field of the form, those that the text does not name to zero. -EINVAL, and nothing is set. */
int mf_shape_form_parse(const char *text, struct mf_shape *shape);
/* "" for a shape whose twelve columns say all. */
void mf_shape_form_print(const struct mf_shape *shape, char *buf, size_t cap);
/* Total order of the forms alone. */
int mf_shape_form_compare(const struct mf_shape *a, const struct mf_shape *b);
/* The sentence on what the shape's other columns do not go with; NULL: none. */
const char *mf_shape_form_check(const struct mf_shape *shape);
