/* The reference: what every artifact of a shape should hold.
 *
 * Two paths. The fast one is a plain fp32 kernel on the dequantised inputs, threaded over rows, each dot product
 * in a fixed order; it makes the artifacts that steps are fed and compared with. The slow one is the same in
 * double precision, one row at a time: the root of trust, which the fast one is tested against.
 *
 * Activations (facts of ROCm/aiter and openai/gpt-oss): Silu g·sigmoid(g)·u; Gelu 0.5g(1+erf(g/√2))·u;
 * Swiglu g=min(g,7), u=clamp(u,-7,7), g·sigmoid(1.702g)·(u+1). Gate rows come first in w1. With
 * doweight_stage1 the routing weight multiplies gemm1's output before the activation. */
#pragma once

#include <stdint.h>

#include "common/shape.h"
#include "kernels/tensors.h"

double mf_activate(enum mf_act act, double gate, double up);

/* The inputs of a layer in plain form: weights in `row` layout as the shape's format has them. */
struct mf_layer_data {
    struct mf_shape shape;
    const uint16_t *x;              /* bf16 [T,H] */
    const int32_t *ids;             /* [T,k] */
    const float *weights;           /* [T,k] */
    const void *w1, *w2;            /* [E,2I,H], [E,H,I] */
    const float *w1_scale, *w2_scale;
};

/* The layer's decoded references in slot order (row t*k + j), fp32:
 *   g [T*k,2I] on quantised x; h [T*k,I] rounded to bf16 and then quantised as the plain pipeline does, in its
 *   decoded value; z [T*k,H] on that h; y [T,H].
 * row_plain_* hold each row's relative error of the plain quantised pipeline against the unquantised layer:
 * what the format itself costs, from which the row limits are drawn. */
struct mf_reference {
    float *g, *h, *z, *y;           /* each may be NULL when it was not asked for */
    uint8_t *h_q;                   /* quantised h [T*k, I], fp8 shapes only */
    float *h_scale;                 /* [T*k] or [T*k, ceil(I/128)] */
    uint8_t *x_q;                   /* quantised x [T,H], fp8 shapes only */
    float *x_scale;
    float *h_bf16;                  /* h before quantisation, rounded to bf16, decoded [T*k, I] */
};

/* Computes the whole; out's arrays are allocated here and released by mf_reference_release. -ENOMEM. */
int mf_reference_make(const struct mf_layer_data *data, struct mf_reference *out);
void mf_reference_release(struct mf_reference *r);

/* Output row of one token in double precision from the dequantised inputs, h not quantised when plain is
 * false: for tests and for the plain pipeline's error. y has H values. */
int mf_reference_row_double(const struct mf_layer_data *data, int64_t token, bool quantise_h, double *y);

/* Sorted order of a routing for block_m, AITER's moe_sorting contract: experts ascending, empty ones take no
 * block, tokens ascending within one, slot order within a token. Fills the parts of sorted.<block_m>. */
int mf_reference_sort(const struct mf_shape *shape, const int32_t *ids, const float *weights, int32_t block_m,
                      const struct mf_tensor_ref *sorted);

/* Writes the artifact's encoded bits into `to`, from the inputs and the reference: what a step that needs it is
 * fed. Padding rows of sorted order are filled with poison (NaN), so that a step which uses them is found out.
 * Weights are packed into the artifact's layout. -EINVAL: no maker for it. */
int mf_reference_artifact(const struct mf_layer_data *data, const struct mf_reference *r, const struct mf_artifact *a,
                          const struct mf_tensor_ref *sorted, const struct mf_tensor_ref *to);
