#include "server/choose/least_routes.h"

#include <math.h>

#include "common/base/cleanup.h"

/* ln of 1 / 1e-13 */
#define LOG_RARE 30.0

/* Returns a number that a sum of independent or negatively associated indicators exceeds except with a
 * probability of exp(-LOG_RARE), by Bernstein's inequality. */
static double rare_minimum(double mean, double variance)
{
    return mean - LOG_RARE / 3 - sqrt(LOG_RARE * LOG_RARE / 9 + 2 * LOG_RARE * variance);
}

/* Each token takes `topk` of `experts` experts at random; `local` of the experts are local. The indicators of
 * experts with tokens are negatively associated. The local routes of a token have a hypergeometric
 * distribution, which is that of a sum of independent indicators. */
static struct mf_least_routes random_minimum(double tokens, double topk, double experts, double local)
{
    double share = experts > 0 ? topk / experts : 0, empty = pow(1 - share, tokens);
    double near = experts > 0 ? local / experts : 0, routes = tokens * topk;
    return (struct mf_least_routes){
        .routes = rare_minimum(routes * near, routes * near * (1 - near)),
        .active = rare_minimum(local * (1 - empty), local * empty * (1 - empty)),
    };
}

/* The routes of a balanced profile are consecutive experts. */
static struct mf_least_routes balanced(const struct mf_shape *s)
{
    int64_t experts = mf_shape_global_experts(s), routes = s->token * s->topk;
    int64_t rest = MF_MIN(s->expert, MF_MAX(0, routes % experts - s->ep_first));
    return (struct mf_least_routes){.routes = (double)(routes / experts * s->expert + rest),
                                    .active = (double)(routes >= experts ? s->expert : rest)};
}

/* A token's experts are distinct, so it cannot take only experts that are not local if there are too few. All
 * tokens may take the same experts. */
static struct mf_least_routes any_routing(const struct mf_shape *s)
{
    int64_t of_token = MF_MAX(0, s->topk - (mf_shape_global_experts(s) - s->expert));
    return (struct mf_least_routes){.routes = (double)(s->token * of_token), .active = (double)of_token};
}

struct mf_least_routes mf_least_routes(const struct mf_routing *routing, const struct mf_shape *s)
{
    struct mf_least_routes least = any_routing(s), more = least;
    double tokens = (double)s->token, experts = mf_shape_global_experts(s);
    switch (routing->kind) {
    case MF_ROUTING_BALANCED:
        return balanced(s);
    case MF_ROUTING_UNIFORM:
        more = random_minimum(tokens, s->topk, experts, s->expert);
        break;
    case MF_ROUTING_HOT: /* all but one expert of a token are taken at random from all but one expert */
        more = random_minimum(tokens, s->topk - 1, experts - 1, s->expert - 1);
        break;
    case MF_ROUTING_ZIPF:
    case MF_ROUTING_RECORDED:
    case MF_ROUTING_ROUTER:
    case MF_ROUTING_N_:
        break;
    }
    return (struct mf_least_routes){.routes = fmax(least.routes, more.routes),
                                    .active = fmax(least.active, more.active)};
}
