/* Parser and printer of a shape's form: the properties that have no column among the twelve of
 * untuned_fmoe.csv. The text has parts joined by '+', each at most once, in any order; the printer uses the
 * order of the table in shape_form.c. Only shape.c includes this header. */
#pragma once

#include "common/moe/shape.h"

#define MF_SHAPE_FORM_EXPECTS                                                            \
    "nothing, or parts joined by '+': limit:X and alpha:X with 0 < X <= 65536, b1, b2, " \
    "gate_up:separated, "                                                                \
    "gate_up:interleaved, gate_up:tiled, ep:FIRST/ALL"

/* Sets all fields of the form; fields whose part is missing from the text become zero. On -EINVAL the shape
 * is unchanged. */
int mf_shape_form_parse(const char *text, struct mf_shape *shape);
/* Prints the form; "" if all its fields are zero. */
void mf_shape_form_print(const struct mf_shape *shape, char *buf, size_t cap);
/* Total order of the form fields only. */
int mf_shape_form_compare(const struct mf_shape *a, const struct mf_shape *b);
/* Returns the expected form (static text) if the form contradicts the shape's other columns, otherwise NULL.
 */
const char *mf_shape_form_check(const struct mf_shape *shape);
