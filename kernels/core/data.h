/* Generates test data for timing and verifying the kernels of a shape. The data have the same bits on every
 * device and machine.
 *
 * A value of tensor t is computed from the sum of four 16-bit uniforms from Philox keyed by (seed, t). The
 * sum is centred and scaled with exact arithmetic to a standard deviation of about 1 for x, 1/sqrt(H) for w1
 * and 1/sqrt(I) for w2, so that no stage overflows or underflows. The scaled sum is rounded to bf16 and
 * quantised to the shape's format. Weights depend only on the layer model and the seed, so all token counts
 * of the layer model have the same weights.
 *
 * Bias values have a standard deviation of 1/2 and are rounded to bf16. Row e of a bias belongs to expert e.
 *
 * Value k of row r comes from the Philox block at counter (16·q + i, r), where q = k / 32 and i = k % 16.
 * Values with k % 32 < 16 come from words 0 and 1 of the block, the others from words 2 and 3. Row n of
 * expert e in a weight has r = e·N + n. */
#pragma once

#include <stdint.h>

#include "common/moe/routing.h"
#include "common/moe/shape.h"
#include "kernels/core/tensors.h"

/* Parameters with which code for another device generates the same bits of x, w1 or w2. */
struct mf_data_rule {
    uint64_t key; /* Philox key */
    float factor; /* the centred sums are multiplied by this factor */
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
/* Writes all parts of a weight, on the threads of the CPU pool. Returns 0, -ENOMEM, or -EINVAL if the shape's
 * formats are not a valid pair. */
int mf_data_weight(const struct mf_shape *shape, enum mf_tensor w, uint64_t seed,
                   const struct mf_tensor_ref *out);
/* Writes the values of bias b1 or b2 of all experts, as floats. Returns 0 or -ENOMEM. */
int mf_data_bias(const struct mf_shape *shape, enum mf_tensor b, uint64_t seed, float *out);
/* Writes x as bf16 [T,H], on the threads of the CPU pool. */
void mf_data_x(const struct mf_shape *shape, uint64_t seed, uint16_t *out);

/* Writes ids [T,k] and weights [T,k]. An id is the number of an expert among the experts of all ranks; the
 * ids of a token are distinct. Weights are positive, and the weights of a token add up to 1, except for
 * rounding errors. Returns 0, -ENOMEM, or -EINVAL if topk exceeds the number of experts. */
int mf_data_topk(const struct mf_shape *shape, const struct mf_routing *routing, uint64_t seed, int32_t *ids,
                 float *weights);
/* Returns the number of local experts that have at least one token. */
int64_t mf_active_experts(const struct mf_shape *shape, const int32_t *ids);
