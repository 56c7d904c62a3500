/* Lower bounds of what a routing profile gives to the local experts. Pure functions. */
#pragma once

#include "common/moe/routing.h"
#include "common/moe/shape.h"

struct mf_least_routes {
    double routes; /* pairs of a token and one of its local experts */
    double active; /* local experts with at least one token */
};

/* The bounds of uniform and hot profiles hold except with a probability of 1e-13, those of other profiles
 * always. */
struct mf_least_routes mf_least_routes(const struct mf_routing *routing, const struct mf_shape *shape);
