/* Reads the shapes of an untuned_fmoe.csv. */
#pragma once

#include <stddef.h>

#include "common/moe/shape.h"

/* Reads the shapes of the file, which may also be a tuned table. The caller frees *ret. Invalid rows are
 * printed to stderr and counted in *ret_bad. Returns a negative value, with a message on stderr, if the file
 * is not a table. */
int mf_shapes_file_read(const char *path, struct mf_shape **ret, size_t *ret_n, int *ret_bad);
