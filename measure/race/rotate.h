/* Rotates routing over the experts, so that a timed call reads its weights from memory and not from a cache.
 *
 * Rotation r maps local expert e to (e + shift[r]) mod E. The shifts minimise the overlap of active experts.
 * Routes to experts of other ranks do not change. A rotation only permutes the row counts of the experts, so
 * all rotations do equal work. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/shape.h"

#define MF_ROTATIONS_MAX 64

struct mf_rotation {
    int n;                           /* number of rotations, from 1 to E / active */
    int32_t shift[MF_ROTATIONS_MAX]; /* shift[0] is 0 */
    int64_t active;                  /* number of experts with at least one route */
    int64_t routes;                  /* number of routes to local experts */
};

/* Returns 0 or -ENOMEM. */
int mf_rotation_make(const struct mf_shape *shape, const int32_t *ids, struct mf_rotation *ret);
/* Returns the number of rotations for a call that reads `bytes` of weights: enough to exceed four times the
 * L2 size, plus one. *ret_cold is true if the weights of all rotations together exceed four times the L2
 * size. */
int mf_rotation_count(const struct mf_rotation *r, double bytes, double llc_bytes, bool *ret_cold);
/* Writes the expert ids of rotation i, [T, k], to out. */
void mf_rotation_ids(const struct mf_rotation *r, int i, const struct mf_shape *shape, const int32_t *ids,
                     int32_t *out);
