/* Generator of AITER's FlyDSL kernels with bf16 activations and int4 weights. The four waves of a block
 * divide the columns or, with k_wave, also K among them. The block size of the sort must equal the number of
 * rows of the tile, because other sizes give wrong results.
 *
 * The rule is_registered() is inferred from the kernels in AITER's tuned tables and from the number of
 * kernels that AITER's tuner tries (76 for stage 1, 8 for stage 2). AITER does not document the rule. */
#include "kernels/aiter/aiter_private.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define LDS_BYTES (160 * 1024)

static const int tile_ms[] = {16, 32, 64, 128};
static const int k_waves[] = {1, 2, 4};

/* True if AITER has the kernel. The rule is inferred (see the comment at the top of this file). The matrix
 * instruction of a wave requires 16 columns. K is divided among waves only if the depth k of the tile is at
 * least four times its width n. Two tiles of activations per wave must fit into the LDS. */
static bool is_registered(int m, int n, int k, int k_wave)
{
    int columns = n / (4 / k_wave);
    return columns >= 16 && columns % 16 == 0 && (k_wave == 1 || 4 * n <= k) &&
           k_wave * 4 * m * k <= LDS_BYTES;
}

static int emit_stage1(const struct mf_shape *s, struct mf_aiter_sink *sink, int m, int n, int k)
{
    struct mf_aiter_kernel kernel = {.family = "flydsli4", .stage = MF_STAGE_STAGE1, .block_m = m};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(k_waves); i++) {
        char slices[12] = "";
        if (!is_registered(m, n, k, k_waves[i]) || s->model_dim % (k_waves[i] * k) != 0)
            continue;
        if (k_waves[i] > 1)
            mf_format(slices, sizeof(slices), "_kw%d", k_waves[i]);
        for (int cached = 0; r >= 0 && cached <= 1; cached++)
            r = mf_aiter_emit(sink, kernel, "flydsl_moe1_abf16_wint4_bf16_t%dx%dx%d%s%s", m, n, k,
                              cached ? "_bnt0" : "", slices);
    }
    return r;
}

static int emit_tiles(const struct mf_shape *s, struct mf_aiter_sink *sink, int m)
{
    int r = 0;
    for (int k = 128; r >= 0 && k <= 256; k *= 2) {
        struct mf_aiter_kernel two = {
            .family = "flydsli4", .stage = MF_STAGE_STAGE2, .block_m = m, .flags = MF_AITER_ATOMIC};
        for (int n = 16; r >= 0 && n <= 128; n *= 2)
            r = emit_stage1(s, sink, m, n, k);
        if (r >= 0)
            r = mf_aiter_emit(sink, two, "flydsl_moe2_abf16_wint4_bf16_t%dx128x%d_atomic", m, k);
    }
    return r;
}

int mf_aiter_flydsl_int4(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    const struct mf_shape *s = layer->shape;
    int r = 0;
    if (s->q_type != MF_QTYPE_PER_1X32 || s->q_dtype_w != MF_DTYPE_INT4 || s->q_dtype_a != MF_DTYPE_BF16)
        return sink->no(sink, "flydsli4", "flydsl_moe?_abf16_wint4_*", "dtype",
                        "flydsli4 supports torch.bfloat16 activations and torch.int4 weights with per_1x32, "
                        "not %s and %s "
                        "with %s",
                        mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), mf_qtype_name(s->q_type));
    for (int k = 128; r >= 0 && k <= 256; k *= 2)
        for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(k_waves); i++)
            if (s->model_dim % (k_waves[i] * k) != 0) {
                char kernel[64];
                mf_format(kernel, sizeof(kernel), "flydsl_moe1_abf16_wint4_*x%d*_kw%d", k, k_waves[i]);
                r = sink->no(sink, "flydsli4", kernel, "divisibility",
                             "model_dim %d is not a multiple of %d waves with tiles of %d", s->model_dim,
                             k_waves[i], k);
            }
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(tile_ms); i++)
        r = emit_tiles(s, sink, tile_ms[i]);
    return r;
}
