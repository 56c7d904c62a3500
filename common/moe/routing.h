/* A routing profile: how tokens spread over experts in the data that is timed. Text forms:
 *   "uniform"            each token picks topk distinct experts, all equally likely
 *   "balanced"           consecutive runs of experts, every expert as often as any other
 *   "zipf:1.2"           popularity of expert e falls as (rank + 1)^-s, ranks shuffled by the seed
 *   "hot:0.5"            that share of tokens has expert 0 among its topk; the rest is uniform
 *   "recorded:31.0.7"    counts of production, expert 0 first: each pick falls on an expert in proportion to its count,
 *                        none twice in a token; an expert of count 0 is picked when no other is left
 *   "router:sigmoid_groups"   logits drawn by the seed go through a model's own rule (kernels/core/router.h)
 *   "router:…+shared"    the same over all experts but the last, which every token has besides in its last slot: a
 *                        shared expert fused as one more, with weight 1
 * All steps of a shape are timed on the same routing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/shape.h"

/* clang-format off */
#define MF_ROUTING_KIND_MAP(X, P) \
    X(P, UNIFORM, "uniform")      \
    X(P, BALANCED, "balanced")    \
    X(P, ZIPF, "zipf")            \
    X(P, HOT, "hot")              \
    X(P, RECORDED, "recorded")    \
    X(P, ROUTER, "router")
/* clang-format on */
MF_NAMES_DECLARE(mf_routing_kind, MF_ROUTING_, MF_ROUTING_KIND_MAP);

/* The rules of models; kernels/core/router.h says what each computes. */
/* clang-format off */
#define MF_ROUTER_MAP(X, P)                                                              \
    X(P, SOFTMAX, "softmax")               /* softmax over all, then topk */              \
    X(P, SOFTMAX_RENORM, "softmax_renorm") /* Qwen3, Mixtral, gpt-oss: the kept sum to 1 */ \
    X(P, SIGMOID_TOP, "sigmoid_top")       /* Llama-4 */                                  \
    X(P, SIGMOID_BIAS, "sigmoid_bias")     /* Kimi-K2, GLM-4.5 */                         \
    X(P, SIGMOID_GROUPS, "sigmoid_groups") /* DeepSeek-V3: 8 groups, 4 kept */            \
    X(P, SQRT_SOFTPLUS, "sqrt_softplus")   /* DeepSeek-V4 */                              \
    X(P, HASH, "hash")                     /* DeepSeek-V4's first layers */
/* clang-format on */
MF_NAMES_DECLARE(mf_router, MF_ROUTER_, MF_ROUTER_MAP);

#define MF_ROUTING_COUNTS_MAX 1024
/* Enough for every profile: six characters for a count. */
#define MF_ROUTING_TEXT_MAX (32 + 6 * MF_ROUTING_COUNTS_MAX)

struct mf_routing {
    enum mf_routing_kind kind;
    double parameter; /* Zipf's s in (0, 4]; the hot share in [0, 1]; 0 otherwise */
    enum mf_router router;
    bool shared;
    int32_t n_counts; /* of recorded, 0 otherwise */
    uint16_t counts
        [MF_ROUTING_COUNTS_MAX]; /* scaled down so that the largest fits; what was not 0 is at least 1 */
};

int mf_routing_parse(const char *text, struct mf_routing *ret); /* -EINVAL */
void mf_routing_print(const struct mf_routing *r, char buf[MF_ROUTING_TEXT_MAX]);
bool mf_routing_equal(const struct mf_routing *a, const struct mf_routing *b);

/* The recorded profile of n counts of any size. -EINVAL: none, too many, or all zero. */
int mf_routing_recorded(const uint64_t *counts, size_t n, struct mf_routing *ret);

/* Whether a shape can be routed by the profile: recorded counts are of as many experts, groups divide them. The
 * sentence goes to why. -EINVAL. */
int mf_routing_fits(const struct mf_routing *r, const struct mf_shape *shape, char *why, size_t why_cap);

/* What a router's groups are: so many equal ones, of which so many are kept. */
#define MF_ROUTER_GROUPS      8
#define MF_ROUTER_GROUPS_KEPT 4
