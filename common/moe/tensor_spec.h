/* Tensor specs: descriptors of the tensors between steps. Two specs match if they are equal. Text form:
 *
 *   tensor/format/scale/order          "x/bf16/none/token"  "h/fp8fn/per_token/sorted.32"
 *                                      "w1/bf16/none/panel16" (the order of a weight is its layout)
 *                                      "y/f32/none/token+zeroed"
 *
 * Contents, with T tokens, k topk, E experts, H model_dim, I inter_dim, P padded rows:
 *   x      hidden states [T, H]; in sorted order [P, H], padding rows unspecified
 *   topk   ids int32 [T, k] and weights float [T, k]
 *   sorted sorted_token_ids int32 [P], packed slot<<24 | token, padding k<<24 | T; sorted_weights float [P];
 *          expert ids int32 [P / block]; num_valid int32 [2] = {padded rows in use, T}
 *          (output of AITER's moe_sorting); order sorted.<block_m>
 *   w1 w2  weights [E, 2I, H] and [E, H, I], gate rows first; in the given layout
 *   g gw   output of gemm1 [P, 2I] in sorted order, without and with the routing weight
 *   h      activated intermediate [P, I] in sorted order
 *   z zw   output of gemm2 without and with the routing weight: [T*k, H] in slot order (row t*k + j), or
 *          [P, H] in sorted order, padding rows unspecified
 *   y      output of the layer [T, H]
 *   calib  float [2]: factors by which x and h are multiplied before quantisation with a global scale
 *          (NVFP4); calibrated before serving and passed by the caller
 *   aligned  the contents of `sorted` in the format of vLLM's moe_align_block_size: sorted_token_ids int32
 *          [P], t*k + j, T*k for padding and tail; expert ids int32 [P / block], -1 for the tail;
 *          num_tokens_post_pad int32 [1]; order sorted.<block_m>
 *   b1 b2  biases float [E, 2I] (or [E, I]) and [E, H] of shapes that have them, gate first in every layout
 *          of w1; order row. g and gw do not include b1, because op act adds it; z and zw include b2
 *   w1d w2d  w1 and w2 dequantised by a step, each value rounded once, for kernels that cannot read quantised
 *          weights; rows of experts without a route on this rank are unspecified; order: a weight layout
 * sorted_v2.<block_m> is the sorted order of AITER's "layout" kernel pairs, and sorted_mxmoe.<block_m> that
 * of its mxmoe pairs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/names.h"

/* The first parameter is not called X, because a tensor has that name. */
/* clang-format off */
#define MF_TENSOR_MAP(EACH, P)  \
    EACH(P, X, "x")             \
    EACH(P, TOPK, "topk")       \
    EACH(P, SORTED, "sorted")   \
    EACH(P, W1, "w1")           \
    EACH(P, W2, "w2")           \
    EACH(P, G, "g")             \
    EACH(P, GW, "gw")           \
    EACH(P, H, "h")             \
    EACH(P, Z, "z")             \
    EACH(P, ZW, "zw")           \
    EACH(P, Y, "y")             \
    EACH(P, CALIB, "calib")     \
    EACH(P, ALIGNED, "aligned") \
    EACH(P, B1, "b1")           \
    EACH(P, B2, "b2")           \
    EACH(P, W1D, "w1d")         \
    EACH(P, W2D, "w2d")
/* clang-format on */
MF_NAMES_DECLARE(mf_tensor, MF_TENSOR_, MF_TENSOR_MAP);

/* clang-format off */
#define MF_FORMAT_MAP(X, P)  \
    X(P, INDEX, "index")     \
    X(P, F32, "f32")         \
    X(P, BF16, "bf16")       \
    X(P, FP8FN, "fp8fn")     \
    X(P, FP8FNUZ, "fp8fnuz") \
    X(P, FP16, "fp16")       \
    X(P, INT8, "int8")       \
    X(P, INT4, "int4")       \
    X(P, FP4, "fp4")         /* e2m1 */
/* clang-format on */
MF_NAMES_DECLARE(mf_format, MF_FORMAT_, MF_FORMAT_MAP);

/* clang-format off */
#define MF_SCALE_MAP(X, P)                                                                             \
    X(P, NONE, "none")                                                                                 \
    X(P, PER_TOKEN, "per_token")     /* activations: float per row; weights: float per output row */   \
    X(P, PER_1X128, "per_1x128")     /* activations: float [rows, ceil(cols / 128)] */                 \
    X(P, PER_128X128, "per_128x128") /* weights: float [E, ceil(N / 128), ceil(K / 128)] */            \
    X(P, PER_TENSOR, "per_tensor")   /* activations: one float; weights: float [E] */                  \
    X(P, PER_1X32, "per_1x32")       /* one scale per 32 elements along K: e8m0 (MX), bf16 for int4 */ \
    X(P, PER_1X16, "per_1x16")       /* NVFP4: e4m3 per 16 elements along K, and one global float */
/* clang-format on */
MF_NAMES_DECLARE(mf_scale, MF_SCALE_, MF_SCALE_MAP);

#define MF_ORDER_MAX            20
#define MF_TENSOR_SPEC_TEXT_MAX 72

struct mf_tensor_spec {
    enum mf_tensor tensor;
    enum mf_format format;
    enum mf_scale scale;
    char order[MF_ORDER_MAX]; /* "token", "slot", "sorted"; a weight's layout: "row", "panel16", … */
    int32_t block;            /* block_m of a sorted order, otherwise 0 */
    /* true: an output tensor is filled with zeros; an input tensor must be filled with zeros */
    bool zeroed;
};

void mf_tensor_spec_print(const struct mf_tensor_spec *a, char buf[MF_TENSOR_SPEC_TEXT_MAX]);
int mf_tensor_spec_parse(const char *text, struct mf_tensor_spec *ret); /* -EINVAL: not a tensor spec */
bool mf_tensor_spec_equal(const struct mf_tensor_spec *a, const struct mf_tensor_spec *b);
/* True for weights. They are stored in the pipeline's layout, and no step writes them. */
bool mf_tensor_spec_is_weight(const struct mf_tensor_spec *a);
/* True for weights dequantised by a step. */
bool mf_tensor_spec_is_decoded(const struct mf_tensor_spec *a);
/* True for tensors that the caller passes: x as bf16 or fp16 (the shape's dtype) and topk as index, both
 * in token order and without scales; calib; biases. Apart from weights, no other spec exists before the first
 * step. */
bool mf_tensor_spec_is_input(const struct mf_tensor_spec *a);
