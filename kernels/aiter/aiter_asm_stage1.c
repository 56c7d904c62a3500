/* Generator of AITER's prebuilt stage 1 kernels (hsa/<gfx>/fmoe_2stages):
 *   fmoe_stage1_bf16_pertoken{Fp8,Int8}[_blockscale][_doweight]_g1u1.
 *
 * The tiles are those of the manifest whose number of rows is a block size of the tuner. A tile has a kernel
 * for 1x128 if it consists of whole scale blocks, and a kernel for int8 if it has at most 256 columns. */
#include "kernels/aiter/aiter_private.h"

#include "common/base/cleanup.h"

/* clang-format off */
static const struct tile {
    int m, n;
    /* part of the name that gives the number of work groups per CU, for pf2 and for pf3 */
    const char *groups[2];
} tiles[] = {
    { 16,  64, {"_6tg", "_5tg"}}, { 32,  64, {"_4tg", "_4tg"}}, { 64,  64, {"_2tg", "_2tg"}},
    {128,  64, {"", ""}},
    { 16, 128, {"_4tg", "_4tg"}}, { 32, 128, {"_3tg", "_3tg"}}, { 64, 128, {"_2tg", "_2tg"}},
    {128, 128, {"", ""}},
    { 16, 256, {"_3tg", "_2tg"}}, { 32, 256, {"_2tg", "_2tg"}}, { 64, 256, {"", ""}},
    { 16, 512, {"_2tg", ""}},     { 32, 512, {"", ""}},
};
/* clang-format on */

static int emit_tile(const struct mf_shape *s, const struct tile *t, struct mf_aiter_sink *sink)
{
    bool blocks = s->q_type == MF_QTYPE_PER_1X128, int8 = s->q_dtype_a == MF_DTYPE_INT8;
    struct mf_aiter_kernel k = {.family = "asm", .stage = MF_STAGE_STAGE1, .block_m = t->m};
    int r = 0;
    if ((blocks && t->n < 128) || (int8 && t->n > 256))
        return 0;
    k.flags = blocks ? MF_AITER_FUSED : s->q_type == MF_QTYPE_PER_1X32 ? MF_AITER_PERTOKEN : 0;
    for (int i = 0; r >= 0 && i < 2; i++)
        r = mf_aiter_emit_mangled(sink, k, "fmoe_stage1_bf16_pertoken%s%s%s_g1u1_%dx%d%s_pf%d",
                                  int8 ? "Int8" : "Fp8", blocks ? "_blockscale" : "",
                                  s->doweight_stage1 ? "_doweight" : "", t->m, t->n, t->groups[i], i + 2);
    return r;
}

int mf_aiter_asm_stage1(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "_ZN5aiter*fmoe_stage1_*";
    const struct mf_shape *s = layer->shape;
    int r = 0;
    if (!mf_aiter_is_fp8(s->q_dtype_a) && s->q_dtype_a != MF_DTYPE_INT8)
        return sink->no(sink, "asm", kernel, "dtype",
                        "the manifests hold kernels with fp8 or int8 activations, not %s",
                        mf_dtype_name(s->q_dtype_a));
    if (s->q_dtype_w != s->q_dtype_a)
        return sink->no(sink, "asm", kernel, "dtype",
                        "the kernels need activations and weights of one format, not %s and %s",
                        mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w));
    if (s->doweight_stage1 && s->q_dtype_a == MF_DTYPE_INT8)
        return sink->no(sink, "asm", kernel, "doweight",
                        "doweight_stage1 is 1; no manifest holds int8 kernels for it");
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(tiles); i++)
        r = emit_tile(s, &tiles[i], sink);
    return r;
}
