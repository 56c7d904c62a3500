/* Generator of AITER's CK-Tile kernels: A8W4, one per block size and stage, and A16W4 with swiglu, whose
 * block size AITER chooses. The kernels of both stages have the same name. */
#include "kernels/aiter/aiter_private.h"

#include <stdio.h>

#include "common/base/cleanup.h"

static int emit_pair(struct mf_aiter_sink *sink, const char *name, int block_m, unsigned flags)
{
    struct mf_aiter_kernel one = {
        .family = "cktile", .stage = MF_STAGE_STAGE1, .block_m = block_m, .flags = flags};
    struct mf_aiter_kernel two = {
        .family = "cktile2", .stage = MF_STAGE_STAGE2, .block_m = block_m, .flags = flags | MF_AITER_ATOMIC};
    int r = mf_aiter_emit(sink, one, "%s", name);
    return r < 0 ? r : mf_aiter_emit(sink, two, "%s", name);
}

/* AITER's heuristic for this layer (fused_moe.py, get_2stage_cfgs). It has a name in AITER's tables, but its
 * tuner does not try it. */
static int emit_swiglu(const struct mf_shape *s, struct mf_aiter_sink *sink)
{
    return emit_pair(sink, "swiglu_mxfp4_bf16_cktile",
                     s->token < 2048    ? 16
                     : s->token < 16384 ? 32
                                        : 64,
                     MF_AITER_UNTRIED);
}

int mf_aiter_cktile(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const int block_ms[] = {32, 64};
    const struct mf_shape *s = layer->shape;
    bool fp4_weights = s->q_type == MF_QTYPE_PER_1X32 && s->q_dtype_w == MF_DTYPE_FP4X2;
    int r = 0;
    if (fp4_weights && s->q_dtype_a == MF_DTYPE_BF16 && s->act_type == MF_ACT_SWIGLU)
        return emit_swiglu(s, sink);
    if (!fp4_weights || !mf_aiter_is_fp8(s->q_dtype_a))
        return sink->no(
            sink, "cktile", "cktile_a8w4_*", "dtype",
            "cktile supports fp4 weights with per_1x32, and fp8 activations or bf16 with swiglu, not %s and "
            "%s with %s",
            mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), mf_qtype_name(s->q_type));
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "cktile_a8w4_bm%d", block_ms[i]);
        r = emit_pair(sink, name, block_ms[i], 0);
    }
    return r;
}
