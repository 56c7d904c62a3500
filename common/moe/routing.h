/* Routing profiles: how the tokens of benchmark data are distributed over the experts. Text forms:
 *   "uniform"            each token selects topk distinct experts, all equally likely
 *   "balanced"           each token selects consecutive experts, so that all are selected equally often
 *   "zipf:1.2"           popularity of expert rank r falls as (r + 1)^-s; the seed assigns the ranks
 *   "hot:0.5"            this fraction of the tokens selects expert 0; all other routes are uniform
 *   "recorded:31.0.7"    expert counts from production, from expert 0 on. Each route selects an expert with
 *                        probability proportional to its count, without repetition within a token. An expert
 *                        with count 0 is selected only if no other expert is left
 *   "router:sigmoid_groups"   random logits go through a model's routing rule (kernels/core/router.h)
 *   "router:…+shared"    the same rule for all experts except the last. The last is a fused shared expert:
 *                        every token has it in its last slot with weight 1
 * All steps of a shape are timed with the same routing. */
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

/* Routing rules of models; kernels/core/router.h defines them. */
/* clang-format off */
#define MF_ROUTER_MAP(X, P)                                                                     \
    X(P, SOFTMAX, "softmax")               /* softmax over all experts, then topk */            \
    X(P, SOFTMAX_RENORM, "softmax_renorm") /* Qwen3, Mixtral, gpt-oss: topk weights sum to 1 */ \
    X(P, SIGMOID_TOP, "sigmoid_top")       /* Llama-4 */                                        \
    X(P, SIGMOID_BIAS, "sigmoid_bias")     /* Kimi-K2, GLM-4.5 */                               \
    X(P, SIGMOID_GROUPS, "sigmoid_groups") /* DeepSeek-V3: 8 groups, 4 kept */                  \
    X(P, SQRT_SOFTPLUS, "sqrt_softplus")   /* DeepSeek-V4 */                                    \
    X(P, HASH, "hash")                     /* DeepSeek-V4's first layers */
/* clang-format on */
MF_NAMES_DECLARE(mf_router, MF_ROUTER_, MF_ROUTER_MAP);

#define MF_ROUTING_COUNTS_MAX 1024
/* Buffer size for the text of any profile; a count takes at most six characters. */
#define MF_ROUTING_TEXT_MAX (32 + 6 * MF_ROUTING_COUNTS_MAX)

struct mf_routing {
    enum mf_routing_kind kind;
    double parameter; /* Zipf's s in (0, 4]; the hot fraction in [0, 1]; 0 otherwise */
    enum mf_router router;
    bool shared;
    int32_t n_counts; /* number of counts of a recorded profile; 0 for other kinds */
    /* counts of a recorded profile, scaled so that the largest fits; a non-zero count stays at least 1 */
    uint16_t counts[MF_ROUTING_COUNTS_MAX];
};

int mf_routing_parse(const char *text, struct mf_routing *ret); /* -EINVAL: not a routing profile */
void mf_routing_print(const struct mf_routing *r, char buf[MF_ROUTING_TEXT_MAX]);
bool mf_routing_equal(const struct mf_routing *a, const struct mf_routing *b);

/* Makes a recorded profile from n counts of any magnitude. -EINVAL: n is 0 or too large, or all counts are 0.
 */
int mf_routing_recorded(const uint64_t *counts, size_t n, struct mf_routing *ret);

/* Checks whether the profile is valid for the shape: a recorded profile must have one count per expert, and a
 * grouped router requires groups of equal size. -EINVAL with a message in why. */
int mf_routing_fits(const struct mf_routing *r, const struct mf_shape *shape, char *why, size_t why_cap);

/* Grouped routers (DeepSeek-V3): number of equal groups, and how many of them each token selects. */
#define MF_ROUTER_GROUPS      8
#define MF_ROUTER_GROUPS_KEPT 4
