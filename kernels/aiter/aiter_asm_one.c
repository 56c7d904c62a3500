/* Generator of AITER's prebuilt one-stage kernels: those of the manifests in hsa/GFX/fmoe. The manifest of a
 * layer is chosen as AITER's launcher does (asm_fmoe.cu). Kernels that read bf16 hidden states and quantise
 * them (xbf16) have a manifest of their own. FLAT kernels require no sort. */
#include "kernels/aiter/aiter_private.h"

#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

enum { TILE_M, TILE_N, SMF, FLAT };

#define LIST_MAX 96

static void list_name(const struct mf_shape *s, const char *quant, char ret[LIST_MAX])
{
    const char *act = mf_aiter_act(s->act_type);
    mf_format(ret, LIST_MAX, "fmoe/%s/fmoe_%s_%s_g1u1_%s%s", act, s->dtype == MF_DTYPE_FP16 ? "fp16" : "bf16",
              quant, act, s->doweight_stage1 ? "_tkw1" : "");
}

/* Emits or rejects one kernel of a manifest. */
static int emit(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink,
                const struct mf_aiter_entry *e, unsigned flags)
{
    int32_t inter_dim = layer->shape->inter_dim;
    struct mf_aiter_kernel k = {.family = "asm",
                                .stage = MF_STAGE_ONE,
                                .block_m = e->value[FLAT] == 1 ? 0 : e->value[TILE_M],
                                .flags = flags | MF_AITER_ATOMIC};
    if (e->value[FLAT] != 0)
        k.flags |= MF_AITER_FLAT;
    if (e->value[SMF] != 0)
        return 0; /* a layer with smooth quantisation has no key in AITER's tables */
    if (e->value[TILE_N] < 1 || inter_dim % e->value[TILE_N] != 0)
        return sink->no(sink, "asm", e->name, "divisibility",
                        "inter_dim %d is not a multiple of the tile width %d", inter_dim, e->value[TILE_N]);
    return mf_aiter_emit(sink, k, "%s", e->name);
}

static bool is_listed(const struct mf_aiter_layer *layer, const char *list, const char *kernel)
{
    struct mf_aiter_cursor c = mf_aiter_list_find(mf_aiter_lists_of(layer), list, layer->gfx);
    struct mf_aiter_entry e;
    while (mf_aiter_list_next(&c, &e))
        if (strcmp(e.name, kernel) == 0)
            return true;
    return false;
}

static int no_manifest(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink, const char *list)
{
    return sink->no(sink, "asm", "_ZN5aiter*fmoe_*", "manifest", "AITER has no manifest hsa/%s/%s.csv",
                    layer->gfx, list);
}

static int emit_per_token(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    char list[LIST_MAX];
    struct mf_aiter_entry e;
    list_name(layer->shape, layer->shape->q_dtype_a == MF_DTYPE_INT8 ? "pertokenInt8" : "pertokenFp8", list);
    struct mf_aiter_cursor c = mf_aiter_list_find(mf_aiter_lists_of(layer), list, layer->gfx);
    int r = c.at ? 0 : no_manifest(layer, sink, list);
    while (r >= 0 && mf_aiter_list_next(&c, &e))
        r = emit(layer, sink, &e, 0);
    return r;
}

/* The manifest for fp8 hidden states also lists kernels for bf16 hidden states on gfx942, with "a16" in their
 * names. AITER's tuner tries the manifest for bf16 hidden states only on gfx950. */
static int emit_blocks(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    char fp8[LIST_MAX], bf16[LIST_MAX];
    struct mf_aiter_entry e;
    unsigned tried = strcmp(layer->gfx, "gfx950") == 0 ? 0 : MF_AITER_UNTRIED;
    list_name(layer->shape, "blockscaleFp8", fp8);
    list_name(layer->shape, "blockscaleBf16", bf16);
    struct mf_aiter_cursor c = mf_aiter_list_find(mf_aiter_lists_of(layer), fp8, layer->gfx);
    int r = c.at ? 0 : no_manifest(layer, sink, fp8);
    while (r >= 0 && mf_aiter_list_next(&c, &e))
        r = emit(layer, sink, &e, strstr(e.name, "_a16_") ? MF_AITER_XBF16 : 0);
    c = mf_aiter_list_find(mf_aiter_lists_of(layer), bf16, layer->gfx);
    while (r >= 0 && mf_aiter_list_next(&c, &e))
        if (!is_listed(layer, fp8, e.name))
            r = emit(layer, sink, &e, MF_AITER_XBF16 | tried);
    return r;
}

/* Of the kernels for fp4, AITER dispatches only the FLAT ones, which read bf16 hidden states (fused_moe.py,
 * fused_moe_1stage). Its tuner tries none. */
static int emit_fp4(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    char list[LIST_MAX];
    struct mf_aiter_entry e;
    list_name(layer->shape, "pertokenMXfp4", list);
    struct mf_aiter_cursor c = mf_aiter_list_find(mf_aiter_lists_of(layer), list, layer->gfx);
    int r = c.at ? 0 : no_manifest(layer, sink, list);
    while (r >= 0 && mf_aiter_list_next(&c, &e))
        r = e.value[FLAT] == 1
                ? emit(layer, sink, &e, MF_AITER_XBF16 | MF_AITER_UNTRIED)
                : sink->no(sink, "asm", e.name, "dispatch",
                           "with per_1x32, AITER dispatches one-stage kernels only if they are FLAT");
    return r;
}

static int emit_8bit(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "_ZN5aiter*fmoe_bf16_*";
    const struct mf_shape *s = layer->shape;
    if ((!mf_aiter_is_fp8(s->q_dtype_a) && s->q_dtype_a != MF_DTYPE_INT8) || s->q_dtype_w != s->q_dtype_a)
        return sink->no(sink, "asm", kernel, "dtype",
                        "the manifests hold kernels with fp8 or int8 activations and weights, not %s and %s",
                        mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w));
    if (s->q_type == MF_QTYPE_PER_TOKEN) {
        if (s->doweight_stage1 && s->q_dtype_a == MF_DTYPE_INT8)
            return sink->no(sink, "asm", kernel, "doweight",
                            "doweight_stage1 is 1; AITER's launcher fmoe_g1u1_tkw1 supports fp8 only");
        return emit_per_token(layer, sink);
    }
    if (s->inter_dim % 128 != 0)
        return sink->no(sink, "asm", kernel, "divisibility",
                        "inter_dim %d is not a multiple of 128, the scale block of the weights",
                        s->inter_dim);
    if (s->doweight_stage1)
        return sink->no(sink, "asm", kernel, "doweight",
                        "doweight_stage1 is 1; the 1x128 kernels apply the routing weight to the output");
    return emit_blocks(layer, sink);
}

int mf_aiter_asm_one(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "_ZN5aiter*fmoe_bf16_*";
    const struct mf_shape *s = layer->shape;
    bool fp4 = s->q_dtype_a == MF_DTYPE_FP4X2 && s->q_dtype_w == MF_DTYPE_FP4X2;
    if (s->q_type != MF_QTYPE_PER_TOKEN && s->q_type != MF_QTYPE_PER_1X128 &&
        !(s->q_type == MF_QTYPE_PER_1X32 && fp4))
        return sink->no(sink, "asm", kernel, "q_type",
                        "AITER's one-stage kernels support per_Token, per_1x128, and per_1x32 with fp4 "
                        "activations and weights, not %s with %s and %s",
                        mf_qtype_name(s->q_type), mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w));
    if (s->act_type != MF_ACT_SILU && s->act_type != MF_ACT_GELU)
        return sink->no(sink, "asm", kernel, "act_type",
                        "the manifests hold kernels for silu and gelu, not %s", mf_aiter_act(s->act_type));
    return s->q_type == MF_QTYPE_PER_1X32 ? emit_fp4(layer, sink) : emit_8bit(layer, sink);
}
