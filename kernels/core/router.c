#include "kernels/core/router.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stddef.h>

#include "common/base/cleanup.h"
#include "kernels/core/plain_math.h"

/* clang-format off */
static const struct mf_router_rule rules[] = {
    [MF_ROUTER_SOFTMAX]        = {.score = MF_SCORE_SOFTMAX, .scale = 1},
    [MF_ROUTER_SOFTMAX_RENORM] = {.score = MF_SCORE_SOFTMAX, .renormalised = true, .scale = 1},
    [MF_ROUTER_SIGMOID_TOP]    = {.score = MF_SCORE_SIGMOID, .scale = 1},
    [MF_ROUTER_SIGMOID_BIAS]   = {.score = MF_SCORE_SIGMOID, .biased = true, .renormalised = true,
                                  .scale = 2.827},
    [MF_ROUTER_SIGMOID_GROUPS] = {.score = MF_SCORE_SIGMOID, .biased = true, .renormalised = true,
                                  .scale = 2.5, .groups = MF_ROUTER_GROUPS,
                                  .groups_kept = MF_ROUTER_GROUPS_KEPT},
    [MF_ROUTER_SQRT_SOFTPLUS]  = {.score = MF_SCORE_SQRT_SOFTPLUS, .biased = true, .renormalised = true,
                                  .sum_floor = 1e-20, .scale = 1.5},
    [MF_ROUTER_HASH]           = {.score = MF_SCORE_SQRT_SOFTPLUS, .hashed = true, .renormalised = true,
                                  .sum_floor = 1e-20, .scale = 1.5},
};
/* clang-format on */

const struct mf_router_rule *mf_router_rule(enum mf_router router)
{
    return (size_t)router < MF_ARRAY_LEN(rules) ? &rules[router] : NULL;
}

static double finite_logit(float logit)
{
    return logit > FLT_MAX ? (double)FLT_MAX : logit < -FLT_MAX ? -(double)FLT_MAX : (double)logit;
}

static double sigmoid(double x)
{
    double e = mf_plain_exp(x < 0 ? MF_MAX(x, -700) : MF_MAX(-x, -700));
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

static double softplus(double x)
{
    if (x > 20)
        return x;
    double e = mf_plain_exp(MF_MAX(x, -700));
    /* Avoids log(1 + e), which loses precision for small e. */
    return e < 1e-6 ? e : mf_plain_log(1 + e);
}

/* Computes the score s of every expert. An expert with a NaN logit gets score -inf, so that it ranks below
 * all other experts. */
static void score(enum mf_router_score kind, const struct mf_route_in *in, double *s)
{
    double top = -(double)INFINITY, sum = 0;
    for (int32_t e = 0; e < in->n_experts; e++) {
        double x = finite_logit(in->logits[e]);
        if (isnan(x))
            s[e] = -(double)INFINITY;
        else
            s[e] = kind == MF_SCORE_SIGMOID         ? sigmoid(x)
                   : kind == MF_SCORE_SQRT_SOFTPLUS ? sqrt(softplus(x))
                                                    : x;
        top = MF_MAX(top, s[e]);
    }
    if (kind != MF_SCORE_SOFTMAX)
        return;
    for (int32_t e = 0; e < in->n_experts; e++) {
        if (s[e] > -(double)INFINITY)
            s[e] = mf_plain_exp(MF_MAX(s[e] - top, -700));
        sum += MF_MAX(s[e], 0);
    }
    for (int32_t e = 0; e < in->n_experts; e++) {
        if (s[e] > -(double)INFINITY)
            s[e] /= sum;
    }
}

/* Returns the sum of the two largest values of a group. */
static double group_score(const double *c, int32_t n)
{
    double first = -(double)INFINITY, second = -(double)INFINITY;
    for (int32_t i = 0; i < n; i++) {
        second = MF_MAX(second, MF_MIN(first, c[i]));
        first = MF_MAX(first, c[i]);
    }
    return first + second;
}

/* Excludes the experts of all but the best groups from the selection. */
static void mask_groups(const struct mf_router_rule *rule, int32_t n_experts, double *c)
{
    int32_t n = n_experts / rule->groups;
    double scores[64];
    for (int g = 0; g < rule->groups; g++)
        scores[g] = group_score(c + g * n, n);
    for (int g = 0; g < rule->groups; g++) {
        int better = 0;
        for (int o = 0; o < rule->groups; o++)
            better += scores[o] > scores[g] || (o < g && !(scores[g] > scores[o]));
        for (int32_t i = 0; i < n && better >= rule->groups_kept; i++)
            c[g * n + i] = rule->masked_to_zero ? 0.0 : -(double)INFINITY;
    }
}

/* Returns the expert with the largest remaining value; among equal values, the one with the lowest id. Marks
 * this expert as selected by setting its value to NaN. */
static int32_t take_best(double *c, int32_t n)
{
    int32_t best = -1;
    for (int32_t e = 0; e < n; e++) {
        if (!isnan(c[e]) && (best < 0 || c[e] > c[best]))
            best = e;
    }
    c[best] = (double)NAN;
    return best;
}

static int pick(const struct mf_router_rule *rule, const struct mf_route_in *in, const double *s, double *c,
                int32_t *ids)
{
    if (rule->hashed) {
        for (int32_t j = 0; j < in->topk; j++) {
            if (!in->hash || in->hash[j] < 0 || in->hash[j] >= in->n_experts)
                return -EINVAL;
            ids[j] = in->hash[j];
        }
        return 0;
    }
    for (int32_t e = 0; e < in->n_experts; e++)
        c[e] = s[e] + (rule->biased && in->bias ? (double)in->bias[e] : 0);
    if (rule->groups > 0)
        mask_groups(rule, in->n_experts, c);
    for (int32_t j = 0; j < in->topk; j++)
        ids[j] = take_best(c, in->n_experts);
    return 0;
}

int mf_route(const struct mf_router_rule *rule, const struct mf_route_in *in, double *scratch, int32_t *ids,
             float *weights)
{
    double *s = scratch, *c = scratch + in->n_experts, sum = rule->sum_floor;
    if (in->topk < 1 || in->topk > in->n_experts || rule->groups > 64 ||
        (rule->groups > 0 && (in->n_experts % rule->groups != 0 || in->n_experts < 2 * rule->groups)))
        return -EINVAL;
    score(rule->score, in, s);
    int r = pick(rule, in, s, c, ids);
    if (r < 0)
        return r;
    for (int32_t j = 0; j < in->topk; j++)
        sum += MF_MAX(s[ids[j]], 0);
    for (int32_t j = 0; j < in->topk; j++) {
        double w = MF_MAX(s[ids[j]], 0) * rule->scale;
        weights[j] = (float)(rule->renormalised && sum > 0 ? w / sum : w);
    }
    return 0;
}
