/* Shapes: one row of untuned_fmoe.csv, and the keys derived from it.
 *
 * A shape is plain data. Its layer model is the shape without the token count. Production stores the weights
 * of a layer model once, so all rows of a layer model (its ladder) share one weight layout.
 *
 * Spellings are AITER's (ROCm/aiter, csrc/ck_gemm_moe_2stages_codegen/gemm_moe_tune.py and its CSV files).
 * The parser accepts every spelling in AITER's files and README (`True`, `dtypes.bf16`, `per_128x128`) and
 * names without their prefix ("Silu", "bfloat16"). The printer writes the canonical spelling, which
 * production matches. In AITER, `dtypes.fp8` is e4m3fnuz on gfx942 and e4m3fn on gfx950
 * (aiter/utility/dtypes.py). A shape has no device, so `dtypes.fp8` means e4m3fn here; for e4m3fnuz write
 * torch.float8_e4m3fnuz. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"

/* clang-format off */
#define MF_ACT_MAP(X, P)                                                               \
    X(P, SILU, "ActivationType.Silu")                                                  \
    X(P, GELU, "ActivationType.Gelu")                                                  \
    X(P, SWIGLU, "ActivationType.Swiglu")                                              \
    X(P, SITUV2, "ActivationType.Situv2")                                              \
    X(P, NO, "ActivationType.No")                                                      \
    X(P, GELU_TANH, "ActivationType.GeluTanh") /* moefarm extension: GELU with tanh */ \
    X(P, SILU_STEP, "ActivationType.SiluStep") /* moefarm extension: SiLU, clamp (vLLM SwigluStepAndMul) */ \
    X(P, RELU2, "ActivationType.Relu2") /* moefarm extension: squared ReLU (Nemotron-H) */
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

/* The parser converts per_128x128 to per_1x128, as AITER's tuner does (gemm_moe_tune.py). */
/* clang-format off */
#define MF_QTYPE_MAP(X, P)                   \
    X(P, NO, "QuantType.No")                 \
    X(P, PER_TENSOR, "QuantType.per_Tensor") \
    X(P, PER_TOKEN, "QuantType.per_Token")   \
    X(P, PER_1X32, "QuantType.per_1x32")     \
    X(P, PER_1X128, "QuantType.per_1x128")   \
    X(P, PER_1X16, "QuantType.per_1x16") /* moefarm extension: NVFP4 */
/* clang-format on */
MF_NAMES_DECLARE(mf_qtype, MF_QTYPE_, MF_QTYPE_MAP);

/* Row order of gate and up in w1: separated (all gate rows, then all up rows), interleaved (alternating rows,
 * as in openai/gpt-oss's checkpoints), or tiled (alternating tiles of rows). Set for weights whose order is
 * fixed because other programs read them. */
/* clang-format off */
#define MF_GATE_UP_MAP(X, P)         \
    X(P, ANY, "any")                 \
    X(P, SEPARATED, "separated")     \
    X(P, INTERLEAVED, "interleaved") \
    X(P, TILED, "tiled")
/* clang-format on */
MF_NAMES_DECLARE(mf_gate_up, MF_GATE_UP_, MF_GATE_UP_MAP);

struct mf_shape {
    int64_t token;     /* T */
    int32_t model_dim; /* H */
    /* I, the intermediate size of this rank. w1 is [E, 2I, H] with use_g1u1, otherwise [E, I, H]; w2 is [E,
     * H, I] */
    int32_t inter_dim;
    int32_t expert; /* E, the number of local experts, including fused shared experts */
    int32_t topk;   /* k */
    enum mf_act act_type;
    enum mf_dtype dtype; /* type of hidden states and output */
    enum mf_dtype q_dtype_a;
    enum mf_dtype q_dtype_w;
    enum mf_qtype q_type;
    bool use_g1u1;
    bool doweight_stage1; /* true: the routing weight is applied before the activation */

    /* The form: properties that the twelve columns cannot express; by default all are zero. The extra column
     * `form` contains them as text, for example "limit:10" or "limit:7+alpha:1.702+b1+b2". */
    /* clamp of gate and up; 0: the default of the activation, which is 7 for Swiglu and no clamp otherwise */
    float act_limit;
    float act_alpha; /* Swiglu's factor inside the sigmoid; 0: 1.702 */
    /* true: op act adds a bias [E, 2I] or [E, I], after a routing weight of stage 1, before the activation */
    bool has_b1;
    /* true: a bias [E, H] is added before a routing weight of stage 2, by only one tensor-parallel rank */
    bool has_b2;
    enum mf_gate_up gate_up; /* row order of w1; ANY: the tuner chooses */
    /* Expert parallelism: expert ids are in [0, ep_experts), and the experts in [ep_first, ep_first + expert)
     * are local. Routes to other experts or with id -1 contribute nothing. ep_experts 0: all experts are
     * local. */
    int32_t ep_first, ep_experts;
};

/* Returns the number of experts of all ranks. Every expert id is below this number. */
static inline int32_t mf_shape_global_experts(const struct mf_shape *shape)
{
    return shape->ep_experts > 0 ? shape->ep_experts : shape->expert;
}

/* Returns the local index, in [0, expert), of an expert id; -1 if the expert is not local. */
static inline int32_t mf_shape_local_expert(const struct mf_shape *shape, int32_t id)
{
    int64_t local = (int64_t)id - shape->ep_first;
    return local >= 0 && local < shape->expert ? (int32_t)local : -1;
}

/* Returns the fraction of all routes that go to local experts if every expert gets equally many routes. */
static inline double mf_shape_local_fraction(const struct mf_shape *shape)
{
    return (double)shape->expert / mf_shape_global_experts(shape);
}

/* The twelve columns, in the order of untuned_fmoe.csv. */
#define MF_SHAPE_N_COLUMNS 12
extern const char *const mf_shape_columns[MF_SHAPE_N_COLUMNS];

#define MF_SHAPE_TEXT_MAX 320

/* Name of the extra column, which is empty for most shapes. The functions below also accept this column. */
#define MF_SHAPE_FORM     "form"
#define MF_SHAPE_FORM_MAX 96 /* maximum length of the form's text with the terminator */

/* Sets one column from text in any accepted spelling. -ENOENT: unknown column. -EINVAL: invalid value;
 * *ret_why (static text) then describes the valid values: "an integer from 1 to 127". */
int mf_shape_set(struct mf_shape *shape, const char *column, const char *text, const char **ret_why);
/* Writes the canonical text of one column to buf, truncated if it does not fit. -ENOENT: unknown column. */
int mf_shape_get(const struct mf_shape *shape, const char *column, char *buf, size_t cap);
/* True if a 128x128 block of w1's scales would hold the last rows of gate and the first rows of up, because
 * inter_dim is not a multiple of 128. vLLM and SGLang refuse such weights too (fp8.py, "is not divisible by
 * weight quantization block_n"). */
bool mf_shape_splits_blocks(const struct mf_shape *shape);
/* Checks that a shape is valid. -EINVAL: the shape is invalid, for example because a size is below 1 or topk
 * > expert; *ret_column is the column and *ret_why its expected value (static texts). Does not check whether
 * a family can run the shape. */
int mf_shape_check(const struct mf_shape *shape, const char **ret_column, const char **ret_why);

bool mf_shape_equal(const struct mf_shape *a, const struct mf_shape *b);
/* Compares shapes by layer model, then by token count; a total order for stable lists. */
int mf_shape_compare(const struct mf_shape *a, const struct mf_shape *b);
bool mf_shape_same_layer_model(const struct mf_shape *a, const struct mf_shape *b);

/* Prints the canonical CSV row of twelve values ("512,6144,…,1,0"). If the shape has a form, the form follows
 * as the thirteenth value. MF_SHAPE_TEXT_MAX is always sufficient. */
void mf_shape_print(const struct mf_shape *shape, char buf[MF_SHAPE_TEXT_MAX]);
/* Parses twelve or thirteen values in any accepted spelling. -EINVAL: the text has another form, or
 * mf_shape_check rejects the shape. */
int mf_shape_parse(const char *text, struct mf_shape *ret);
/* Prints the key of the layer model: the CSV row without its token count. */
void mf_shape_print_layer_model(const struct mf_shape *shape, char buf[MF_SHAPE_TEXT_MAX]);

/* Returns the bits per element: 16 for bf16 and fp16, 8 for fp8 and int8, 4 for int4 and fp4x2 (per logical
 * element). */
int mf_dtype_bits(enum mf_dtype dtype);

/* Returns the token bucket that production looks up: the next power of two up to 32768 tokens, 32768 from
 * there to 131071 tokens, and 131072 from 131072 tokens on (ROCm/aiter fused_moe.py, get_padded_M). token
 * must be at least 1. */
int64_t mf_token_bucket(int64_t token);
