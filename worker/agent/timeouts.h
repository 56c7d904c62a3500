/* Timeouts for runners. */
#pragma once

#include <stdint.h>

#include "common/moe/shape.h"

/* Returns the milliseconds to add to the idle timeout while a runner creates the weights and reference of a
 * shape on `cores` cores. Returns at most two hours. */
int64_t mf_data_timeout_ms(const struct mf_shape *shape, long cores);
