/* Generator of AITER's composable kernel two-stage kernels: the instance lists of
 * gemm_moe_ck2stages_common.py with block_m up to 128, one list per format and, if the matrix instructions
 * differ between GPUs, per gfx.
 *
 * The tiles must divide the layer, because the device operations refuse other sizes (IsSupportedArgument):
 * columns and depth of stage 1 divide inter_dim and model_dim, those of stage 2 model_dim and inter_dim. */
#include "kernels/aiter/aiter_private.h"

#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

enum { TILE_M, TILE_N, TILE_K, VERSION };

/* clang-format off */
static const struct lists {
    enum { A16W16, A8W8, BLOCKSCALE, A4W4 } kind;
    bool gfx950;
    const char *list[2];
    /* names of the epilogues of stage 1 and stage 2, and of those that apply the routing weight */
    const char *op[2], *weighed[2];
} lists[] = {
    {A16W16, false, {"a16w16_gemm1_kernels_list", "a16w16_gemm2_kernels_list"},
     {"TypeCast", "TypeCast"}, {"TypeCastExpertWeight", "TypeCastExpertWeight"}},
    {A16W16, true, {"a16w16_gemm1_kernels_list_gfx950", "a16w16_gemm2_kernels_list_gfx950"},
     {"TypeCast", "TypeCast"}, {"TypeCast", "TypeCast"}},
    {A8W8, false, {"a8w8_gemm1_kernels_list", "a8w8_gemm2_kernels_list"},
     {"MulABScale", "MulABScaleExpertWeight"}, {"MulABScale", "MulABScaleExpertWeight"}},
    {A8W8, true, {"a8w8_gemm1_kernels_list_gfx950", "a8w8_gemm2_kernels_list_gfx950"},
     {"TypeCast", "TypeCast"}, {"TypeCast", "TypeCast"}},
    {BLOCKSCALE, false, {"a8w8_gemm1_blockscale_kernels_list", "a8w8_gemm2_blockscale_kernels_list"},
     {"MulABScaleExpertWeightA8W8blkscale", "MulABScaleExpertWeightA8W8blkscale"},
     {"MulABScaleExpertWeightA8W8blkscale", "MulABScaleExpertWeightA8W8blkscale"}},
    {A4W4, true, {"a4w4_gemm1_kernels_list", "a4w4_gemm2_kernels_list"},
     {"MulABScaleShuffled", "MulABScaleExpertWeightShuffled"},
     {"MulABScaleShuffled", "MulABScaleExpertWeightShuffled"}},
};
/* clang-format on */

#define SPLIT_MAX 8 /* AITER's tuner computes splits up to this factor */

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

bool mf_aiter_ck_tile_refused(const struct mf_shape *s, int stage, int n, int k, char *why, size_t cap)
{
    const char *name_n = stage == 1 ? "inter_dim" : "model_dim",
               *name_k = stage == 1 ? "model_dim" : "inter_dim";
    int32_t size_n = stage == 1 ? s->inter_dim : s->model_dim,
            size_k = stage == 1 ? s->model_dim : s->inter_dim;
    if (size_n % n != 0)
        mf_format(why, cap,
                  "composable kernel needs %s %% NPerBlock = 0 in stage %d: %d is not a multiple of %d",
                  name_n, stage, size_n, n);
    else if (size_k % k != 0)
        mf_format(why, cap,
                  "composable kernel needs %s %% KPerBlock = 0 in stage %d: %d is not a multiple of %d",
                  name_k, stage, size_k, k);
    else
        return false;
    return true;
}

/* A kernel of a list for a layer. */
struct candidate {
    const struct mf_shape *shape;
    const struct lists *lists;
    int stage;
    const struct mf_aiter_entry *tile;
};

static void print_name(const struct candidate *c, int split, char ret[MF_STEP_NAME_MAX])
{
    const struct mf_shape *s = c->shape;
    bool weighs = s->doweight_stage1 == (c->stage == 1);
    char factor[16] = "";
    if (split > 0)
        mf_format(factor, sizeof(factor), "_sk%d", split);
    mf_format(ret, MF_STEP_NAME_MAX,
              "moe_ck2stages_gemm%d_%s_%s%s_v%d_Nswizzle0_Quant%d_MulRoutedWeight%d%s%s_%s_%s_%s%s", c->stage,
              c->tile->name, (weighs ? c->lists->weighed : c->lists->op)[c->stage - 1],
              split > 0 ? "Splitk" : "", c->tile->value[VERSION], quant_of(s->q_type), weighs,
              c->stage == 1 ? "_" : "", c->stage == 1 ? mf_aiter_act(s->act_type) : "",
              format_of(s->q_dtype_a), format_of(s->q_dtype_w), format_of(s->dtype), factor);
}

/* Emits stage 1 with split-K. The parts must be whole scale blocks of 128. AITER's tuner computes the legal
 * splits but does not emit their kernels (ROCm/aiter#2726); AITER's shipped tables have rows with such
 * kernels. */
static int emit_splits(const struct candidate *c, struct mf_aiter_kernel k, struct mf_aiter_sink *sink)
{
    int r = 0;
    k.flags |= MF_AITER_UNTRIED;
    for (k.ksplit = 2; r >= 0 && k.ksplit <= SPLIT_MAX; k.ksplit++) {
        int32_t model_dim = c->shape->model_dim;
        if (model_dim % k.ksplit != 0 || model_dim / k.ksplit % 128 != 0)
            continue;
        print_name(c, k.ksplit, k.name);
        r = mf_aiter_emit(sink, k, "%s", k.name);
    }
    return r;
}

static int emit_one(const struct candidate *c, struct mf_aiter_sink *sink)
{
    struct mf_aiter_kernel k = {.family = "ck",
                                .stage = c->stage == 1 ? MF_STAGE_STAGE1 : MF_STAGE_STAGE2,
                                .block_m = c->tile->value[TILE_M],
                                .flags = c->stage == 1 ? 0 : MF_AITER_ATOMIC};
    char why[MF_REASON_MAX];
    print_name(c, 0, k.name);
    if (mf_aiter_ck_tile_refused(c->shape, c->stage, c->tile->value[TILE_N], c->tile->value[TILE_K], why,
                                 sizeof(why)))
        return sink->no(sink, "ck", k.name, "divisibility", "%s", why);
    int r = mf_aiter_emit(sink, k, "%s", k.name);
    bool splits = c->stage == 1 && c->lists->kind == BLOCKSCALE && mf_aiter_is_fp8(c->shape->q_dtype_a);
    return r < 0 || !splits ? r : emit_splits(c, k, sink);
}

static int emit(const struct mf_aiter_layer *layer, const struct lists *l, int stage,
                struct mf_aiter_sink *sink)
{
    struct mf_aiter_entry e;
    struct candidate c = {layer->shape, l, stage, &e};
    struct mf_aiter_cursor at = mf_aiter_list_find(mf_aiter_lists_of(layer), l->list[stage - 1], NULL);
    int r = 0;
    while (r >= 0 && mf_aiter_list_next(&at, &e))
        if (mf_aiter_is_block_m(e.value[TILE_M]) && e.value[TILE_N] > 0 && e.value[TILE_K] > 0)
            r = emit_one(&c, sink);
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
        int r = emit(layer, &lists[i], 1, sink);
        return r < 0 ? r : emit(layer, &lists[i], 2, sink);
    }
    return sink->no(sink, "ck", kernel, "gfx", "there is no instance list for %s weights on %s",
                    mf_dtype_name(s->q_dtype_w), layer->gfx);
}
