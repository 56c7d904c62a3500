/* A routing profile: how tokens spread over experts in the data that is timed. Text forms:
 *   "uniform"        each token picks topk distinct experts, all equally likely
 *   "balanced"       consecutive runs of experts, every expert as often as any other
 *   "zipf:1.2"       popularity of expert e falls as (rank + 1)^-s, ranks shuffled by the seed
 *   "hot:0.5"        that share of tokens has expert 0 among its topk; the rest is uniform
 * All steps of a shape are timed on the same routing. */
#pragma once

#include <stdbool.h>

#include "common/names.h"

/* clang-format off */
#define MF_ROUTING_KIND_MAP(X, P) \
    X(P, UNIFORM, "uniform")      \
    X(P, BALANCED, "balanced")    \
    X(P, ZIPF, "zipf")            \
    X(P, HOT, "hot")
/* clang-format on */
MF_NAMES_DECLARE(mf_routing_kind, MF_ROUTING_, MF_ROUTING_KIND_MAP);

#define MF_ROUTING_TEXT_MAX 40

struct mf_routing {
    enum mf_routing_kind kind;
    double parameter; /* Zipf's s in (0, 4]; the hot share in [0, 1]; 0 otherwise */
};

int mf_routing_parse(const char *text, struct mf_routing *ret); /* -EINVAL */
void mf_routing_print(const struct mf_routing *r, char buf[MF_ROUTING_TEXT_MAX]);
