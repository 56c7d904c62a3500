/* Generates the experts and weights of each token, by the routing profile of the shape. Experts are selected
 * with integer arithmetic on 32-bit random words, so that the selection does not depend on the machine's
 * libm. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/data.h"
#include "kernels/core/philox.h"
#include "kernels/core/plain_math.h"
#include "kernels/core/router.h"

#define TOPK_MAX 255

/* Random words of one token, from Philox at counters (0, token), (1, token), … */
struct words {
    uint64_t key, token, next;
    struct mf_philox4 block;
};

static uint32_t next_word(struct words *w)
{
    if (w->next % 4 == 0)
        w->block = mf_philox(w->key, w->next / 4, w->token);
    return w->block.v[w->next++ % 4];
}

/* Returns a random integer in [0, n), uniform with a bias below 2^-32. */
static uint32_t uniform_below(struct words *w, uint32_t n)
{
    return (uint32_t)((uint64_t)next_word(w) * n >> 32);
}

struct router {
    int32_t n_experts, topk;
    int32_t *deck;        /* a permutation of the experts */
    uint64_t *popularity; /* popularity of each expert, for Zipf and recorded profiles */
    uint64_t key;
};

/* Moves n distinct random experts to deck[first…] by swaps (Fisher-Yates). The deck stays a permutation. */
static void deal(struct router *r, struct words *w, int32_t first, int32_t n)
{
    for (int32_t j = first; j < first + n; j++) {
        int32_t other = j + (int32_t)uniform_below(w, (uint32_t)(r->n_experts - j));
        int32_t id = r->deck[other];
        r->deck[other] = r->deck[j];
        r->deck[j] = id;
    }
}

static void sort_deck(struct router *r)
{
    for (int32_t e = 0; e < r->n_experts; e++)
        r->deck[e] = e;
}

static void route_uniform(struct router *r, struct words *w, int32_t *ids)
{
    deal(r, w, 0, r->topk);
    memcpy(ids, r->deck, (size_t)r->topk * sizeof(*ids));
}

static void route_hot(struct router *r, struct words *w, uint64_t share, int32_t *ids)
{
    bool hot = next_word(w) < share || r->topk == r->n_experts;
    int32_t n = r->topk - hot;
    deal(r, w, 1, n);
    memcpy(ids, r->deck + 1, (size_t)n * sizeof(*ids));
    if (hot) {
        int32_t at = (int32_t)uniform_below(w, (uint32_t)r->topk);
        ids[n] = n > at ? ids[at] : 0;
        ids[at] = 0;
    }
}

/* Returns the highest expert that is not among the n selected ones. */
static int32_t last_left(const struct router *r, const int32_t *ids, int32_t n)
{
    int32_t e = r->n_experts - 1;
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] == e) {
            e--;
            i = -1;
        }
    }
    return e;
}

/* Selects a token's experts without replacement, with probabilities in proportion to their popularity. A
 * selected expert has popularity 0 until all experts of the token are selected. */
static void route_popular(struct router *r, struct words *w, int32_t *ids)
{
    uint64_t left = 0, picked[TOPK_MAX];
    for (int32_t e = 0; e < r->n_experts; e++)
        left += r->popularity[e];
    for (int32_t j = 0; j < r->topk; j++) {
        uint64_t at = (uint64_t)((unsigned __int128)next_word(w) * left >> 32);
        int32_t e = 0;
        for (; e < r->n_experts && at >= r->popularity[e]; e++)
            at -= r->popularity[e];
        /* e is n_experts if all remaining popularities are 0 */
        ids[j] = e < r->n_experts ? e : last_left(r, ids, j);
        picked[j] = r->popularity[ids[j]];
        r->popularity[ids[j]] = 0;
        left -= picked[j];
    }
    for (int32_t j = r->topk - 1; j >= 0; j--)
        r->popularity[ids[j]] = picked[j];
}

/* Computes popularities for Zipf exponent s. The expert of rank r has popularity (r + 1)^-s in units of
 * 2^-32, at least 1. The seed determines which expert has which rank. */
static void make_popularity(struct router *r, double s)
{
    struct words w = {.key = r->key, .token = UINT64_MAX};
    sort_deck(r);
    deal(r, &w, 0, r->n_experts);
    for (int32_t rank = 0; rank < r->n_experts; rank++) {
        double p = mf_plain_exp(-s * mf_plain_log(rank + 1)) * 4294967296.0;
        r->popularity[r->deck[rank]] = p < 1 ? 1 : (uint64_t)p;
    }
}

/* Writes the weights of a token. They are not sorted, like the weights of production routers. */
static void make_weights(const struct mf_shape *shape, uint64_t key, int64_t token, float *weights)
{
    struct words w = {.key = key ^ UINT64_C(0x5bd1e9955bd1e995), .token = (uint64_t)token};
    uint32_t parts[256], sum = 0;
    for (int32_t j = 0; j < shape->topk; j++) {
        parts[j] = 16384 + (next_word(&w) >> 16);
        sum += parts[j];
    }
    for (int32_t j = 0; j < shape->topk; j++)
        weights[j] = (float)parts[j] / (float)sum;
}

/* Inputs and buffers of a model's router. n_experts and topk exclude the shared expert. */
struct model {
    const struct mf_router_rule *rule;
    struct mf_route_in in;
    float *logits, *bias;
    double *scratch;
    int32_t *hash;
    uint64_t key;
};

#define VOCABULARY 129280 /* number of token ids for hash routing, as in DeepSeek models */

/* Returns an approximately normal value with standard deviation 1.5: a scaled sum of four 16-bit uniforms. */
static float draw_logit(struct words *w)
{
    uint32_t a = next_word(w), b = next_word(w);
    int32_t sum = (int32_t)((a >> 16) + (a & 0xffff) + (b >> 16) + (b & 0xffff)) - 131070;
    return (float)sum * (1.0f / 25224.0f);
}

static int route_model(struct model *m, struct router *r, int64_t token, int32_t *ids, float *weights)
{
    struct words w = {.key = m->key ^ UINT64_C(0xc2b2ae3d27d4eb4f), .token = (uint64_t)token};
    for (int32_t e = 0; e < m->in.n_experts; e++)
        m->logits[e] = draw_logit(&w);
    if (m->rule->hashed) {
        struct words h = {.key = m->key ^ UINT64_C(0x165667b19e3779f9),
                          .token = uniform_below(&w, VOCABULARY)};
        deal(r, &h, 0, m->in.topk);
        memcpy(m->hash, r->deck, (size_t)m->in.topk * sizeof(*m->hash));
    }
    return mf_route(m->rule, &m->in, m->scratch, ids, weights);
}

static int by_router(const struct mf_shape *shape, const struct mf_routing *routing, uint64_t key,
                     int32_t *ids, float *weights)
{
    int32_t n = mf_shape_global_experts(shape) - routing->shared, k = shape->topk - routing->shared;
    char why[160];
    if (mf_routing_fits(routing, shape, why, sizeof(why)) < 0)
        return -EINVAL;
    _cleanup_(mf_freep) float *floats = reallocarray(NULL, (size_t)n, 2 * sizeof(*floats));
    _cleanup_(mf_freep) double *scratch = reallocarray(NULL, (size_t)n, 2 * sizeof(*scratch));
    _cleanup_(mf_freep) int32_t *numbers = reallocarray(NULL, (size_t)n + (size_t)k, sizeof(*numbers));
    if (!floats || !scratch || !numbers)
        return -ENOMEM;
    struct router deck = {n, k, numbers, NULL, key};
    struct model m = {mf_router_rule(routing->router),
                      {floats, floats + n, numbers + n, n, k},
                      floats,
                      floats + n,
                      scratch,
                      numbers + n,
                      key};
    struct words w = {.key = key, .token = UINT64_MAX};
    for (int32_t e = 0; e < n; e++)
        m.bias[e] = draw_logit(&w) / 16;
    int r = 0;
    for (int64_t t = 0; t < shape->token && r == 0; t++) {
        int32_t *row = ids + t * shape->topk;
        sort_deck(&deck);
        r = route_model(&m, &deck, t, row, weights + t * shape->topk);
        if (routing->shared) {
            row[k] = n;
            weights[t * shape->topk + k] = 1;
        }
    }
    return r;
}

static void route_token(struct router *r, const struct mf_routing *routing, int64_t t, int32_t *ids)
{
    struct words w = {.key = r->key, .token = (uint64_t)t};
    sort_deck(r);
    switch (routing->kind) {
    case MF_ROUTING_UNIFORM:
        route_uniform(r, &w, ids);
        break;
    case MF_ROUTING_BALANCED:
        for (int32_t j = 0; j < r->topk; j++)
            ids[j] = (int32_t)((t * r->topk + j) % r->n_experts);
        break;
    case MF_ROUTING_ZIPF:
    case MF_ROUTING_RECORDED:
        route_popular(r, &w, ids);
        break;
    case MF_ROUTING_HOT:
        route_hot(r, &w, (uint64_t)(routing->parameter * 4294967296.0), ids);
        break;
    case MF_ROUTING_ROUTER:
    case MF_ROUTING_N_:
        break;
    }
}

int mf_data_topk(const struct mf_shape *shape, const struct mf_routing *routing, uint64_t seed, int32_t *ids,
                 float *weights)
{
    char why[160];
    if (shape->topk > mf_shape_global_experts(shape) || shape->topk > TOPK_MAX ||
        routing->kind >= MF_ROUTING_N_ || mf_routing_fits(routing, shape, why, sizeof(why)) < 0)
        return -EINVAL;
    uint64_t key = seed + (MF_TENSOR_TOPK + 1) * UINT64_C(0x9E3779B97F4A7C15);
    if (routing->kind == MF_ROUTING_ROUTER)
        return by_router(shape, routing, key, ids, weights);
    size_t n = (size_t)mf_shape_global_experts(shape);
    _cleanup_(mf_freep) int32_t *deck = reallocarray(NULL, n, sizeof(*deck));
    _cleanup_(mf_freep) uint64_t *popularity = reallocarray(NULL, n, sizeof(*popularity));
    if (!deck || !popularity)
        return -ENOMEM;
    struct router r = {(int32_t)n, shape->topk, deck, popularity, key};
    if (routing->kind == MF_ROUTING_ZIPF)
        make_popularity(&r, routing->parameter);
    for (int32_t e = 0; e < routing->n_counts; e++)
        popularity[e] = routing->counts[e];
    for (int64_t t = 0; t < shape->token; t++) {
        route_token(&r, routing, t, ids + t * shape->topk);
        make_weights(shape, key, t, weights + t * shape->topk);
    }
    return 0;
}

int64_t mf_active_experts(const struct mf_shape *shape, const int32_t *ids)
{
    _cleanup_(mf_freep) bool *seen = calloc((size_t)shape->expert, sizeof(*seen));
    int64_t n = 0;
    for (int64_t i = 0; seen && i < shape->token * shape->topk; i++) {
        int32_t e = mf_shape_local_expert(shape, ids[i]);
        if (e < 0)
            continue;
        n += !seen[e];
        seen[e] = true;
    }
    return n;
}
