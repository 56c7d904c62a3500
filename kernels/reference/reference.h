/* Reference results: the expected contents of every tensor spec of a shape.
 *
 * The reference kernel computes in fp32 on the dequantised inputs; each thread has a range of weight rows.
 * Every dot product is 16 partial sums, added in a fixed order. The results serve as inputs of steps and as
 * expected outputs of steps. The tests compare the reference kernel with a double-precision reference
 * (tests/support/kernels/reference_double.h).
 *
 * Activations of gate g and up u (w1 has the gate rows first):
 *   Silu      g·sigmoid(g)·u
 *   Gelu      0.5·g·(1 + erf(g/√2))·u
 *   Swiglu    openai/gpt-oss: g = min(g, L), u = clamp(u, -L, L), then g·sigmoid(α·g)·(u + 1); L 7, α 1.702
 *   Situv2    Kimi-K3: 4·tanh(g/4)·sigmoid(g) · 25·tanh(u/25)
 *   No        g·u
 *   GeluTanh  0.5·g·(1 + tanh(√(2/π)·(g + 0.044715·g³)))·u
 *   SiluStep  min(silu(g), L)·clamp(u, -L, L): clamped after silu (vLLM, SwigluStepAndMul)
 *   Relu2     max(g, 0)²·u (Nemotron-H, which has no up half)
 * Silu with a limit L clamps before the activation: g = min(g, L), u = clamp(u, -L, L) (DeepSeek-V4,
 * SiluAndMulWithClamp).
 *
 * With use_g1u1 = 0 there is no up half, and the activation is only the factor that depends on g. This factor
 * is min(g, 7)·sigmoid(1.702·min(g, 7)) for Swiglu, and g for No.
 *
 * With doweight_stage1, the output of gemm1 is multiplied by the routing weight before the activation, and
 * the combine is a plain sum. The bias b1 is added after that multiplication, before the activation and its
 * clamps. b2 is part of z, added before the routing weight of stage 2 (openai/gpt-oss; ROCm/aiter,
 * torch_moe). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/shape.h"
#include "kernels/core/tensors.h"

double mf_activate(const struct mf_shape *shape, double gate, double up);
/* Returns the factor of the activation that depends on the gate only, for use_g1u1 = 0. */
double mf_activate_gate(const struct mf_shape *shape, double gate);

/* Inputs of a layer. The weights are in `row` layout and in the shape's format. */
struct mf_layer_data {
    struct mf_shape shape;
    const uint16_t *x;           /* bf16 [T,H] */
    const int32_t *ids;          /* [T,k] */
    const float *weights;        /* [T,k] */
    struct mf_tensor_ref w1, w2; /* buffers of the parts of mf_plain_w(…, "row") */
    const float *b1, *b2;        /* only for shapes with these biases: b1 [E, 2I], b2 [E, H] */
};

/* Reference results of a layer, dequantised to fp32. Unless stated otherwise, rows are in slot order: the row
 * of slot j of token t is t*k + j. The rows for slots of remote experts are zeros. All arrays are in one
 * block, which begins with x_amax and h_amax. The block depends only on shape, routing and seed, so that it
 * can be stored and reused. */
struct mf_reference {
    void *block;   /* the block, which mf_reference_release frees; NULL if the block is the caller's */
    float *x;      /* quantised and dequantised x [T,H]; NULL for shapes without quantised activations */
    float *g;      /* [T*k, 2I] computed from the quantised x, without routing weight and b1 */
    float *h_bf16; /* h rounded to bf16 [T*k, I] */
    /* h as gemm2 reads it: h_bf16 quantised and dequantised, or h_bf16 itself for shapes without quantised
     * activations */
    float *h;
    /* Largest magnitudes of x and of h_bf16; NaN if an element is NaN. They determine per-tensor scales and
     * the calibrated factors of x and h. */
    float x_amax, h_amax;
    /* [T*k, H] computed from h, with b2, without the routing weight. NULL if the block omits z because an
     * engine can recompute it. */
    float *z;
    float *y; /* [T,H], not rounded to bf16 */
    /* Error caused by quantising h: per row, the relative error of h, z and y of the plain quantised pipeline
     * compared with a pipeline that does not quantise h. Row limits derive from these errors. NULL for shapes
     * without quantisation. */
    float *h_error, *z_error; /* [T*k] */
    float *y_error;           /* [T] */
};

/* Computes all references and allocates the arrays of `out`; release them with mf_reference_release. Returns
 * -ENOMEM, or -EINVAL if the shape's formats have no reference. */
int mf_reference_make(const struct mf_layer_data *data, struct mf_reference *out);
/* Computes the size of a shape's block in bytes, with or without z. Returns -EINVAL, with *ret = 0, if the
 * shape's formats have no reference. */
int mf_reference_bytes(const struct mf_shape *shape, bool with_z, size_t *ret);
/* Slots grouped by expert: the slots of expert e are slots[first[e]] … slots[first[e + 1] - 1], ascending. */
struct mf_reference_slots {
    int64_t *first, *slots;
};
/* Groups the slots by expert. Returns 0 or -ENOMEM; in both cases call mf_reference_ungroup afterwards. */
int mf_reference_group(const struct mf_layer_data *data, struct mf_reference_slots *ret);
void mf_reference_ungroup(struct mf_reference_slots *s);
/* An engine computes the GEMMs outside the CPU pool, for example on a GPU. It gives the same bits and uses
 * its own copy of the weights. The rows for slots of remote experts must be zeros. mf_reference_make_in
 * returns the negative result of a failed callback. */
struct mf_reference_engine {
    bool recomputes_z; /* true: the engine can recompute z, so that blocks need not store z */
    /* Computes g from the quantised x. */
    int (*gemm1)(struct mf_reference_engine *e, const struct mf_layer_data *data,
                 const struct mf_reference_slots *slots, struct mf_reference *out);
    /* Computes y from h, and z if `out` has it. For shapes that quantise h, also computes z_error and y_error
     * by comparison with z and y computed from h before it is rounded. */
    int (*gemm2)(struct mf_reference_engine *e, const struct mf_layer_data *data,
                 const struct mf_reference_slots *slots, const float *h_exact, struct mf_reference *out);
};
/* Computes all references into the caller's block, which has the size of mf_reference_bytes and is 64-byte
 * aligned. If `engine` is NULL, the CPU pool also computes the GEMMs; otherwise the weights of `data` are not
 * read. */
int mf_reference_make_in(const struct mf_layer_data *data, struct mf_reference_engine *engine, void *block,
                         struct mf_reference *out);
/* Returns the relative error of a row from `difference`, the sum of the squared differences, and `norm`, the
 * sum of the squares of the row. */
float mf_reference_error(double difference, double norm);
/* Sets the pointers of `out` to the arrays in a block that was computed for the same shape. The block must
 * not change afterwards. */
void mf_reference_open(const struct mf_shape *shape, bool with_z, const void *block,
                       struct mf_reference *out);
void mf_reference_release(struct mf_reference *r);

/* Returns the expected dequantised row of a tensor spec. The caller must multiply the row by *ret_factor,
 * which is the routing weight for gw and zw, otherwise 1. `row` is a token for x and y, a slot row t*k + j
 * for other tensors. Returns NULL if the tensor spec has no reference, or if its rows are computed from z and
 * r has no z. For dequantised weights use mf_reference_weight_row. */
const float *mf_reference_row(const struct mf_layer_data *data, const struct mf_reference *r,
                              const struct mf_tensor_spec *a, int64_t row, float *ret_factor);
/* True if the rows of the tensor spec are computed from z and the block omits z. */
bool mf_reference_lacks_z(const struct mf_reference *r, const struct mf_tensor_spec *a);
/* Returns the global factor with which the tensor spec stores x or h; 1 for a codec without a global factor.
 */
float mf_reference_global(const struct mf_reference *r, const struct mf_tensor_spec *a);
/* Encodes a row of x or h in the tensor spec's codec, with the scale of the whole tensor if the codec is
 * per-tensor. */
void mf_reference_encode(const struct mf_reference *r, const struct mf_tensor_spec *a, const float *row,
                         size_t cols, void *q, void *scale);
/* Encodes and decodes a row in place. `scratch` has 8 bytes per value plus 256 bytes. */
void mf_reference_requantise(const struct mf_reference *r, const struct mf_tensor_spec *a, float *row,
                             size_t cols, void *scratch);
/* Dequantises one row of a weight in `row` layout, and writes its K values to `out`. */
void mf_reference_weight_row(const struct mf_layer_data *data, enum mf_tensor w, int32_t expert, int64_t n,
                             float *out);

/* Computes sorted.<block_m> from the routing by AITER's moe_sorting contract: in ascending order of expert,
 * then of token, then of slot. Experts without routes get no block. Entries from num_valid[0] on are
 * deliberately invalid (0x7fffffff, NaN). Returns 0 or -ENOMEM. */
int mf_reference_sort(const struct mf_shape *shape, const int32_t *ids, const float *weights, int32_t block_m,
                      const struct mf_tensor_ref *sorted);

/* Computes aligned.<block_m> by vLLM's contract, including the entries after the rows in use. Returns 0 or
 * -ENOMEM. */
int mf_reference_align(const struct mf_shape *shape, const int32_t *ids, int32_t block_m,
                       const struct mf_tensor_ref *aligned);

/* Writes the encoded bits of a tensor spec to `to`, as input of a step. In sorted order the padding rows, and
 * in slot order the rows of remote experts, are filled with poison (NaN), which exposes a step that reads
 * them. Weights are packed from data->w1, w2 into the tensor spec's layout; for w1d and w2d the weights of
 * all experts are also dequantised. `sorted` holds the sorted ids for block size a->block, or is NULL for
 * tensor specs in token or slot order. A zeroed tensor spec is filled with zeros. Returns -EINVAL if the
 * tensor spec has no reference, or -ENOMEM. */
int mf_reference_tensor_spec(const struct mf_layer_data *data, const struct mf_reference *r,
                             const struct mf_tensor_spec *a, const struct mf_tensor_ref *sorted,
                             const struct mf_tensor_ref *to);
