#include "kernels/core/router.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/data.h"
#include "kernels/core/plain_math.h"
#include "support/mf_check.h"

#define N 16

static void route(const struct mf_router_rule *rule, const float *logits, const float *bias, int32_t n,
                  int32_t k, int32_t *ids, float *weights)
{
    double scratch[2 * N];
    ck_assert_int_eq(mf_route(rule, &(struct mf_route_in){logits, bias, NULL, n, k}, scratch, ids, weights),
                     0);
}

/* sqrt(softplus(x)): published values of the DeepSeek-V4 rule. */
MF_TEST(sqrt_softplus_of_known_logits)
{
    static const float logits[] = {-5, 0, 1, 10};
    static const double expected[] = {0.0819472, 0.832555, 1.145976, 3.162284};
    struct mf_router_rule rule = *mf_router_rule(MF_ROUTER_SQRT_SOFTPLUS);
    rule.renormalised = false;
    rule.scale = 1;
    for (int i = 0; i < 4; i++) {
        int32_t id;
        float weight;
        route(&rule, &logits[i], NULL, 1, 1, &id, &weight);
        ck_assert_double_eq_tol((double)weight, expected[i], 1e-6);
    }
}

MF_TEST(softmax_of_kept_experts)
{
    static const float logits[] = {0.5f, -1, 2, 1.5f};
    int32_t ids[2];
    float kept[2], plain[2];
    route(mf_router_rule(MF_ROUTER_SOFTMAX_RENORM), logits, NULL, 4, 2, ids, kept);
    ck_assert_int_eq(ids[0], 2);
    ck_assert_int_eq(ids[1], 3);
    ck_assert_double_eq_tol((double)kept[0], 1 / (1 + exp(-0.5)), 1e-7);
    route(mf_router_rule(MF_ROUTER_SOFTMAX), logits, NULL, 4, 2, ids, plain);
    double sum = exp(0.5) + exp(-1.0) + exp(2.0) + exp(1.5);
    ck_assert_double_eq_tol((double)plain[0], exp(2.0) / sum, 1e-7);
    ck_assert_double_eq_tol((double)plain[1], exp(1.5) / sum, 1e-7);
}

/* The bias affects the selection only, not the weights; the scale is applied to the weights once. */
MF_TEST(bias_selects_scale_applied_once)
{
    static const float logits[] = {1, 0, -1, 0.5f}, bias[] = {0, 0, 5, 0};
    int32_t ids[2];
    float weights[2];
    struct mf_router_rule rule = *mf_router_rule(MF_ROUTER_SIGMOID_BIAS);
    rule.scale = 2.5;
    route(&rule, logits, bias, 4, 2, ids, weights);
    ck_assert_int_eq(ids[0], 2);
    ck_assert_int_eq(ids[1], 0);
    double low = 1 / (1 + exp(1.0)), high = 1 / (1 + exp(-1.0));
    ck_assert_double_eq_tol((double)weights[0], 2.5 * low / (low + high), 1e-6);
    ck_assert_double_eq_tol((double)weights[0] + (double)weights[1], 2.5, 1e-6);
}

/* 16 experts in 8 groups of two; 4 groups are kept. Expert 0 has the highest score, but its group has the
 * lowest sum. */
MF_TEST(groups_ranked_by_two_best)
{
    float logits[16];
    int32_t ids[4];
    float weights[4];
    for (int e = 0; e < 16; e++)
        logits[e] = (float)(e / 2) * 0.1f;
    logits[0] = 0.9f;
    logits[1] = -9;
    route(mf_router_rule(MF_ROUTER_SIGMOID_GROUPS), logits, NULL, 16, 4, ids, weights);
    for (int j = 0; j < 4; j++)
        ck_assert_int_ge(ids[j], 8);
}

/* If all kept scores are negative, experts of dropped groups win if they are masked with 0.0, but not if they
 * are masked with -inf. */
MF_TEST(mask_values_differ)
{
    float logits[16], bias[16], weights[4];
    int32_t ids[4];
    struct mf_router_rule rule = *mf_router_rule(MF_ROUTER_SIGMOID_GROUPS);
    for (int e = 0; e < 16; e++) {
        logits[e] = 0;
        bias[e] = -2 - (float)(e / 2) * 0.1f;
    }
    route(&rule, logits, bias, 16, 4, ids, weights);
    for (int j = 0; j < 4; j++)
        ck_assert_int_lt(ids[j], 8);
    rule.masked_to_zero = true;
    route(&rule, logits, bias, 16, 4, ids, weights);
    for (int j = 0; j < 4; j++)
        ck_assert_int_ge(ids[j], 8);
}

MF_TEST(nonfinite_logits_isolated)
{
    const float logits[] = {NAN, INFINITY, 1, -INFINITY};
    for (int router = 0; router < MF_ROUTER_HASH; router++) {
        int32_t ids[3];
        float weights[3];
        if (router == MF_ROUTER_SIGMOID_GROUPS)
            continue;
        route(mf_router_rule((enum mf_router)router), logits, NULL, 4, 3, ids, weights);
        ck_assert_int_eq(ids[0], 1);
        ck_assert_int_eq(ids[1], 2);
        ck_assert_int_eq(ids[2], 3);
        for (int j = 0; j < 3; j++)
            ck_assert(isfinite(weights[j]) && weights[j] >= 0);
    }
}

MF_TEST(equal_logits_pick_lower_expert)
{
    float logits[16] = {0}, weights[4];
    int32_t ids[4];
    for (int router = 0; router < MF_ROUTER_HASH; router++) {
        route(mf_router_rule((enum mf_router)router), logits, NULL, 16, 4, ids, weights);
        for (int j = 0; j < 4; j++)
            ck_assert_int_eq(ids[j], j);
    }
}

MF_TEST(invalid_routing_refused)
{
    float logits[16] = {0}, weights[4];
    double scratch[32];
    int32_t ids[4], hash[2] = {1, 16};
    struct mf_route_in in = {logits, NULL, NULL, 16, 0};
    ck_assert_int_eq(mf_route(mf_router_rule(MF_ROUTER_SOFTMAX), &in, scratch, ids, weights), -EINVAL);
    in.topk = 17;
    ck_assert_int_eq(mf_route(mf_router_rule(MF_ROUTER_SOFTMAX), &in, scratch, ids, weights), -EINVAL);
    in.topk = 2;
    ck_assert_int_eq(mf_route(mf_router_rule(MF_ROUTER_HASH), &in, scratch, ids, weights), -EINVAL);
    in.hash = hash;
    ck_assert_int_eq(mf_route(mf_router_rule(MF_ROUTER_HASH), &in, scratch, ids, weights), -EINVAL);
    in.n_experts = 12;
    ck_assert_int_eq(mf_route(mf_router_rule(MF_ROUTER_SIGMOID_GROUPS), &in, scratch, ids, weights), -EINVAL);
    ck_assert_ptr_null(mf_router_rule(MF_ROUTER_N_));
}

MF_TEST(plain_math_accuracy)
{
    for (double x = -700; x <= 700; x += 0.37)
        ck_assert_double_lt(fabs(mf_plain_exp(x) / exp(x) - 1), 1e-11);
    for (double x = 1; x < 1e9; x *= 1.37)
        ck_assert_double_lt(fabs(mf_plain_log(x) - log(x)), 1e-12 * (1 + log(x)));
}

/* With every routing rule, ids are distinct and in range, weights are positive, and the shared expert is last
 * with weight 1. */
MF_TEST(data_by_router, .rows = 2 * MF_ROUTER_N_)
{
    char text[64];
    struct mf_routing routing;
    bool shared = _i >= MF_ROUTER_N_;
    struct mf_shape s = {
        .token = 200, .expert = 64 + shared, .topk = 6 + shared, .model_dim = 64, .inter_dim = 64};
    int32_t ids[200 * 7], again[200 * 7];
    float weights[200 * 7];
    (void)snprintf(text, sizeof(text), "router:%s%s", mf_router_name((enum mf_router)(_i % MF_ROUTER_N_)),
                   shared ? "+shared" : "");
    ck_assert_int_eq(mf_routing_parse(text, &routing), 0);
    ck_assert_int_eq(mf_data_topk(&s, &routing, 7, ids, weights), 0);
    ck_assert_int_eq(mf_data_topk(&s, &routing, 7, again, weights), 0);
    ck_assert_mem_eq(ids, again, sizeof(int32_t) * (size_t)(s.token * s.topk));
    for (int64_t t = 0; t < s.token; t++) {
        const int32_t *row = ids + t * s.topk;
        for (int32_t j = 0; j < s.topk; j++) {
            ck_assert(row[j] >= 0 && row[j] < 64 + (shared && j == 6));
            ck_assert(weights[t * s.topk + j] > 0);
            for (int32_t i = 0; i < j; i++)
                ck_assert_int_ne(row[i], row[j]);
        }
        if (shared) {
            ck_assert_int_eq(row[6], 64);
            ck_assert_double_eq((double)weights[t * s.topk + 6], 1);
        }
    }
    ck_assert_int_gt(mf_active_experts(&s, ids), 40);
}

/* Expert frequencies match the recorded counts. Experts with count 0 are chosen only if no other expert is
 * left. */
MF_TEST(data_by_recorded_counts)
{
    struct mf_routing routing;
    struct mf_shape s = {.token = 4000, .expert = 8, .topk = 1, .model_dim = 64, .inter_dim = 64};
    static int32_t ids[4000 * 3];
    static float weights[4000 * 3];
    int64_t seen[8] = {0};
    ck_assert_int_eq(mf_routing_parse("recorded:1000.0.0.500.250.250.0.0", &routing), 0);
    ck_assert_int_eq(mf_data_topk(&s, &routing, 3, ids, weights), 0);
    for (int64_t i = 0; i < s.token; i++)
        seen[ids[i]]++;
    ck_assert_int_eq(seen[1] + seen[2] + seen[6] + seen[7], 0);
    ck_assert(llabs(seen[0] - 2000) < 200 && llabs(seen[3] - 1000) < 150 && llabs(seen[4] - 500) < 120);
    ck_assert_int_eq(mf_routing_parse("recorded:5.0.0.5.0.0.0.0", &routing), 0);
    s.topk = 3;
    ck_assert_int_eq(mf_data_topk(&s, &routing, 3, ids, weights), 0);
    for (int64_t t = 0; t < s.token; t++)
        ck_assert_int_eq(ids[3 * t] + ids[3 * t + 1], 3);
    s.expert = 7;
    ck_assert_int_eq(mf_data_topk(&s, &routing, 3, ids, weights), -EINVAL);
}

int main(void)
{
    return mf_check_main(NULL);
}
