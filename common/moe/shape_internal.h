/* Parser and printer of a shape's form, the properties that the twelve columns of untuned_fmoe.csv lack:
 * parts joined by '+', each at most once, in any order. Printed in the order of the table in shape_form.c.
 * Only shape.c includes this. */
#pragma once

#include "common/moe/shape.h"

#define MF_SHAPE_FORM_EXPECTS                                                            \
    "nothing, or parts joined by '+': limit:X and alpha:X with 0 < X <= 65536, b1, b2, " \
    "gate_up:separated, "                                                                \
    "gate_up:interleaved, gate_up:tiled, ep:FIRST/ALL"

/* Sets all fields of the form; parts missing from the text become zero. On -EINVAL the shape is unchanged. */
int mf_shape_form_parse(const char *text, struct mf_shape *shape);
/* Prints the form; "" if all its fields are zero. */
void mf_shape_form_print(const struct mf_shape *shape, char *buf, size_t cap);
/* Total order of the form fields only. */
int mf_shape_form_compare(const struct mf_shape *a, const struct mf_shape *b);
/* Returns the expected form (static text) if it contradicts the shape's other columns, otherwise NULL. */
const char *mf_shape_form_check(const struct mf_shape *shape);
