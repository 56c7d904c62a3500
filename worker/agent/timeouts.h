/* How long a runner may say nothing while it makes a shape's data. */
#pragma once

#include <stdint.h>

#include "common/moe/shape.h"

/* Milliseconds beyond those of a runner that is idle, for the weights and the reference's products on a host of so many slow cores. Two
 * hours at the most. */
int64_t mf_data_timeout_ms(const struct mf_shape *shape, long cores);
