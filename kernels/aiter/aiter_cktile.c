/* Generator of AITER's CK-Tile A8W4 kernels: one per block size and stage. The kernels of both stages have
 * the same name. */
#include "kernels/aiter/aiter_private.h"

#include "common/base/cleanup.h"

int mf_aiter_cktile(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const int block_ms[] = {32, 64};
    const struct mf_shape *s = layer->shape;
    int r = 0;
    if (s->q_type != MF_QTYPE_PER_1X32 || !mf_aiter_is_fp8(s->q_dtype_a) || s->q_dtype_w != MF_DTYPE_FP4X2)
        return sink->no(
            sink, "cktile", "cktile_a8w4_*", "dtype",
            "cktile supports fp8 activations and fp4 weights with per_1x32, not %s and %s with %s",
            mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), mf_qtype_name(s->q_type));
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        struct mf_aiter_kernel one = {.family = "cktile", .stage = MF_STAGE_STAGE1, .block_m = block_ms[i]};
        struct mf_aiter_kernel two = {
            .family = "cktile2", .stage = MF_STAGE_STAGE2, .block_m = block_ms[i], .flags = MF_AITER_ATOMIC};
        r = mf_aiter_emit(sink, one, "cktile_a8w4_bm%d", block_ms[i]);
        if (r >= 0)
            r = mf_aiter_emit(sink, two, "cktile_a8w4_bm%d", block_ms[i]);
    }
    return r;
}
