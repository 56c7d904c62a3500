/* Test data for timing and verification of a shape: the same bits on every device and machine.
 *
 * A value of tensor t is the sum of four 16-bit uniforms from Philox keyed by (seed, t). The sum is centred
 * and scaled with exact arithmetic to a standard deviation of about 1 for x, 1/sqrt(H) for w1 and 1/sqrt(I)
 * for w2, so that no stage overflows or underflows. Then it is rounded to bf16 and quantised to the shape's
 * format. Weights depend only on the layer model and the seed; all token counts of the layer model share
 * them.
 *
 * Biases have a standard deviation of 1/2 and bf16 values. Row e belongs to expert e.
 *
 * Value k of row r comes from the Philox block at counter (16·q + i, r), where q = k / 32 and i = k % 16. The
 * first sixteen of each 32 values come from words 0 and 1 of the block, the other sixteen from words 2 and 3.
 * Row n of w of expert e is r = e·N + n. */
#pragma once

#include <stdint.h>

#include "common/moe/routing.h"
#include "common/moe/shape.h"
#include "kernels/core/tensors.h"

/* Parameters of x, w1 or w2 for code that generates the same bits on another device. */
struct mf_data_rule {
    uint64_t key; /* Philox key */
    float factor; /* factor of the centred sums */
};
struct mf_data_rule mf_data_rule(const struct mf_shape *shape, enum mf_tensor tensor, uint64_t seed);
/* Writes the H bf16 values of row `token` of x. */
void mf_data_x_row(const struct mf_shape *shape, uint64_t seed, int64_t token, uint16_t *out);
/* Writes the bf16 values of row n of expert e of w1 (H values) or w2 (I values), before quantisation. */
void mf_data_w_row(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert, int64_t n,
                   uint16_t *out);
/* Writes one expert's quantised weight in `row` layout to the parts of the tensor spec (elements, scales and
 * global factor, if present). Returns 0 or -ENOMEM. */
int mf_data_expert(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed, int32_t expert,
                   const struct mf_tensor_ref *out);
/* Writes all parts of a weight, on the pool's threads. Returns 0, -ENOMEM, or -EINVAL if the shape's formats
 * are not a valid pair. */
int mf_data_weight(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed,
                   const struct mf_tensor_ref *out);
/* Writes the floats of a bias, b1 or b2, for all experts. Returns 0 or -ENOMEM. */
int mf_data_bias(const struct mf_shape *shape, enum mf_tensor b, uint64_t seed, float *out);
/* Writes x, bf16 [T,H], on the pool's threads. */
void mf_data_x(const struct mf_shape *shape, uint64_t seed, uint16_t *out);

/* Writes ids [T,k] and weights [T,k]. ids number the experts of all ranks and are distinct within a token.
 * Weights are positive, and the weights of a token add up to 1 up to rounding. Returns 0, -ENOMEM, or -EINVAL
 * if topk exceeds the number of experts. */
int mf_data_topk(const struct mf_shape *shape, const struct mf_routing *routing, uint64_t seed, int32_t *ids,
                 float *weights);
/* Returns the number of local experts that have at least one token. */
int64_t mf_active_experts(const struct mf_shape *shape, const int32_t *ids);
