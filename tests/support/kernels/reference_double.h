/* A double-precision reference of one token. It is written for readability, and the other references are
 * tested against it. */
#pragma once

#include "kernels/reference/reference.h"

/* Computes the output row y (H values) of one token in double precision from the dequantised inputs. r is
 * used only for the largest magnitudes, which codecs with a per-tensor scale or a global factor need.
 * quantise_h: if true, h is rounded to bf16 and quantised in the shape's format; otherwise h stays double.
 * Returns 0 or -ENOMEM. */
int mf_reference_row_double(const struct mf_layer_data *data, const struct mf_reference *r, int64_t token,
                            bool quantise_h, double *y);
