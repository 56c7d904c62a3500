/* Judges the order of a token ladder: the times of one layer model on one device class, by token count. A
 * call with more tokens cannot be faster, because a call with fewer tokens can be padded. A disturbance makes
 * a measurement longer, never shorter, so of two times in the wrong order the one with fewer tokens is
 * suspect. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/status.h"

struct mf_rung {
    int64_t token;
    double us;
    double mad; /* median absolute deviation of us; NAN if unknown */
};
/* Returns the rung with more tokens that shows `rung` to be too slow: the fastest one, if it is faster by
 * more than 5 % and the noise of both. NULL: `rung` is in order. Ignores rungs with fewer or as many tokens,
 * and times that are not positive. */
const struct mf_rung *mf_token_order_breach(const struct mf_rung *rung, const struct mf_rung *others,
                                            size_t n);
/* Writes the sentence for a breach, without commas, because it is stored in tables: "3628 us for 16 tokens
 * but 2206 us for 32 tokens of this layer (39% less): more tokens cannot be faster". */
void mf_token_order_explain(const struct mf_rung *rung, const struct mf_rung *faster,
                            char ret[MF_REASON_MAX]);
