/* Timeouts for runners. */
#pragma once

#include <stdint.h>

#include "common/moe/shape.h"

/* Milliseconds to add to the idle timeout while a runner creates the weights and reference of a shape on this
 * many cores. At most two hours. */
int64_t mf_data_timeout_ms(const struct mf_shape *shape, long cores);
