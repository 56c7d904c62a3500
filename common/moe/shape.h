/* A shape: one row of untuned_fmoe.csv, and the two keys made of it.
 *
 * A shape is a value. Its layer model is the shape without its token count: production stores the weights of
 * a layer model once, so its rows (its ladder) share one weight layout.
 *
 * Spellings are AITER's (ROCm/aiter, csrc/ck_gemm_moe_2stages_codegen/gemm_moe_tune.py and its CSV files).
 * Parsing accepts every spelling that its files and README use (`True`, `dtypes.bf16`, `per_128x128`), and
 * names without their prefix ("Silu", "bfloat16"); printing gives the one canonical spelling that production
 * matches. AITER's `dtypes.fp8` means e4m3fnuz on gfx942 and e4m3fn on gfx950 (aiter/utility/dtypes.py); a
 * shape names no device, so it is read as e4m3fn: who means fnuz writes torch.float8_e4m3fnuz. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"

/* clang-format off */
#define MF_ACT_MAP(X, P)                  \
    X(P, SILU, "ActivationType.Silu")     \
    X(P, GELU, "ActivationType.Gelu")     \
    X(P, SWIGLU, "ActivationType.Swiglu") \
    X(P, SITUV2, "ActivationType.Situv2") \
    X(P, NO, "ActivationType.No")         \
    X(P, GELU_TANH, "ActivationType.GeluTanh") /* ours: gelu by tanh */ \
    X(P, SILU_STEP, "ActivationType.SiluStep") /* ours: clamps after silu, as vLLM's SwigluStepAndMul */
/* clang-format on */
MF_NAMES_DECLARE(mf_act, MF_ACT_, MF_ACT_MAP);

/* clang-format off */
#define MF_DTYPE_MAP(X, P)                      \
    X(P, BF16, "torch.bfloat16")                \
    X(P, FP16, "torch.float16")                 \
    X(P, FP8_E4M3FN, "torch.float8_e4m3fn")     \
    X(P, FP8_E4M3FNUZ, "torch.float8_e4m3fnuz") \
    X(P, INT8, "torch.int8")                    \
    X(P, INT4, "torch.int4")                    \
    X(P, FP4X2, "torch.float4_e2m1fn_x2")
/* clang-format on */
MF_NAMES_DECLARE(mf_dtype, MF_DTYPE_, MF_DTYPE_MAP);

/* per_128x128 is read as per_1x128: AITER's tuner turns one into the other (gemm_moe_tune.py). */
/* clang-format off */
#define MF_QTYPE_MAP(X, P)                   \
    X(P, NO, "QuantType.No")                 \
    X(P, PER_TENSOR, "QuantType.per_Tensor") \
    X(P, PER_TOKEN, "QuantType.per_Token")   \
    X(P, PER_1X32, "QuantType.per_1x32")     \
    X(P, PER_1X128, "QuantType.per_1x128")   \
    X(P, PER_1X16, "QuantType.per_1x16") /* ours: NVFP4 */
/* clang-format on */
MF_NAMES_DECLARE(mf_qtype, MF_QTYPE_, MF_QTYPE_MAP);

/* Where a layer's w1 may lie only in one way, because it is stored once and others read it too: all gate rows, then all up
 * rows; one of each in turn, as openai/gpt-oss's checkpoints have them; tiles of so many rows of each in turn. */
/* clang-format off */
#define MF_GATE_UP_MAP(X, P)     \
    X(P, ANY, "any")             \
    X(P, SEPARATED, "separated") \
    X(P, INTERLEAVED, "interleaved") \
    X(P, TILED, "tiled")
/* clang-format on */
MF_NAMES_DECLARE(mf_gate_up, MF_GATE_UP_, MF_GATE_UP_MAP);

struct mf_shape {
    int64_t token;     /* T */
    int32_t model_dim; /* H */
    int32_t inter_dim; /* I of this rank; w1 is [E, 2I, H] with use_g1u1, w2 is [E, H, I] */
    int32_t expert; /* E as the kernel sees it, fused shared experts included: those whose weights are here */
    int32_t topk;   /* k */
    enum mf_act act_type;
    enum mf_dtype dtype; /* of the hidden states and the output */
    enum mf_dtype q_dtype_a;
    enum mf_dtype q_dtype_w;
    enum mf_qtype q_type;
    bool use_g1u1;
    bool doweight_stage1; /* the routing weight is applied before the activation */

    /* What the twelve columns cannot say; all zero is what they mean. As text it is one more column, `form`:
     * "limit:10", "limit:7+alpha:1.702+b1+b2". */
    float act_limit; /* clamp of gate and up; 0: the activation's own (Swiglu 7, else none) */
    float act_alpha; /* Swiglu's factor within the sigmoid; 0: 1.702 */
    bool
        has_b1; /* a bias [E, 2I] (or I), added behind a routing weight of stage 1 and before the activation */
    bool
        has_b2; /* a bias [E, H], added before a routing weight of stage 2; of tensor-parallel ranks one adds it */
    enum mf_gate_up gate_up; /* of w1; ANY: the tuner chooses */
    /* A rank's share of the experts: ids count 0 … ep_experts - 1, of which ep_first … ep_first + expert - 1 are here. Routes
     * to others, and of ids that name no expert (-1), contribute nothing. ep_experts 0: all are here. */
    int32_t ep_first, ep_experts;
};

/* Experts that ids count: those of all ranks. */
static inline int32_t mf_shape_experts(const struct mf_shape *shape)
{
    return shape->ep_experts > 0 ? shape->ep_experts : shape->expert;
}

/* Number of an id's expert here, 0 … expert - 1; -1: it is not here. */
static inline int32_t mf_shape_local(const struct mf_shape *shape, int32_t id)
{
    int64_t local = (int64_t)id - shape->ep_first;
    return local >= 0 && local < shape->expert ? (int32_t)local : -1;
}

/* The part of all routes that a share of the experts gets when each gets as many. */
static inline double mf_shape_share(const struct mf_shape *shape)
{
    return (double)shape->expert / mf_shape_experts(shape);
}

/* The twelve columns, in the order of untuned_fmoe.csv. */
#define MF_SHAPE_N_COLUMNS 12
extern const char *const mf_shape_columns[MF_SHAPE_N_COLUMNS];

#define MF_SHAPE_TEXT_MAX 320

/* The column beyond the twelve, empty for most shapes. The calls below know it by name too. */
#define MF_SHAPE_FORM     "form"
#define MF_SHAPE_FORM_MAX 96 /* of its text */

/* Sets one column from its text, any accepted spelling. -ENOENT: no such column; -EINVAL: not a value of it,
 * and *ret_why (static text, "an integer from 1 to 127") says what is expected. */
int mf_shape_set(struct mf_shape *shape, const char *column, const char *text, const char **ret_why);
/* The canonical text of one column, written to buf; one that does not fit is cut. -ENOENT: no such column. */
int mf_shape_get(const struct mf_shape *shape, const char *column, char *buf, size_t cap);
/* What no layer can be: a size below 1 or above its ceiling, topk > expert. -EINVAL with the column in
 * *ret_column and the sentence in *ret_why (static texts). Says nothing about what a family can run. */
int mf_shape_check(const struct mf_shape *shape, const char **ret_column, const char **ret_why);

bool mf_shape_equal(const struct mf_shape *a, const struct mf_shape *b);
/* Total order: layer model first, then token; for stable lists. */
int mf_shape_compare(const struct mf_shape *a, const struct mf_shape *b);
bool mf_shape_same_layer_model(const struct mf_shape *a, const struct mf_shape *b);

/* The canonical CSV row of twelve values ("512,6144,…,1,0"), and the form as a thirteenth where there is one; buf of
 * MF_SHAPE_TEXT_MAX is always enough. */
void mf_shape_print(const struct mf_shape *shape, char buf[MF_SHAPE_TEXT_MAX]);
/* Reads twelve values, or thirteen, each in any accepted spelling. -EINVAL for anything else, and for what mf_shape_check
 * refuses. */
int mf_shape_parse(const char *text, struct mf_shape *ret);
/* The key of the layer model: the row without its token. */
void mf_shape_print_layer_model(const struct mf_shape *shape, char buf[MF_SHAPE_TEXT_MAX]);

/* Bits of one element: 16 for bf16, 8 for fp8, 4 for int4 and fp4x2 (one logical element). */
int mf_dtype_bits(enum mf_dtype dtype);

/* The bucket that production asks for: the next power of two up to 32768, then 32768 or, from 131072 on,
 * 131072 (ROCm/aiter fused_moe.py, get_padded_M). token must be at least 1. */
int64_t mf_token_bucket(int64_t token);
