/* Double-precision reference of one token, written for readability: the references are tested against it. */
#pragma once

#include "kernels/reference/reference.h"

/* Computes the output row of one token in double precision from the dequantised inputs. r supplies only the
 * largest magnitudes, for codecs with a per-tensor scale or global factor. quantise_h: round h to bf16 and
 * quantise it in the shape's format; otherwise h stays double. y has H values. -ENOMEM. */
int mf_reference_row_double(const struct mf_layer_data *data, const struct mf_reference *r, int64_t token,
                            bool quantise_h, double *y);
