/* Timeouts that depend on a shape. */
#pragma once

#include <stdint.h>

#include "common/moe/shape.h"

/* Returns the longest time in milliseconds that a runner may take to create the weights and reference of a
 * shape on `cores` cores: at most two hours. */
int64_t mf_data_timeout_ms(const struct mf_shape *shape, long cores);
