/* The reference: what every tensor spec of a shape should hold.
 *
 * Two paths. The fast one is a plain fp32 kernel on the dequantised inputs, threaded over weight rows, each dot
 * product in a fixed order of sixteen partial sums; it makes the tensor specs that steps are fed and compared with. The
 * slow one is the same in double precision, one row at a time: the root of trust, which the fast one is tested
 * against.
 *
 * Activations, gate g and up u, gate rows first in w1:
 *   Silu     g·sigmoid(g)·u
 *   Gelu     0.5·g·(1 + erf(g/√2))·u
 *   Swiglu   openai/gpt-oss's: g = min(g, L), u = clamp(u, -L, L), then g·sigmoid(α·g)·(u + 1); L 7, α 1.702
 *   Situv2   Kimi-K3's: 4·tanh(g/4)·sigmoid(g) · 25·tanh(u/25)
 *   No       g·u
 *   GeluTanh 0.5·g·(1 + tanh(√(2/π)·(g + 0.044715·g³)))·u
 *   SiluStep min(silu(g), L)·clamp(u, -L, L): clamped after silu (vLLM, SwigluStepAndMul)
 * Silu with a limit L clamps before: g = min(g, L), u = clamp(u, -L, L) (DeepSeek-V4, SiluAndMulWithClamp).
 * With use_g1u1 = 0 there is no up half: the activation is its gate factor alone, for Swiglu
 * min(g, 7)·sigmoid(1.702·g) with g clamped first; for No it is g.
 * With doweight_stage1 the routing weight multiplies gemm1's output before the activation, and the combine is a plain
 * sum. A bias b1 is added behind that, before the activation and its clamps; b2 is part of z, before a routing weight
 * of stage 2 (openai/gpt-oss; ROCm/aiter's torch_moe). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "kernels/core/tensors.h"

double mf_activate(const struct mf_shape *shape, double gate, double up);
double mf_activate_gate(const struct mf_shape *shape, double gate); /* use_g1u1 = 0 */

/* The inputs of a layer in plain form: weights in `row` layout as the shape's format has them. */
struct mf_layer_data {
    struct mf_shape shape;
    const uint16_t *x;           /* bf16 [T,H] */
    const int32_t *ids;          /* [T,k] */
    const float *weights;        /* [T,k] */
    struct mf_tensor_ref w1, w2; /* the parts of mf_plain_w(…, "row") */
    const float *b1, *b2;        /* of shapes that have them: [E, 2I] and [E, H] */
};

/* The layer's decoded references, fp32, in slot order (row t*k + j) where not said otherwise; slots whose expert is not here
 * have rows of zeros. All arrays lie in one block,
 * which begins with the two magnitudes and depends on nothing but shape, routing and seed: it can be kept and found again. */
struct mf_reference {
    void *block;   /* owned; NULL: someone else's */
    float *x;      /* shapes that quantise activations: quantised x decoded [T,H]; else NULL */
    float *g;      /* [T*k, 2I] on quantised x, without the routing weight and b1 */
    float *h_bf16; /* h rounded to bf16 [T*k, I] */
    float *
        h; /* h as it enters gemm2: h_bf16 quantised and decoded where activations are, else the same array */
    float x_amax,
        h_amax; /* largest magnitudes of x and of h_bf16, NaN when there is one: what a scale of all rows is
                             drawn from, and the calibrated factors of x and h */
    /* [T*k, H] on that h and with b2, without the routing weight; NULL: the block has none, since whoever made it can make
     * z again. */
    float *z;
    float *y; /* [T,H], not rounded */
    /* What quantising h costs, by row: the relative error of h, z and y of the plain quantised pipeline against
     * the same without that quantisation. Row limits are drawn from it. NULL for shapes that do not quantise. */
    float *h_error, *z_error; /* [T*k] */
    float *y_error;           /* [T] */
};

/* Computes the whole; out's arrays are allocated here and released by mf_reference_release. -ENOMEM; -EINVAL for a
 * shape whose formats have no definition here. */
int mf_reference_make(const struct mf_layer_data *data, struct mf_reference *out);
/* Bytes of a shape's block, with or without z. -EINVAL as above, in *ret 0. */
int mf_reference_bytes(const struct mf_shape *shape, bool with_z, size_t *ret);
/* Slots by expert: those of expert e are slots[first[e]] … slots[first[e + 1] - 1], ascending. */
struct mf_reference_slots {
    int64_t *first, *slots;
};
/* -ENOMEM. To be released in any case. */
int mf_reference_group(const struct mf_layer_data *data, struct mf_reference_slots *ret);
void mf_reference_ungroup(struct mf_reference_slots *s);
/* What is proportional to the weights, done elsewhere than on the pool's threads with the same bits, on weights of its own. Rows
 * of slots whose expert is not here are zeros. A negative return is mf_reference_make_in's. */
struct mf_reference_engine {
    bool keeps_z; /* and can make it again: blocks have none */
    /* g from the quantised x. */
    int (*gemm1)(struct mf_reference_engine *e, const struct mf_layer_data *data,
                 const struct mf_reference_slots *slots, struct mf_reference *out);
    /* y from h, and z where out has it; where the shape quantises h, z_error and y_error by what comes of h_exact. */
    int (*gemm2)(struct mf_reference_engine *e, const struct mf_layer_data *data,
                 const struct mf_reference_slots *slots, const float *h_exact, struct mf_reference *out);
};
/* Computes into a block of the caller's, of that many bytes at a multiple of 64. engine NULL: the pool's threads do all; else
 * data's weights are not read. */
int mf_reference_make_in(const struct mf_layer_data *data, struct mf_reference_engine *engine, void *block,
                         struct mf_reference *out);
/* The relative error of a row whose squares of differences and of itself sum to these. */
float mf_reference_error(double difference, double norm);
/* What a block holds that was filled for the same shape; only read from then on. */
void mf_reference_open(const struct mf_shape *shape, bool with_z, const void *block,
                       struct mf_reference *out);
void mf_reference_release(struct mf_reference *r);

/* The decoded row that an tensor spec should hold, and what to multiply it by (the routing weight for gw and zw, else
 * 1). row is a token for x and y, a slot row t*k + j for the others. NULL: no reference for it, or z that is not here. */
/* (Of decoded weights that is mf_reference_weight_row.) */
const float *mf_reference_row(const struct mf_layer_data *data, const struct mf_reference *r,
                              const struct mf_tensor_spec *a, int64_t row, float *ret_factor);
/* Is it of z, which the block does not have? */
bool mf_reference_lacks(const struct mf_reference *r, const struct mf_tensor_spec *a);
/* The global factor of x or h as the tensor spec stores it; 1 for a codec without one. */
float mf_reference_global(const struct mf_reference *r, const struct mf_tensor_spec *a);
/* A row of x or h into the tensor spec's codec, under the scale of all rows where the codec has only one. */
void mf_reference_encode(const struct mf_reference *r, const struct mf_tensor_spec *a, const float *row,
                         size_t cols, void *q, void *scale);
/* The same and back again; scratch of 8 bytes a value and 256. */
void mf_reference_requantise(const struct mf_reference *r, const struct mf_tensor_spec *a, float *row,
                             size_t cols, void *scratch);
/* One row of a weight in `row` layout, decoded: K floats. */
void mf_reference_weight_row(const struct mf_layer_data *data, enum mf_tensor w, int32_t expert, int64_t n,
                             float *out);

/* Output row of one token in double precision from the dequantised inputs. r is asked for nothing but the largest
 * magnitudes of all rows, which some codecs need. quantise_h: h is rounded to bf16 and quantised as the shape says;
 * without, it stays double. y has H values. -ENOMEM. */
int mf_reference_row_double(const struct mf_layer_data *data, const struct mf_reference *r, int64_t token,
                            bool quantise_h, double *y);

/* Sorted order of a routing for block_m, AITER's moe_sorting contract: experts ascending, empty ones take no
 * block, tokens ascending within one, slot order within a token. Fills the parts of sorted.<block_m>; what lies
 * beyond num_valid[0] is garbage on purpose (0x7fffffff, NaN). -ENOMEM. */
int mf_reference_sort(const struct mf_shape *shape, const int32_t *ids, const float *weights, int32_t block_m,
                      const struct mf_tensor_ref *sorted);

/* The same as vLLM has it: the parts of aligned.<block_m>, tails as its contract says. */
int mf_reference_align(const struct mf_shape *shape, const int32_t *ids, int32_t block_m,
                       const struct mf_tensor_ref *aligned);

/* Writes the tensor spec's encoded bits into `to`, from the inputs and the reference: what a step that needs it is
 * fed. Padding rows of sorted order, and rows of slots whose expert is not here, are filled with poison (NaN), so that a
 * step which uses them is found out.
 * Weights are packed into the tensor spec's layout from data->w1, w2, and decoded there if it is one that a step decodes, every
 * expert of it. sorted is the order of a->block, NULL for
 * tensor specs in token or slot order. A zeroed tensor spec is zeros. -EINVAL: no maker for it; -ENOMEM. */
int mf_reference_tensor_spec(const struct mf_layer_data *data, const struct mf_reference *r,
                             const struct mf_tensor_spec *a, const struct mf_tensor_ref *sorted,
                             const struct mf_tensor_ref *to);
