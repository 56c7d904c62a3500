/* Routers compute a token's experts and their weights from the token's logits, by the rules of production
 * models.
 *
 *   softmax         p = softmax(logits) over all experts; selects the topk largest p; weight p
 *   softmax_renorm  as softmax, weights divided by their sum (Qwen3, Mixtral; gpt-oss, where this equals a
 *                   softmax of the topk)
 *   sigmoid_top     selects the topk largest logits; weight sigmoid(logit) (Llama-4: topk 1, and the weight
 *                   is applied at gemm1)
 *   sigmoid_bias    s = sigmoid(logit); selects the topk largest s + bias; weight s / sum of the selected s,
 *                   times the scale
 *   sigmoid_groups  as sigmoid_bias, restricted to the best groups. A group's score is the sum of its two
 *                   largest s + bias (deepseek-ai/DeepSeek-V3, inference/model.py). Experts of other groups
 *                   are excluded or, with masked_to_zero, compete with value 0.0, as in the references of
 *                   Hugging Face and AITER. Exclusion and masked_to_zero select different experts only if
 *                   an s + bias in the best groups is negative.
 *   sqrt_softplus   s = sqrt(softplus(logit)), softplus linear above 20; selects the topk largest s + bias;
 *                   weight s / (sum + 1e-20), times the scale (DeepSeek-V4)
 *   hash            a table indexed by the token's id gives the experts; weights as with sqrt_softplus
 *
 * The bias affects the selection only, never a weight. Weights include the scale (routed_scaling_factor), so
 * callers must not apply it again. Among equal values the lower expert is selected. ids are in order of
 * descending score. An expert with a NaN logit has weight 0 and is selected only if no other expert is left.
 * Infinite logits are treated as the largest finite floats. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/routing.h"

enum mf_router_score { MF_SCORE_SOFTMAX, MF_SCORE_SIGMOID, MF_SCORE_SQRT_SOFTPLUS };

struct mf_router_rule {
    enum mf_router_score score;
    bool biased, renormalised, hashed;
    bool masked_to_zero;
    /* number of groups, and of groups from which experts are selected; 0: no groups */
    int groups, groups_kept;
    double sum_floor; /* added to the sum of the selected scores */
    double scale;
};

/* Returns the rule of a model. A caller that needs another rule copies and changes it. */
const struct mf_router_rule *mf_router_rule(enum mf_router router);

struct mf_route_in {
    const float *logits; /* n_experts values */
    const float *bias;   /* n_experts values; NULL: no bias */
    const int32_t *hash; /* the token's topk ids; used only by hashed rules */
    int32_t n_experts, topk;
};

/* Writes the topk ids and weights of one token. `scratch` has 2 * n_experts values. Returns -EINVAL if topk
 * or the groups do not fit the number of experts, or if an id in `hash` is out of range. */
int mf_route(const struct mf_router_rule *rule, const struct mf_route_in *in, double *scratch, int32_t *ids,
             float *weights);
