/* Routers: from the logits of one token to its experts and their weights, by the rules of the models that are served.
 *
 *   softmax          p = softmax(logits) over all; the topk largest; weight p
 *   softmax_renorm   the same, weights divided by their sum (Qwen3, Mixtral, gpt-oss: equal to a softmax of the topk)
 *   sigmoid_top      the topk largest logits; weight sigmoid(logit) (Llama-4; applied to gemm1's side, topk 1)
 *   sigmoid_bias     s = sigmoid(logit), picked by s + bias; weight s / sum of the kept s, times the scale
 *   sigmoid_groups   the same within groups: a group counts the sum of its two largest s + bias, the best groups are kept
 *                    (deepseek-ai/DeepSeek-V3, inference/model.py). Experts of other groups are out of the choice, or
 *                    with masked_to_zero take part with 0.0 (Hugging Face's and AITER's reference do so: it differs when
 *                    every kept s + bias is negative)
 *   sqrt_softplus    s = sqrt(softplus(logit)), softplus linear above 20, picked by s + bias; weight s / (sum + 1e-20),
 *                    times the scale (DeepSeek-V4)
 *   hash             ids are given by a table of the token's id; weights as sqrt_softplus
 *
 * The bias decides who is picked and never enters a weight. The scale (routed_scaling_factor) is in the weights, and so
 * must not be applied again. Ties go to the lower expert; ids come in order of falling score. A NaN logit is picked when
 * nothing else is left, with weight 0; infinities count as the largest floats. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/routing.h"

enum mf_router_score { MF_SCORE_SOFTMAX, MF_SCORE_SIGMOID, MF_SCORE_SQRT_SOFTPLUS };

struct mf_router_rule {
    enum mf_router_score score;
    bool biased, renormalised, hashed;
    bool masked_to_zero;
    int groups, groups_kept; /* 0: none */
    double sum_floor;        /* added to the sum of the kept */
    double scale;
};

/* As the model has it; a caller may copy and change. */
const struct mf_router_rule *mf_router_rule(enum mf_router router);

struct mf_route_in {
    const float *logits; /* n_experts */
    const float *bias;   /* n_experts; NULL: none */
    const int32_t *hash; /* topk ids; of hashed rules only */
    int32_t n_experts, topk;
};

/* ids and weights have topk entries; scratch has 2 * n_experts. -EINVAL: topk or groups do not fit, or a hashed id is
 * none. */
int mf_route(const struct mf_router_rule *rule, const struct mf_route_in *in, double *scratch, int32_t *ids,
             float *weights);
