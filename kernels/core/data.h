/* The data that a shape is timed and checked on: the same bits on every device and node.
 *
 * A value of tensor t is a sum of four 16-bit uniforms of Philox keyed by (seed, t), centred and scaled by exact
 * arithmetic to a standard deviation of about s: x 1, w1 1/sqrt(H), w2 1/sqrt(I), so that no stage over- or
 * underflows; then rounded to bf16, then quantised as the shape says. Weights depend on the layer model and
 * the seed only, and serve its whole ladder.
 *
 * Biases have a standard deviation of 1/2 and values of bf16, row e for expert e.
 *
 * Value k of row r: with q = k / 32 and i = k % 16, the Philox block at counter (16·q + i, r) gives it, words 0 and
 * 1 for the first sixteen values of the 32, words 2 and 3 for the others. A row of w is e·N + n. */
#pragma once

#include <stdint.h>

#include "common/moe/routing.h"
#include "common/moe/shape.h"
#include "kernels/core/tensors.h"

/* What a row of x, w1 or w2 is made of beside its number: for whoever makes the same bits elsewhere. */
struct mf_data_rule {
    uint64_t key; /* of Philox */
    float factor; /* of the centred sums */
};
struct mf_data_rule mf_data_rule(const struct mf_shape *shape, enum mf_tensor tensor, uint64_t seed);
/* bf16 values of x, row `token`, H of them. */
void mf_data_x_row(const struct mf_shape *shape, uint64_t seed, int64_t token, uint16_t *out);
/* bf16 values of row n of expert e of w1 (H values) or w2 (I values), before quantisation. */
void mf_data_w_row(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert, int64_t n,
                   uint16_t *out);
/* One expert's weight quantised as the shape says, in `row` layout: its share of the tensor spec's parts, elements, scales
 * and global factor, as many as there are. -ENOMEM. */
int mf_data_expert(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert,
                   const struct mf_tensor_ref *out);
/* A whole weight, every part, on the threads of the pool. -ENOMEM; -EINVAL for formats that make no pair. */
int mf_data_weight(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed,
                   const struct mf_tensor_ref *out);
/* A bias, b1 or b2, whole: the tensor spec's floats. -ENOMEM. */
int mf_data_bias(const struct mf_shape *shape, enum mf_tensor b, uint64_t seed, float *out);
/* x bf16 [T,H], on the threads of the pool. */
void mf_data_x(const struct mf_shape *shape, uint64_t seed, uint16_t *out);

/* ids [T,k] over all ranks' experts, distinct within a token; weights [T,k], positive, each token's sum 1 within a rounding.
 * -ENOMEM; -EINVAL for more slots than experts. */
int mf_data_topk(const struct mf_shape *shape, const struct mf_routing *routing, uint64_t seed, int32_t *ids,
                 float *weights);
/* Number of experts of this rank that get at least one token. */
int64_t mf_active_experts(const struct mf_shape *shape, const int32_t *ids);
