/* Generator of AITER's Opus A8W4 kernels for gfx950 (csrc/opus_moe/opus_moe_common.py): one list of instances
 * per stage. Each instance is offered with the plain and the v2 layout. AITER's tuner tries each stage 2
 * instance only in a range of token counts. */
#include "kernels/aiter/aiter_private.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* Integers of an instance of stage 1 and of stage 2. */
enum { BLOCK_M, COLUMNS, K_WAVES };
enum { FROM = 2, TO = 3 };

static int emit_first(const struct mf_shape *s, const struct mf_aiter_entry *e, bool v2,
                      struct mf_aiter_sink *sink)
{
    struct mf_aiter_kernel k = {.family = v2 ? "opusv2" : "opus",
                                .stage = MF_STAGE_STAGE1,
                                .block_m = e->value[BLOCK_M],
                                .flags = MF_AITER_FUSED | (v2 ? MF_AITER_V2 : 0)};
    /* Each of the waves that share K requires whole pairs of steps of the matrix instruction, whose depth is
     * 128. */
    int depth = e->value[K_WAVES] * 256, columns = e->value[COLUMNS];
    if (depth > 0 && columns > 0 && s->model_dim % depth == 0 && s->inter_dim % columns == 0)
        return mf_aiter_emit(sink, k, "%s", e->name);
    return v2 ? 0
              : sink->no(sink, "opus", e->name, "divisibility",
                         "model_dim %d must be a multiple of %d and inter_dim %d a multiple of %d",
                         s->model_dim, depth, s->inter_dim, columns);
}

static int refuse_second(const struct mf_shape *s, const struct mf_aiter_entry *e, bool in_range,
                         struct mf_aiter_sink *sink)
{
    if (in_range)
        return sink->no(sink, "opus", e->name, "divisibility", "model_dim %d must be a multiple of %d",
                        s->model_dim, e->value[COLUMNS]);
    return sink->no(sink, "opus", e->name, "tokens",
                    "AITER's tuner tries this kernel from %d to %d tokens (0: no limit), not for %lld",
                    e->value[FROM], e->value[TO], (long long)s->token);
}

static int emit_second(const struct mf_shape *s, const struct mf_aiter_entry *e, bool v2,
                       struct mf_aiter_sink *sink)
{
    static const char prefix[] = "opus_moe2_";
    struct mf_aiter_kernel k = {.family = v2 ? "opusv2" : "opus",
                                .stage = MF_STAGE_STAGE2,
                                .block_m = e->value[BLOCK_M],
                                .flags = v2 ? MF_AITER_V2 : 0};
    bool in_range = s->token >= e->value[FROM] && (e->value[TO] == 0 || s->token <= e->value[TO]);
    if (strncmp(e->name, prefix, strlen(prefix)) != 0)
        return 0;
    if (strstr(e->name, "_atomic_"))
        k.flags |= MF_AITER_ATOMIC;
    if (in_range && e->value[COLUMNS] > 0 && s->model_dim % e->value[COLUMNS] == 0)
        return mf_aiter_emit(sink, k, "%s%s%s", prefix, v2 ? "layout_" : "", e->name + strlen(prefix));
    return v2 ? 0 : refuse_second(s, e, in_range, sink);
}

static int emit_lists(const struct mf_aiter_layer *layer, bool stage1, bool v2, struct mf_aiter_sink *sink)
{
    struct mf_aiter_cursor one = mf_aiter_list_find(mf_aiter_lists_of(layer), "opus_stage1", NULL);
    struct mf_aiter_cursor two = mf_aiter_list_find(mf_aiter_lists_of(layer), "opus_stage2", NULL);
    struct mf_aiter_entry e;
    int r = 0;
    while (r >= 0 && stage1 && mf_aiter_list_next(&one, &e))
        r = emit_first(layer->shape, &e, v2, sink);
    while (r >= 0 && mf_aiter_list_next(&two, &e))
        r = emit_second(layer->shape, &e, v2, sink);
    return r;
}

int mf_aiter_opus(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "opus_moe?_*";
    const struct mf_shape *s = layer->shape;
    int r = 0;
    if (strcmp(layer->gfx, "gfx950") != 0 || s->q_type != MF_QTYPE_PER_1X32 ||
        !mf_aiter_is_fp8(s->q_dtype_a) || s->q_dtype_w != MF_DTYPE_FP4X2)
        return sink->no(sink, "opus", kernel, "dtype",
                        "opus supports fp8 activations and fp4 weights with per_1x32 on gfx950, not %s and "
                        "%s with %s on %s",
                        mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), mf_qtype_name(s->q_type),
                        layer->gfx);
    if (s->inter_dim % 128 != 0)
        return sink->no(sink, "opus", kernel, "divisibility", "inter_dim %d is not a multiple of 128",
                        s->inter_dim);
    bool act = s->act_type == MF_ACT_SILU || s->act_type == MF_ACT_SWIGLU || s->act_type == MF_ACT_SITUV2;
    bool stage1 = act && !s->doweight_stage1 && s->dtype == MF_DTYPE_BF16;
    if (!stage1)
        r = sink->no(
            sink, "opus", "opus_moe1_*", "epilogue",
            "stage 1 supports silu, swiglu and situv2 with doweight_stage1 0 and bf16 output, not %s with "
            "doweight_stage1 %d and %s",
            mf_aiter_act(s->act_type), s->doweight_stage1, mf_dtype_name(s->dtype));
    for (int v2 = 0; r >= 0 && v2 <= 1; v2++)
        r = emit_lists(layer, stage1, v2, sink);
    return r;
}
