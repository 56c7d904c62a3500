/* Generator of AITER's prebuilt one-stage kernels (hsa/<gfx>/fmoe/{silu,gelu}): kernels for scales per token,
 * for 1x128, for 1x128 with bf16 activations (xbf16), and FLAT kernels, which require no sort.
 *
 * Per-token kernels exist for each tile width, plain and persistent. The 1x128 kernels are listed for each
 * gfx; the list is the union of AITER's public manifests and its shipped tuned tables. */
#include "kernels/aiter/aiter_private.h"

#include <string.h>

#include "common/base/cleanup.h"

static const int widths[] = {128, 192, 256, 320, 384, 448, 512};

/* clang-format off */
static const struct listed {
    const char *gfx;
    const char *before, *after; /* parts of the name before and after the activation */
    int m, n;
    unsigned flags;
    bool silu_only;
} listed[] = {
    {"gfx942", "blockscaleFp8_g1u1_vs",   "_1tg_32x128",    32, 128, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_vs",   "_1tg_32x256",    32, 256, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_novs", "_1tg_32x128",    32, 128, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_novs", "_1tg_32x256",    32, 256, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_vs",   "_1tg_ps_32x128", 32, 128, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_vs",   "_1tg_ps_32x256", 32, 256, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_novs", "_1tg_ps_32x128", 32, 128, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_novs", "_1tg_ps_32x256", 32, 256, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_vs_ps", "_64x256",       64, 256, 0, false},
    {"gfx942", "blockscaleFp8_g1u1_vs",   "_64x256",        64, 256, 0, false},
    {"gfx942", "a16_blockscaleFp8_g1u1_vs", "_1tg_16x128_flat_pf3",    1, 128, MF_AITER_XBF16 | MF_AITER_FLAT,
     true},
    {"gfx942", "a16_blockscaleFp8_g1u1_vs", "_1tg_emsort_16x128_pf3", 16, 128, MF_AITER_XBF16 | MF_AITER_FLAT,
     true},

    {"gfx950", "blockscaleFp8_g1u1_vs",   "_1tg_32x256",    32, 256, 0, false},
    {"gfx950", "blockscaleFp8_g1u1_novs", "_1tg_32x256",    32, 256, 0, false},
    {"gfx950", "blockscaleFp8_g1u1_vs",   "_1tg_ps_32x256", 32, 256, 0, false},
    {"gfx950", "blockscaleFp8_g1u1_novs", "_1tg_ps_32x256", 32, 256, 0, false},
    {"gfx950", "blockscaleFp8_g1u1_vs_ps", "_32x128",       32, 128, 0, false},
    {"gfx950", "blockscaleFp8_g1u1_vs_ps", "_32x256",       32, 256, 0, false},
    {"gfx950", "blockscaleFp8_g1u1_vs_ps", "_64x128",       64, 128, 0, false},
    {"gfx950", "blockscaleFp8_g1u1_vs_ps", "_64x256",       64, 256, 0, false},
    {"gfx950", "blockscaleFp8_g1u1_vs",   "_64x256",        64, 256, 0, false},
    {"gfx950", "blockscaleBf16_g1u1_vs_ps",   "_32x128",    32, 128, MF_AITER_XBF16, false},
    {"gfx950", "blockscaleBf16_g1u1_vs_ps",   "_32x256",    32, 256, MF_AITER_XBF16, false},
    {"gfx950", "blockscaleBf16_g1u1_novs_ps", "_32x128",    32, 128, MF_AITER_XBF16, false},
    {"gfx950", "blockscaleBf16_g1u1_vs_pf2",  "_16x128",    16, 128, MF_AITER_XBF16, false},
    {"gfx950", "blockscaleBf16_g1u1_flat_vs", "_1x128",      1, 128, MF_AITER_XBF16 | MF_AITER_FLAT, false},
    {"gfx950", "blockscaleBf16_g1u1_flat_vs", "_1x256",      1, 256, MF_AITER_XBF16 | MF_AITER_FLAT, false},
};
/* clang-format on */

/* Rejects the kernels of tile width n if n does not divide inter_dim. */
static int refuse_width(struct mf_aiter_sink *sink, const struct mf_shape *s, int n)
{
    char kernel[48];
    (void)snprintf(kernel, sizeof(kernel), "_ZN5aiter*fmoe_bf16_*x%dE", n);
    return sink->no(sink, "asm", kernel, "divisibility",
                    "inter_dim %d is not a multiple of the tile width %d", s->inter_dim, n);
}

static int emit_per_token(const struct mf_shape *s, struct mf_aiter_sink *sink)
{
    struct mf_aiter_kernel k = {
        .family = "asm", .stage = MF_STAGE_ONE, .block_m = 32, .flags = MF_AITER_ATOMIC};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(widths); i++) {
        if (s->inter_dim % widths[i] != 0) {
            r = refuse_width(sink, s, widths[i]);
            continue;
        }
        for (int ps = 0; r >= 0 && ps <= 1; ps++)
            r = mf_aiter_emit_mangled(sink, k, "fmoe_bf16_pertoken%s_g1u1_vs%s_%s_1tg_%s32x%d",
                                      s->q_dtype_a == MF_DTYPE_INT8 ? "Int8" : "Fp8",
                                      s->doweight_stage1 ? "_tkw1" : "", mf_aiter_act(s->act_type),
                                      ps ? "ps_" : "", widths[i]);
    }
    return r;
}

static int emit_listed(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    const struct mf_shape *s = layer->shape;
    int r = 0;
    if (s->inter_dim % 256 != 0)
        r = refuse_width(sink, s, 256);
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(listed); i++) {
        const struct listed *l = &listed[i];
        if (strcmp(l->gfx, layer->gfx) != 0 || s->inter_dim % l->n != 0 ||
            (l->silu_only && s->act_type != MF_ACT_SILU))
            continue;
        struct mf_aiter_kernel k = {.family = "asm",
                                    .stage = MF_STAGE_ONE,
                                    .block_m = l->m > 1 ? l->m : 0,
                                    .flags = l->flags | MF_AITER_ATOMIC};
        r = mf_aiter_emit_mangled(sink, k, "fmoe_bf16_%s_%s%s", l->before, mf_aiter_act(s->act_type),
                                  l->after);
    }
    return r;
}

int mf_aiter_asm_one(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "_ZN5aiter*fmoe_bf16_*";
    const struct mf_shape *s = layer->shape;
    if (s->q_type != MF_QTYPE_PER_TOKEN && s->q_type != MF_QTYPE_PER_1X128)
        return sink->no(sink, "asm", kernel, "q_type",
                        "AITER's one-stage kernels support per_Token and per_1x128, not %s",
                        mf_qtype_name(s->q_type));
    if ((!mf_aiter_is_fp8(s->q_dtype_a) && s->q_dtype_a != MF_DTYPE_INT8) || s->q_dtype_w != s->q_dtype_a)
        return sink->no(sink, "asm", kernel, "dtype",
                        "the manifests hold kernels with fp8 or int8 activations and weights, not %s and %s",
                        mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w));
    if (s->act_type != MF_ACT_SILU && s->act_type != MF_ACT_GELU)
        return sink->no(sink, "asm", kernel, "act_type",
                        "the manifests hold kernels for silu and gelu, not %s", mf_aiter_act(s->act_type));
    if (s->q_type == MF_QTYPE_PER_1X128) {
        if (s->inter_dim % 128 != 0)
            return sink->no(sink, "asm", kernel, "divisibility",
                            "inter_dim %d is not a multiple of 128, the scale block of the weights",
                            s->inter_dim);
        if (s->doweight_stage1)
            return sink->no(sink, "asm", kernel, "doweight",
                            "doweight_stage1 is 1; the 1x128 kernels apply the routing weight to the output");
        return emit_listed(layer, sink);
    }
    if (s->doweight_stage1 && s->q_dtype_a == MF_DTYPE_INT8)
        return sink->no(sink, "asm", kernel, "doweight",
                        "doweight_stage1 is 1; no manifest holds int8 kernels for it");
    return emit_per_token(s, sink);
}
