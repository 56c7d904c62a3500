/* The shapes of an untuned_fmoe.csv. */
#pragma once

#include <stddef.h>

#include "common/moe/shape.h"

/* Of a tuned table, too, whose results are not looked at. *ret is the caller's to free; rows that are none are told on stderr and counted in *ret_bad. Negative, with a line on
 * stderr, when the file is no table. */
int mf_shapes_file_read(const char *path, struct mf_shape **ret, size_t *ret_n, int *ret_bad);
