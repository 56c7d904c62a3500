/* Generator of AITER's mxmoe kernels for fp4 activations and weights (flydsl/mxfp4_gemm1_kernels.py,
 * mxfp4_gemm2_kernels.py). Stage 1 writes h in a layout of its own, which stage 2 kernels of mxmoe read, and
 * FlyDSL's layout kernels whose tile has as many rows as the block. AITER tunes these pairs in a separate run
 * (--mxfp4-flydsl), so its default run does not try them. */
#include "kernels/aiter/aiter_private.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define TILE 256 /* columns and depth of every mxmoe tile */

/* clang-format off */
static const struct variant {
    int block_m;
    const char *suffixes;
} ones[] = {
    {16, "_f16in_nt"}, {32, "_nt"}, {32, ""}, {64, ""}, {128, ""},
}, twos[] = {
    {16, "_atomic"}, {16, "_atomic_nt"}, {32, "_atomic"}, {32, "_atomic_nt"}, {64, "_atomic"},
    {64, "_atomic_nt"}, {128, ""}, {128, "_f4out"}, {32, "_cshuffle"}, {64, "_cshuffle"}, {128, "_cshuffle"},
};
/* clang-format on */

static const unsigned flags = MF_AITER_MXMOE | MF_AITER_UNTRIED;

/* The XCD swizzle is a switch of the dispatcher that AITER's shipped tables use. */
static int emit_stage1(struct mf_aiter_sink *sink)
{
    struct mf_aiter_kernel k = {.family = "mxmoe", .stage = MF_STAGE_STAGE1, .flags = flags | MF_AITER_FUSED};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(ones); i++) {
        k.block_m = ones[i].block_m;
        if (strcmp(ones[i].suffixes, "_f16in_nt") == 0)
            k.flags |= MF_AITER_XBF16;
        else
            k.flags &= ~(unsigned)MF_AITER_XBF16;
        for (int xcd = 0; r >= 0 && xcd <= 4; xcd += 4)
            r = mf_aiter_emit(sink, k, "flydsl_mxmoe_g1_a4w4_%dx%dx%d%s%s", k.block_m, TILE, TILE,
                              ones[i].suffixes, xcd ? "_xcd4" : "");
    }
    return r;
}

static int emit_stage2(struct mf_aiter_sink *sink)
{
    struct mf_aiter_kernel k = {.family = "mxmoe", .stage = MF_STAGE_STAGE2};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(twos); i++) {
        k.block_m = twos[i].block_m;
        k.flags = flags | (strncmp(twos[i].suffixes, "_atomic", 7) == 0 ? MF_AITER_ATOMIC : 0);
        r = mf_aiter_emit(sink, k, "flydsl_mxmoe_g2_a4w4_%dx%dx%d%s", k.block_m, TILE, TILE,
                          twos[i].suffixes);
    }
    return r;
}

static int emit_layouts(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const int block_ms[] = {16, 32, 64, 128};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        struct mf_aiter_kernel k = {
            .family = "mxmoe", .stage = MF_STAGE_STAGE2, .block_m = block_ms[i], .flags = flags};
        r = mf_aiter_emit_layouts(layer->shape, sink, &k, block_ms[i]);
    }
    return r;
}

int mf_aiter_mxmoe(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "flydsl_mxmoe_*";
    const struct mf_shape *s = layer->shape;
    if (s->q_type != MF_QTYPE_PER_1X32 || s->q_dtype_a != MF_DTYPE_FP4X2 || s->q_dtype_w != MF_DTYPE_FP4X2 ||
        s->dtype != MF_DTYPE_BF16)
        return sink->no(
            sink, "mxmoe", kernel, "dtype",
            "mxmoe supports fp4 activations and weights with per_1x32 and bf16 output, not %s and "
            "%s with %s and %s",
            mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), mf_qtype_name(s->q_type),
            mf_dtype_name(s->dtype));
    if (s->doweight_stage1)
        return sink->no(sink, "mxmoe", kernel, "doweight",
                        "doweight_stage1 is 1; stage 2 of the mxmoe kernels applies the routing weight");
    if (s->act_type != MF_ACT_SILU)
        return sink->no(sink, "mxmoe", kernel, "act_type", "stage 1 supports silu, not %s",
                        mf_aiter_act(s->act_type));
    if (s->model_dim % TILE != 0 || 2 * s->inter_dim % TILE != 0)
        return sink->no(sink, "mxmoe", kernel, "divisibility",
                        "model_dim %d must be a multiple of %d and inter_dim %d a multiple of %d",
                        s->model_dim, TILE, s->inter_dim, TILE / 2);
    int r = emit_stage1(sink);
    if (r >= 0)
        r = s->inter_dim % TILE == 0
                ? emit_stage2(sink)
                : sink->no(sink, "mxmoe", "flydsl_mxmoe_g2_*", "divisibility",
                           "inter_dim %d is not a multiple of the tile depth %d", s->inter_dim, TILE);
    return r < 0 ? r : emit_layouts(layer, sink);
}
