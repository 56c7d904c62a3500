/* Compares the bounds with the routing data that workers measure. */
#include "server/choose/least_routes.h"

#include <stdlib.h>

#include "common/base/cleanup.h"
#include "kernels/core/data.h"
#include "support/mf_check.h"

#define SEEDS 20

/* least: of the bound, rounded down; exact if the profile determines the number */
static const struct {
    int64_t token;
    int32_t expert, topk, ep_first, ep_experts;
    const char *routing;
    double least_routes, least_active;
} cases[] = {
    /* uniform: DeepSeek-V3's experts */
    {1, 256, 8, 0, 0, "uniform", 8, 8},
    {16, 256, 8, 0, 0, "uniform", 128, 30},
    {128, 256, 8, 0, 0, "uniform", 1024, 222},
    {4096, 256, 8, 0, 0, "uniform", 32768, 236},
    {64, 8, 2, 0, 0, "uniform", 128, 2},
    {5, 4, 4, 0, 0, "uniform", 20, 4},
    {256, 32, 8, 64, 256, "uniform", 129, 11}, /* 32 of 256 experts are local */
    {1, 32, 8, 64, 256, "uniform", 0, 0},
    {3, 30, 4, 1, 32, "uniform", 6, 2}, /* a token takes at least 2 local experts */
    /* all tokens may take the same experts */
    {4096, 128, 1, 0, 0, "hot:1", 4096, 1},
    {4096, 128, 8, 0, 0, "hot:1", 32768, 107},
    {4096, 128, 8, 0, 0, "hot:0.5", 32768, 107},
    {64, 8, 1, 0, 0, "hot:0.5", 64, 1},
    {64, 8, 8, 0, 0, "hot:0.5", 512, 8},
    {256, 32, 8, 0, 256, "hot:1", 100, 10},
    {256, 32, 8, 64, 256, "hot:0.9", 100, 10},
    {4096, 128, 8, 0, 0, "zipf:4", 32768, 8},
    {512, 16, 4, 0, 64, "zipf:2", 0, 0},
    {512, 8, 2, 0, 0, "recorded:9000.9000.0.0.0.0.0.0", 1024, 2},
    {512, 8, 3, 0, 0, "recorded:9000.1.0.0.0.0.0.0", 1536, 3},
    {512, 64, 8, 0, 0, "router:sigmoid_groups", 4096, 8},
    {512, 64, 6, 0, 0, "router:hash", 3072, 6},
    {512, 65, 9, 0, 0, "router:sigmoid_groups+shared", 4608, 9},
    /* balanced: exact */
    {1, 256, 8, 0, 0, "balanced", 8, 8},
    {40, 256, 8, 0, 0, "balanced", 320, 256},
    {31, 256, 8, 0, 0, "balanced", 248, 248},
    {10, 32, 8, 64, 256, "balanced", 16, 16},
    {33, 32, 8, 0, 256, "balanced", 40, 32},
    {33, 32, 8, 32, 256, "balanced", 32, 32},
    {2, 32, 8, 64, 256, "balanced", 0, 0},
};

static struct mf_shape shape_of(int i)
{
    return (struct mf_shape){.token = cases[i].token,
                             .model_dim = 256,
                             .inter_dim = 128,
                             .expert = cases[i].expert,
                             .topk = cases[i].topk,
                             .use_g1u1 = true,
                             .ep_first = cases[i].ep_first,
                             .ep_experts = cases[i].ep_experts};
}

static int64_t local_routes(const struct mf_shape *s, const int32_t *ids)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->token * s->topk; i++)
        n += mf_shape_local_expert(s, ids[i]) >= 0;
    return n;
}

MF_TEST(bounds_hold, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_shape s = shape_of(_i);
    struct mf_routing routing;
    ck_assert_int_eq(mf_routing_parse(cases[_i].routing, &routing), 0);
    struct mf_least_routes least = mf_least_routes(&routing, &s);
    ck_assert_msg(least.routes >= cases[_i].least_routes && least.routes < cases[_i].least_routes + 1,
                  "%g routes", least.routes);
    ck_assert_msg(least.active >= cases[_i].least_active && least.active < cases[_i].least_active + 1,
                  "%g active", least.active);
    size_t n = (size_t)(s.token * s.topk);
    _cleanup_(mf_freep) int32_t *ids = calloc(n, sizeof(*ids));
    _cleanup_(mf_freep) float *weights = calloc(n, sizeof(*weights));
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        ck_assert_int_eq(mf_data_topk(&s, &routing, seed, ids, weights), 0);
        double routes = (double)local_routes(&s, ids), active = (double)mf_active_experts(&s, ids);
        ck_assert_msg(routes >= least.routes && active >= least.active, "seed %d: %g routes, %g active",
                      (int)seed, routes, active);
        if (routing.kind == MF_ROUTING_BALANCED) {
            ck_assert_double_eq(routes, least.routes);
            ck_assert_double_eq(active, least.active);
        }
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
