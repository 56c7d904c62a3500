/* Routing rotated over the experts, so that a timed call finds its weights in memory and not in a cache: rotation r
 * sends what belongs to expert e to (e + shift[r]) mod E. Shifts are chosen so that the experts in use overlap as
 * little as can be; routes to other ranks' experts stay what they are; the number of rows of each is the same in every rotation, so all are equal work. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/shape.h"

#define MF_ROTATIONS_MAX 64

struct mf_rotation {
    int n;                           /* at most E / active; at least 1 */
    int32_t shift[MF_ROTATIONS_MAX]; /* shift[0] is 0 */
    int64_t active;                  /* experts that one call touches */
    int64_t routes;                  /* that go to experts of this rank */
};

/* -ENOMEM. */
int mf_rotation_make(const struct mf_shape *shape, const int32_t *ids, struct mf_rotation *ret);
/* Rotations that are worth having for a call that reads `bytes` of weights: enough to pass four last caches, and one
 * more. *ret_cold: they do pass four. */
int mf_rotation_count(const struct mf_rotation *r, double bytes, double llc_bytes, bool *ret_cold);
/* The ids of that rotation, [T,k]. */
void mf_rotation_ids(const struct mf_rotation *r, int i, const struct mf_shape *shape, const int32_t *ids,
                     int32_t *out);
