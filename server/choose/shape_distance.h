/* Compares shapes by how much their fastest candidates have in common. Pure functions. */
#pragma once

#include "common/moe/shape.h"

/* Returns 0 for equal shapes. Each doubling of the token count adds 1, each doubling of a size of the layer
 * adds 2. Returns INFINITY if data types, quantisation, activation or form differ. */
double mf_shape_distance(const struct mf_shape *a, const struct mf_shape *b);
