/* Generator of AITER's composable kernel two-stage kernels: the instance lists of
 * gemm_moe_ck2stages_common.py with block_m up to 128, one list per format and, if the matrix instructions
 * differ between GPUs, per gfx. */
#include "kernels/aiter/aiter_private.h"

#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"

struct instance {
    int threads, m, n, k, m_waves, n_waves, version;
};

/* clang-format off */
static const struct instance a16w16_1[] = {
    {256, 32, 64, 128, 1, 4, 1},    {256, 32, 64, 64, 1, 4, 1},     {256, 64, 64, 128, 1, 4, 1},
    {256, 64, 64, 64, 1, 4, 1},     {256, 128, 64, 64, 1, 4, 1},    {256, 64, 128, 128, 1, 4, 3},
    {256, 64, 128, 64, 1, 4, 3},    {256, 128, 128, 128, 1, 4, 3},  {256, 128, 128, 64, 1, 4, 3},
};
static const struct instance a16w16_2[] = {
    {256, 32, 64, 128, 1, 4, 1},    {256, 64, 64, 128, 1, 4, 1},    {256, 128, 64, 64, 1, 4, 1},
    {256, 64, 128, 128, 1, 4, 3},   {256, 128, 128, 64, 1, 4, 3},   {256, 32, 64, 64, 1, 4, 1},
    {256, 64, 128, 64, 1, 4, 3},    {256, 64, 64, 64, 1, 4, 1},     {256, 128, 64, 64, 1, 4, 3},
};
static const struct instance a16w16_gfx950_1[] = {
    {256, 32, 64, 128, 1, 4, 1},    {256, 32, 64, 64, 1, 4, 1},     {256, 64, 64, 128, 1, 4, 1},
    {256, 64, 64, 64, 1, 4, 1},     {256, 128, 64, 64, 1, 4, 1},    {256, 128, 128, 64, 1, 4, 3},
};
static const struct instance a16w16_gfx950_2[] = {
    {256, 32, 128, 128, 1, 4, 1},   {256, 64, 128, 128, 1, 4, 1},   {256, 128, 128, 64, 1, 4, 1},
    {256, 128, 128, 64, 1, 4, 3},   {256, 128, 64, 64, 1, 4, 3},    {256, 32, 64, 64, 1, 4, 1},
    {256, 64, 64, 64, 1, 4, 1},     {256, 128, 64, 64, 1, 4, 1},    {256, 64, 128, 64, 1, 4, 1},
};
static const struct instance a8w8_1[] = {
    {128, 16, 64, 128, 1, 2, 1},    {256, 16, 128, 256, 1, 4, 1},   {256, 16, 64, 256, 1, 4, 1},
    {256, 32, 64, 256, 1, 4, 1},    {256, 32, 64, 128, 1, 4, 1},    {256, 64, 64, 256, 1, 4, 1},
    {256, 64, 64, 128, 1, 4, 1},    {256, 128, 64, 128, 1, 4, 1},   {256, 64, 128, 256, 1, 4, 3},
    {256, 64, 128, 128, 1, 4, 3},   {256, 128, 128, 256, 1, 4, 3},  {256, 128, 128, 128, 1, 4, 3},
};
static const struct instance a8w8_2[] = {
    {256, 16, 128, 256, 1, 4, 1},   {128, 16, 128, 128, 1, 2, 1},   {64, 16, 64, 64, 1, 1, 1},
    {256, 32, 64, 256, 1, 4, 1},    {256, 64, 64, 256, 1, 4, 1},    {256, 128, 64, 128, 1, 4, 1},
    {256, 64, 128, 256, 1, 4, 3},   {256, 128, 128, 128, 1, 4, 3},  {256, 32, 64, 128, 1, 4, 1},
    {256, 64, 128, 128, 1, 4, 3},   {256, 32, 64, 64, 1, 4, 1},     {256, 64, 128, 64, 1, 4, 3},
    {256, 64, 64, 64, 1, 4, 1},     {256, 128, 128, 64, 1, 4, 3},   {256, 128, 64, 64, 1, 4, 3},
};
static const struct instance a8w8_gfx950_1[] = {
    {256, 32, 64, 256, 1, 4, 1},    {256, 32, 64, 128, 1, 4, 1},    {256, 64, 64, 256, 1, 4, 1},
    {256, 64, 64, 128, 1, 4, 1},    {256, 128, 64, 128, 1, 4, 1},   {256, 128, 128, 128, 1, 4, 3},
};
static const struct instance a8w8_gfx950_2[] = {
    {256, 32, 128, 256, 1, 4, 1},   {256, 64, 128, 256, 1, 4, 1},   {256, 128, 128, 128, 1, 4, 1},
    {256, 128, 128, 128, 1, 4, 3},
};
static const struct instance blockscale[] = {
    {256, 16, 128, 256, 1, 4, 1},   {128, 16, 128, 128, 1, 2, 1},   {256, 32, 128, 128, 1, 4, 1},
    {256, 64, 128, 128, 1, 4, 3},   {256, 64, 128, 128, 1, 4, 1},
};
static const struct instance a4w4_1[] = {
    {256, 32, 128, 128, 1, 4, 3},   {256, 64, 128, 128, 1, 4, 3},   {256, 128, 128, 128, 1, 4, 3},
    {64, 32, 32, 128, 1, 1, 3},
};
static const struct instance a4w4_2[] = {
    {256, 32, 128, 128, 1, 4, 3},   {256, 64, 128, 128, 1, 4, 3},   {256, 128, 128, 128, 1, 4, 3},
    {64, 32, 32, 128, 1, 1, 1},     {64, 64, 128, 128, 1, 1, 3},    {64, 128, 128, 128, 1, 1, 3},
};

#define LIST(a) a, MF_ARRAY_LEN(a)
static const struct lists {
    enum { A16W16, A8W8, BLOCKSCALE, A4W4 } kind;
    bool gfx950;
    const struct instance *one; size_t n_one;
    const struct instance *two; size_t n_two;
    const char *op1, *op2;           /* names of the epilogues of stage 1 and stage 2 */
    const char *weighed1, *weighed2; /* the same names for kernels that apply the routing weight */
} lists[] = {
    {A16W16, false, LIST(a16w16_1), LIST(a16w16_2),
     "TypeCast", "TypeCast", "TypeCastExpertWeight", "TypeCastExpertWeight"},
    {A16W16, true, LIST(a16w16_gfx950_1), LIST(a16w16_gfx950_2),
     "TypeCast", "TypeCast", "TypeCast", "TypeCast"},
    {A8W8, false, LIST(a8w8_1), LIST(a8w8_2),
     "MulABScale", "MulABScaleExpertWeight", "MulABScale", "MulABScaleExpertWeight"},
    {A8W8, true, LIST(a8w8_gfx950_1), LIST(a8w8_gfx950_2),
     "TypeCast", "TypeCast", "TypeCast", "TypeCast"},
    {BLOCKSCALE, false, LIST(blockscale), LIST(blockscale),
     "MulABScaleExpertWeightA8W8blkscale", "MulABScaleExpertWeightA8W8blkscale",
     "MulABScaleExpertWeightA8W8blkscale", "MulABScaleExpertWeightA8W8blkscale"},
    {A4W4, true, LIST(a4w4_1), LIST(a4w4_2),
     "MulABScaleShuffled", "MulABScaleExpertWeightShuffled",
     "MulABScaleShuffled", "MulABScaleExpertWeightShuffled"},
};
/* clang-format on */

static const char *format_of(enum mf_dtype dtype)
{
    static const char *const words[MF_DTYPE_N_] = {
        [MF_DTYPE_BF16] = "B16",        [MF_DTYPE_FP16] = "F16", [MF_DTYPE_FP8_E4M3FN] = "F8",
        [MF_DTYPE_FP8_E4M3FNUZ] = "F8", [MF_DTYPE_INT8] = "I8",  [MF_DTYPE_INT4] = "I4",
        [MF_DTYPE_FP4X2] = "FP4X2",
    };
    return words[dtype];
}

/* Returns the number of the type in AITER's enum QuantType. */
static int quant_of(enum mf_qtype type)
{
    static const int numbers[MF_QTYPE_N_] = {[MF_QTYPE_PER_TENSOR] = 1,
                                             [MF_QTYPE_PER_TOKEN] = 2,
                                             [MF_QTYPE_PER_1X32] = 3,
                                             [MF_QTYPE_PER_1X128] = 4};
    return numbers[type];
}

static int emit(const struct mf_shape *s, const struct lists *l, int stage, struct mf_aiter_sink *sink)
{
    const struct instance *list = stage == 1 ? l->one : l->two;
    size_t n = stage == 1 ? l->n_one : l->n_two;
    bool weighs = s->doweight_stage1 == (stage == 1);
    const char *op = stage == 1 ? (weighs ? l->weighed1 : l->op1) : (weighs ? l->weighed2 : l->op2);
    struct mf_aiter_kernel k = {.family = "ck",
                                .stage = stage == 1 ? MF_STAGE_STAGE1 : MF_STAGE_STAGE2,
                                .flags = stage == 1 ? 0 : MF_AITER_ATOMIC};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n; i++) {
        const struct instance *c = &list[i];
        k.block_m = c->m;
        r = mf_aiter_emit(
            sink, k,
            "moe_ck2stages_gemm%d_%dx%dx%dx%d_%dx%d_%s_v%d_Nswizzle0_Quant%d_MulRoutedWeight%d%s%s_%s_%s_%s",
            stage, c->threads, c->m, c->n, c->k, c->m_waves, c->n_waves, op, c->version, quant_of(s->q_type),
            weighs, stage == 1 ? "_" : "", stage == 1 ? mf_aiter_act(s->act_type) : "",
            format_of(s->q_dtype_a), format_of(s->q_dtype_w), format_of(s->dtype));
    }
    return r;
}

/* Returns which list has kernels for the shape's formats, or -1 if no list has. */
static int kind_of(const struct mf_shape *s)
{
    bool bits8 = mf_aiter_is_fp8(s->q_dtype_a) || s->q_dtype_a == MF_DTYPE_INT8;
    if (s->q_type == MF_QTYPE_NO && s->q_dtype_a == s->dtype && s->q_dtype_w == s->dtype)
        return A16W16;
    if (s->q_type == MF_QTYPE_PER_1X32)
        return s->q_dtype_a == MF_DTYPE_FP4X2 && s->q_dtype_w == MF_DTYPE_FP4X2 ? A4W4 : -1;
    if (!bits8 || s->q_dtype_w != s->q_dtype_a)
        return -1;
    return s->q_type == MF_QTYPE_PER_1X128                                       ? BLOCKSCALE
           : s->q_type == MF_QTYPE_PER_TENSOR || s->q_type == MF_QTYPE_PER_TOKEN ? A8W8
                                                                                 : -1;
}

/* Rejects split-K in stage 1. AITER's tuner computes the legal splits, whose parts are whole scale blocks,
 * but does not emit their kernels (ROCm/aiter#2726). AITER's shipped tables still contain rows with such
 * kernels. */
static int refuse_splits(const struct mf_shape *s, struct mf_aiter_sink *sink)
{
    char parts[32] = "";
    size_t n = 0;
    for (int k = 2; k <= 8; k++) {
        if (s->model_dim % k == 0 && s->model_dim / k % 128 == 0)
            n += (size_t)snprintf(parts + n, sizeof(parts) - n, "%s%d", n > 0 ? ", " : "", k);
    }
    return n == 0
               ? 0
               : sink->no(
                     sink, "ck", "moe_ck2stages_gemm1_*Splitk*", "tuner",
                     "model_dim %d could be split into %s parts of whole blocks of 128; AITER's tuner does "
                     "not try split-K",
                     s->model_dim, parts);
}

int mf_aiter_ck(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "moe_ck2stages_*";
    const struct mf_shape *s = layer->shape;
    int kind = kind_of(s);
    if (kind < 0)
        return sink->no(sink, "ck", kernel, "dtype",
                        "the instance lists have no kernel for %s activations and %s weights with %s",
                        mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), mf_qtype_name(s->q_type));
    if (s->act_type != MF_ACT_SILU && s->act_type != MF_ACT_GELU)
        return sink->no(sink, "ck", kernel, "act_type", "stage 1 supports silu and gelu, not %s",
                        mf_aiter_act(s->act_type));
    bool gfx950 = strcmp(layer->gfx, "gfx950") == 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(lists); i++) {
        if ((int)lists[i].kind != kind || (kind != BLOCKSCALE && lists[i].gfx950 != gfx950))
            continue;
        int r = emit(s, &lists[i], 1, sink);
        if (r >= 0)
            r = emit(s, &lists[i], 2, sink);
        return r < 0 || kind != BLOCKSCALE || !mf_aiter_is_fp8(s->q_dtype_a) ? r : refuse_splits(s, sink);
    }
    return sink->no(sink, "ck", kernel, "gfx", "there is no instance list for %s weights on %s",
                    mf_dtype_name(s->q_dtype_w), layer->gfx);
}
