/* Generator of AITER's Opus A8W4 kernels for gfx950 (csrc/opus_moe/opus_moe_common.py,
 * moe_stage2_a8w4_meta.py): one list of instances per stage. Each instance is offered with the plain and the
 * v2 layout. AITER's tuner tries each stage 2 instance only in a range of token counts.
 *
 * AITER's tuned tables do not contain all instances. The missing names, tiles and ranges of token counts are
 * inferred from the number of kernels that AITER's tuner tries. The number of kernels is therefore right, but
 * the inferred names may be wrong. */
#include "kernels/aiter/aiter_private.h"

#include <string.h>

#include "common/base/cleanup.h"

/* clang-format off */
static const struct first {
    int m, k_wave, columns; /* columns: output columns per tile, which must divide inter_dim */
    const char *name;
} firsts[] = {
    { 16, 4,  32, "t16x384_pair_kw4_m2"},      { 16, 4,  32, "t16x384_pair_kw4_m4"},
    { 32, 4,  32, "t32x384_pair_kw4_m3"},      { 32, 7,  32, "t32x384_pair_kw7_m2"},
    { 32, 7,  32, "t32x384_pair_kw7_m3"},      { 32, 4,  32, "t32x384_pair_kw4_m1"},
    { 32, 1, 192, "t32x384_gs_qgb6_stream"},   { 32, 1, 128, "t32x256_gs_qgb4"},
    { 64, 1, 128, "t64x256_gs_qgb2"},          { 64, 1, 128, "t64x256_gs_qgb4"},
    {128, 1, 128, "t128x256_gs_qgb2"},         { 64, 1, 192, "t64x384_gs_qgb3_stream"},
    { 32, 1, 192, "t32x384_gs_qgb6_stream_k8"}, {64, 1, 192, "t64x384_gs_qgb3_stream_k8"},
    { 32, 1, 192, "t32x384_gs_qgb6_stream_k8_bt128"}, {64, 1, 192, "t64x384_gs_qgb3_aff64"},
    { 64, 1, 192, "t64x384_gs_qgb3_aff192"},   { 64, 1, 192, "t64x384_gs_qgb3_aff32_p2"},
    { 64, 1, 192, "t64x384_gs_qgb3_aff192_mmajor"}, {64, 1, 192, "t64x384_gs_qgb3_aff64_k1lead"},
    { 16, 7,  32, "t16x384_pair_kw7_m1_stream"},
};

static const struct second {
    int m, n;
    int64_t from, to; /* range of token counts; `to` 0: no upper limit */
    int32_t model_dim; /* 0: any model_dim */
    const char *name;
} seconds[] = {
    {16,  64,   1, 1024, 0,    "atomic_t16x64x256_sbm16_cache_b3_ws2"},
    {32, 128,   1, 2048, 0,    "atomic_t32x128x256_sbm32_occ1_cache_b2_ws2"},
    {32, 128,   1, 2048, 0,    "atomic_t32x128x256_sbm32_occ1_cache_b3_ws2"},
    {32, 256,   1,   64, 7168, "bf16_t32x256x256_sbm32_small"},
    {32, 256,   8, 4096, 0,    "fp8_t32x256x256_sbm32_occ4_rbn2240"},
    {32, 256,   8, 4096, 0,    "fp8_t32x256x256_sbm32_occ5_rbn2304"},
    {64, 256, 128,    0, 0,    "fp8_t64x256x256_sbm64_rbn3072"},
    {64, 256, 128,    0, 0,    "fp8_t64x256x256_sbm64_rbn3584"},
    {64, 256, 128,    0, 0,    "fp8_t64x256x256_sbm64_cache_b3_rbn3072"},
};
/* clang-format on */

static int emit_first(const struct mf_shape *s, const struct first *c, bool v2, struct mf_aiter_sink *sink)
{
    struct mf_aiter_kernel k = {.family = v2 ? "opusv2" : "opus",
                                .stage = MF_STAGE_STAGE1,
                                .block_m = c->m,
                                .flags = MF_AITER_FUSED | (v2 ? MF_AITER_V2 : 0)};
    /* Each wave of a paired kernel requires at least 256 elements of K, which are two steps of the matrix
     * instruction. */
    int depth = c->k_wave * 256;
    if (s->model_dim % depth == 0 && s->inter_dim % c->columns == 0)
        return mf_aiter_emit(sink, k, "opus_moe1_afp8_wfp4_bf16_%s_fp8", c->name);
    if (v2)
        return 0;
    char kernel[80];
    (void)snprintf(kernel, sizeof(kernel), "opus_moe1_afp8_wfp4_bf16_%s_fp8", c->name);
    return sink->no(sink, "opus", kernel, "divisibility",
                    "model_dim %d must be a multiple of %d and inter_dim %d a multiple of %d", s->model_dim,
                    depth, s->inter_dim, c->columns);
}

static int emit_second(const struct mf_shape *s, const struct second *c, bool v2, struct mf_aiter_sink *sink)
{
    struct mf_aiter_kernel k = {.family = v2 ? "opusv2" : "opus",
                                .stage = MF_STAGE_STAGE2,
                                .block_m = c->m,
                                .flags = strncmp(c->name, "atomic", 6) == 0 ? MF_AITER_ATOMIC : 0};
    if (v2)
        k.flags |= MF_AITER_V2;
    bool in_window = s->token >= c->from && (c->to == 0 || s->token <= c->to);
    if (in_window && s->model_dim % c->n == 0 && (c->model_dim == 0 || s->model_dim == c->model_dim))
        return mf_aiter_emit(sink, k, "opus_moe2_%safp8_wfp4_%s", v2 ? "layout_" : "", c->name);
    if (v2)
        return 0;
    char kernel[80];
    (void)snprintf(kernel, sizeof(kernel), "opus_moe2_afp8_wfp4_%s", c->name);
    return in_window
               ? sink->no(
                     sink, "opus", kernel, "divisibility",
                     "model_dim %d must be a multiple of %d and equal to the kernel's model_dim %d (0: any)",
                     s->model_dim, c->n, c->model_dim)
               : sink->no(
                     sink, "opus", kernel, "tokens",
                     "AITER's tuner tries this kernel from %lld to %lld tokens (0: unlimited), not for %lld",
                     (long long)c->from, (long long)c->to, (long long)s->token);
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
    if (!act || s->doweight_stage1 || s->dtype != MF_DTYPE_BF16)
        r = sink->no(
            sink, "opus", "opus_moe1_*", "epilogue",
            "stage 1 supports silu, swiglu and situv2 with doweight_stage1 0 and bf16 output, not %s with "
            "doweight_stage1 %d and %s",
            mf_aiter_act(s->act_type), s->doweight_stage1, mf_dtype_name(s->dtype));
    for (int v2 = 0; r >= 0 && v2 <= 1; v2++) {
        for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(firsts) && act && !s->doweight_stage1; i++)
            r = emit_first(s, &firsts[i], v2, sink);
        for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(seconds); i++)
            r = emit_second(s, &seconds[i], v2, sink);
    }
    return r;
}
