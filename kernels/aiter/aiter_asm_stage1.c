/* Generator of AITER's prebuilt stage 1 kernels: those of the manifests in hsa/GFX/fmoe_2stages, whose tiles
 * have a block size of the tuner as their number of rows. */
#include "kernels/aiter/aiter_private.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

static int emit_list(const struct mf_aiter_layer *layer, struct mf_aiter_cursor c, struct mf_aiter_sink *sink)
{
    const struct mf_shape *s = layer->shape;
    struct mf_aiter_kernel k = {.family = "asm", .stage = MF_STAGE_STAGE1};
    struct mf_aiter_entry e;
    int r = 0;
    k.flags = s->q_type == MF_QTYPE_PER_1X128  ? MF_AITER_FUSED
              : s->q_type == MF_QTYPE_PER_1X32 ? MF_AITER_PERTOKEN
                                               : 0;
    while (r >= 0 && mf_aiter_list_next(&c, &e)) {
        k.block_m = e.value[0];
        if (mf_aiter_is_block_m(k.block_m))
            r = mf_aiter_emit(sink, k, "%s", e.name);
    }
    return r;
}

int mf_aiter_asm_stage1(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "_ZN5aiter*fmoe_stage1_*";
    const struct mf_shape *s = layer->shape;
    char list[96];
    if (!mf_aiter_is_fp8(s->q_dtype_a) && s->q_dtype_a != MF_DTYPE_INT8)
        return sink->no(sink, "asm", kernel, "dtype",
                        "the manifests hold kernels with fp8 or int8 activations, not %s",
                        mf_dtype_name(s->q_dtype_a));
    if (s->q_dtype_w != s->q_dtype_a)
        return sink->no(sink, "asm", kernel, "dtype",
                        "the kernels need activations and weights of one format, not %s and %s",
                        mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w));
    mf_format(list, sizeof(list), "fmoe_2stages/fmoe_stage1_bf16_pertoken%s%s%s_g1u1",
              s->q_dtype_a == MF_DTYPE_INT8 ? "Int8" : "Fp8",
              s->q_type == MF_QTYPE_PER_1X128 ? "_blockscale" : "", s->doweight_stage1 ? "_doweight" : "");
    struct mf_aiter_cursor c = mf_aiter_list_find(mf_aiter_lists_of(layer), list, layer->gfx);
    if (!c.at)
        return sink->no(sink, "asm", kernel, "manifest", "AITER has no manifest hsa/%s/%s.csv", layer->gfx,
                        list);
    return emit_list(layer, c, sink);
}
