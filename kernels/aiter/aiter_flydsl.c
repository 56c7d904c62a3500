/* Generator of AITER's FlyDSL two-stage kernels for 1x32 and of the v2 ("layout") pairs: the combinations of
 * tiles and switches in AITER's registry, except those that fault or write nothing (gen_flydsl_2stages_task
 * and gen_flydsl_v2_2stages_task in gemm_moe_tune.py).
 *
 * Split-K in stage 1 uses k_batch launch slices or k_wave waves. Each slice and each wave must get whole
 * tiles of model_dim; otherwise the launch can cause a fault of the GPU queue. */
#include "kernels/aiter/aiter_private.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* Block sizes. AITER's registry has kernels of 16 rows for fp8 activations and fp4 weights, which its tuner
 * does not try. */
static const int block_ms[] = {16, 32, 64, 128};
static const int k_batches[] = {1, 2, 4, 7, 14};
static const int k_waves[] = {1, 2, 4};

static unsigned tried(int block_m)
{
    return block_m == 16 ? MF_AITER_UNTRIED : 0;
}

struct fly {
    const struct mf_shape *shape;
    struct mf_aiter_sink *sink;
    const char *a, *w; /* formats of activations and weights, as spelled in kernel names */
    bool bf16, fp4;    /* whether the activations are bf16, and whether they are fp4 */
    char kernels[48];  /* prefix of the kernel names, for rejections */
    size_t first;      /* index of the smallest block size */
};

/* Parameters of a stage 1 kernel, as in AITER's registry. */
struct one {
    int m, n, k, waves, k_batch, xcd, k_wave;
    bool cached; /* true: weights are loaded through the cache; suffix _bnt0 */
    bool gate;   /* true: suffix _go */
};

/* --- stage 1 ---------------------------------------------------------------------------- */

/* True if every launch slice and every wave gets whole tiles of K. */
static bool divides(const struct mf_shape *s, int tile_k, int k_batch, int k_wave)
{
    int depth = k_batch * k_wave * tile_k;
    return s->model_dim % depth == 0;
}

/* Rejects each split-K that does not divide model_dim into whole tiles. */
static int refuse_splits(const struct fly *f, int tile_k)
{
    const struct mf_shape *s = f->shape;
    char kernel[80];
    int r = 0;
    for (size_t i = 0; r >= 0 && f->fp4 && i < MF_ARRAY_LEN(k_batches); i++) {
        if (divides(s, tile_k, k_batches[i], 1))
            continue;
        mf_format(kernel, sizeof(kernel), "%s_t*x%d*_kb%d*", f->kernels, tile_k, k_batches[i]);
        r = f->sink->no(f->sink, "flydsl", kernel, "divisibility",
                        "model_dim %d is not a multiple of %d batches of tiles of %d", s->model_dim,
                        k_batches[i], tile_k);
    }
    for (size_t i = 1; r >= 0 && i < MF_ARRAY_LEN(k_waves); i++) {
        if (divides(s, tile_k, 1, k_waves[i]))
            continue;
        mf_format(kernel, sizeof(kernel), "%s_t*x%d*_kw%d*", f->kernels, tile_k, k_waves[i]);
        r = f->sink->no(f->sink, "flydsl", kernel, "divisibility",
                        "model_dim %d is not a multiple of %d waves with tiles of %d", s->model_dim,
                        k_waves[i], tile_k);
    }
    return r;
}

static bool has_k_wave(const struct fly *f, const struct one *c)
{
    int n_waves = c->n / 32 < 4 ? c->n / 32 : 4;
    if (c->k_wave > 1 && (c->m != 32 || c->k_batch > 1 || n_waves * c->k_wave > 8 || 4 * c->n > c->k))
        return false;
    if (c->k_wave > 1 && !f->fp4 && !f->bf16 && n_waves < 2)
        return false;
    /* With fewer than 16 columns per wave, a bf16 kernel writes nothing and therefore appears fast. */
    return !f->bf16 || c->n / (4 / c->k_wave) >= 16;
}

static const char *number(char buf[12], const char *tag, int value, int silent)
{
    buf[0] = '\0';
    if (value != silent)
        mf_format(buf, 12, "_%s%d", tag, value);
    return buf;
}

static int emit_one(const struct fly *f, const struct one *c)
{
    char base[MF_STEP_NAME_MAX], w[12], kb[12], xcd[12], kw[12];
    const char *quantised = f->bf16 ? "" : f->fp4 ? "_fp4" : "_fp8";
    struct mf_aiter_kernel k = {
        .family = "flydsl", .stage = MF_STAGE_STAGE1, .block_m = c->m, .flags = tried(c->m)};
    mf_format(base, sizeof(base), "%s_t%dx%dx%d%s%s%s%s%s%s%s", f->kernels, c->m, c->n, c->k,
              number(w, "w", c->waves, 1), number(kb, "kb", c->k_batch, 1), c->cached ? "_bnt0" : "",
              c->gate ? "_go" : "", f->fp4 || f->bf16 ? "" : "_gui", number(xcd, "xcd", c->xcd, 0),
              number(kw, "kw", c->k_wave, 1));
    int r = c->k_batch > 1 ? 0 : mf_aiter_emit(f->sink, k, "%s", base);
    if (r < 0 || f->bf16)
        return r;
    k.flags |= MF_AITER_FUSED;
    r = mf_aiter_emit(f->sink, k, "%s%s", base, quantised);
    if (r < 0 || c->k_batch > 1 || f->shape->doweight_stage1 || c->m == 16)
        return r;
    k.family = "flydslv2";
    k.flags |= MF_AITER_V2;
    return mf_aiter_emit(f->sink, k, "%s%s", base, quantised);
}

static int emit_switches(const struct fly *f, struct one c)
{
    static const int plain_xcds[] = {0, 4}, bf16_xcds[] = {0, 1, 4};
    const int *xcds = f->bf16 ? bf16_xcds : plain_xcds;
    size_t n_xcds = f->bf16 ? MF_ARRAY_LEN(bf16_xcds) : MF_ARRAY_LEN(plain_xcds);
    int r = 0;
    for (int switches = 0; r >= 0 && switches < 4; switches++) {
        c.cached = switches & 1;
        c.gate = switches & 2;
        if (c.gate && c.k_batch == 1)
            continue;
        for (size_t x = 0; r >= 0 && x < n_xcds; x++) {
            c.xcd = xcds[x];
            for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(k_waves); i++) {
                c.k_wave = k_waves[i];
                if (has_k_wave(f, &c) && divides(f->shape, c.k, c.k_batch, c.k_wave))
                    r = emit_one(f, &c);
            }
        }
    }
    return r;
}

static int emit_tile(const struct fly *f, struct one c)
{
    int r = 0;
    for (c.waves = 1; r >= 0 && c.waves <= 4; c.waves++) {
        bool batches = f->fp4 && c.m == 32 && c.waves == 3;
        for (size_t i = 0; r >= 0 && i < (batches ? MF_ARRAY_LEN(k_batches) : 1); i++) {
            c.k_batch = k_batches[i];
            r = emit_switches(f, c);
        }
    }
    return r;
}

static int emit_stage1(struct fly *f)
{
    static const int small[] = {32, 64, 128}, fp4_wide[] = {64, 128}, wide[] = {128, 256};
    int r = 0;
    for (int tile_k = f->bf16 ? 128 : 256; r >= 0 && tile_k <= 256; tile_k *= 2) {
        r = refuse_splits(f, tile_k);
        for (size_t i = f->first; r >= 0 && i < MF_ARRAY_LEN(block_ms); i++) {
            const int *ns = block_ms[i] == 32 ? small : f->fp4 ? fp4_wide : wide;
            size_t n_ns = block_ms[i] == 32 ? 3 : 2;
            for (size_t j = 0; r >= 0 && j < n_ns; j++)
                r = emit_tile(f, (struct one){.m = block_ms[i], .n = ns[j], .k = tile_k});
        }
    }
    return r;
}

/* --- stage 2 ---------------------------------------------------------------------------- */

struct two {
    int m, n, k, block_m;
    bool atomic;
};

static int emit_two(const struct fly *f, const struct two *c, const char *tail)
{
    struct mf_aiter_kernel k = {.family = "flydsl",
                                .stage = MF_STAGE_STAGE2,
                                .block_m = c->block_m,
                                .flags = tried(c->block_m) | (c->atomic ? MF_AITER_ATOMIC : 0)};
    char sbm[12];
    return mf_aiter_emit(f->sink, k, "flydsl_moe2_a%s_w%s_bf16_t%dx%dx%d_%s%s%s", f->a, f->w, c->m, c->n,
                         c->k, c->atomic ? "atomic" : "reduce", tail, number(sbm, "sbm", c->block_m, c->m));
}

static int emit_tails(const struct fly *f, const struct two *c)
{
    static const char *const tails[] = {"",      "_persist",      "_xcd4",      "_xcd4_persist",
                                        "_bnt2", "_bnt2_persist", "_bnt2_xcd4", "_bnt2_xcd4_persist"};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(tails); i++)
        r = emit_two(f, c, tails[i]);
    /* AITER's registry lists this variant separately from its combinations. */
    if (r >= 0 && f->fp4 && c->atomic && c->m == 64 && c->n == 128 && c->k == 256)
        r = emit_two(f, c, "_persist_async_w4_cumul3");
    return r;
}

/* Emits tiles with as many rows as the block or half as many, but at least 16 rows for fp4 weights and 32
 * rows for fp8 weights. Some tiles are excluded with bf16 activations: half tiles fault, tiles with 256
 * columns exceed the LDS, and a tile of K that extends beyond inter_dim is read out of bounds. */
static int emit_stage2(struct fly *f)
{
    const struct mf_shape *s = f->shape;
    bool fp8_weight = strcmp(f->w, "fp8") == 0;
    int r = f->sink->no(
        f->sink, "flydsl", "flydsl_moe2_*_sbm*", "duplicate",
        "a tile with as many rows as the block has no suffix _sbm: the name with it is the same kernel");
    if (r >= 0 && f->bf16 && s->inter_dim % 256 != 0)
        r = f->sink->no(f->sink, "flydsl", "flydsl_moe2_abf16_*x256_*", "divisibility",
                        "inter_dim %d is not a multiple of the tile depth %d", s->inter_dim, 256);
    for (size_t i = f->first; r >= 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        for (int half = 0; r >= 0 && half <= (f->bf16 ? 0 : 1); half++) {
            struct two c = {.block_m = block_ms[i], .m = block_ms[i] >> half};
            if (c.m < (fp8_weight ? 32 : 16))
                continue;
            for (c.n = 128; r >= 0 && c.n <= (fp8_weight || f->bf16 ? 128 : 256); c.n *= 2) {
                for (c.k = 128; r >= 0 && c.k <= 256; c.k *= 2) {
                    if (f->bf16 && s->inter_dim % c.k != 0)
                        continue;
                    c.atomic = true;
                    r = emit_tails(f, &c);
                    c.atomic = false;
                    if (r >= 0)
                        r = emit_tails(f, &c);
                }
            }
        }
    }
    return r;
}

/* --- v2, stage 2 ------------------------------------------------------------------------ */

static int emit_layout(const struct mf_shape *s, struct mf_aiter_sink *sink, struct mf_aiter_kernel k,
                       const char *tile)
{
    bool fp4 = s->q_dtype_a == MF_DTYPE_FP4X2;
    unsigned flags = k.flags;
    int r = 0;
    for (int i = 0; r >= 0 && i < 8; i++) {
        bool reduce = i & 4, persist = i & 2, streamed = i & 1;
        if (persist && !fp4)
            continue;
        k.flags = flags | (reduce ? 0 : MF_AITER_ATOMIC);
        r = mf_aiter_emit(sink, k, "flydsl_moe2_layout_a%s_w%s_bf16_t%s_%s%s%s_sbm%d", fp4 ? "fp4" : "fp8",
                          mf_aiter_is_fp8(s->q_dtype_w) ? "fp8" : "fp4", tile, reduce ? "reduce" : "atomic",
                          persist ? "_persist" : "", streamed ? "_nt" : "", k.block_m);
    }
    return r;
}

int mf_aiter_emit_layouts(const struct mf_shape *s, struct mf_aiter_sink *sink,
                          const struct mf_aiter_kernel *k, int tile_m)
{
    int r = 0;
    for (int n = 128; r >= 0 && n <= 256; n *= 2) {
        for (int depth = 128; r >= 0 && depth <= 256; depth *= 2) {
            char tile[32];
            mf_format(tile, sizeof(tile), "%dx%dx%d", tile_m, n, depth);
            if (s->model_dim % n == 0 && s->inter_dim % depth == 0)
                r = emit_layout(s, sink, *k, tile);
        }
    }
    return r;
}

/* The dispatcher accepts a partition of the output tiles, GroupNum * 100 + M01 (mxfp4_kname.py). AITER's
 * shipped tables use these three; the tuner uses the default, 402, which has no suffix. */
static int emit_partitions(struct fly *f)
{
    static const int partitions[] = {801, 1601, 3201};
    struct mf_aiter_kernel k = {.family = "flydslv2",
                                .stage = MF_STAGE_STAGE2,
                                .block_m = 64,
                                .flags = MF_AITER_V2 | MF_AITER_UNTRIED};
    int r = 0;
    if (f->shape->model_dim % 256 != 0 || f->shape->inter_dim % 128 != 0)
        return 0;
    for (size_t i = 0; r >= 0 && i < MF_ARRAY_LEN(partitions); i++)
        r = mf_aiter_emit(f->sink, k, "flydsl_moe2_layout_a%s_w%s_bf16_t64x256x128_reduce_sbm64_sp%d", f->a,
                          f->w, partitions[i]);
    return r;
}

static int emit_v2_stage2(struct fly *f)
{
    const struct mf_shape *s = f->shape;
    static const char kernel[] = "flydsl_moe2_layout_*";
    int r = 0;
    if (s->doweight_stage1)
        return f->sink->no(f->sink, "flydslv2", kernel, "doweight",
                           "doweight_stage1 is 1; stage 2 of the v2 kernels applies the routing weight");
    if (s->inter_dim % 256 != 0)
        r = f->sink->no(f->sink, "flydslv2", "flydsl_moe2_layout_*x256_*", "divisibility",
                        "inter_dim %d is not a multiple of the tile depth 256", s->inter_dim);
    for (size_t i = 1; r >= 0 && i < MF_ARRAY_LEN(block_ms); i++) {
        struct mf_aiter_kernel k = {
            .family = "flydslv2", .stage = MF_STAGE_STAGE2, .block_m = block_ms[i], .flags = MF_AITER_V2};
        for (size_t j = 1; r >= 0 && j <= i; j++)
            r = mf_aiter_emit_layouts(s, f->sink, &k, block_ms[j]);
    }
    return r < 0 ? r : emit_partitions(f);
}

int mf_aiter_flydsl(const struct mf_aiter_layer *layer, struct mf_aiter_sink *sink)
{
    static const char kernel[] = "flydsl_moe?_*";
    const struct mf_shape *s = layer->shape;
    struct fly f = {.shape = s, .sink = sink};
    bool fp8 = mf_aiter_is_fp8(s->q_dtype_a);
    f.bf16 = s->q_dtype_a == MF_DTYPE_BF16;
    f.fp4 = s->q_dtype_a == MF_DTYPE_FP4X2;
    f.a = f.bf16 ? "bf16" : f.fp4 ? "fp4" : "fp8";
    f.w = mf_aiter_is_fp8(s->q_dtype_w) ? "fp8" : "fp4";
    f.first = fp8 && s->q_dtype_w == MF_DTYPE_FP4X2 ? 0 : 1;
    if (s->q_type != MF_QTYPE_PER_1X32)
        return sink->no(sink, "flydsl", kernel, "q_type", "FlyDSL kernels support per_1x32, not %s",
                        mf_qtype_name(s->q_type));
    if (!(s->q_dtype_w == MF_DTYPE_FP4X2 && (fp8 || f.fp4 || f.bf16)) &&
        !(fp8 && s->q_dtype_w == s->q_dtype_a))
        return sink->no(sink, "flydsl", kernel, "dtype",
                        "the FlyDSL registry has no kernel for %s activations and %s weights",
                        mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w));
    if (s->dtype != MF_DTYPE_BF16)
        return sink->no(sink, "flydsl", kernel, "dtype", "FlyDSL kernels write torch.bfloat16, not %s",
                        mf_dtype_name(s->dtype));
    mf_format(f.kernels, sizeof(f.kernels), "flydsl_moe1_a%s_w%s_bf16", f.a, f.w);
    int r = emit_stage1(&f);
    if (r >= 0)
        r = emit_stage2(&f);
    return r < 0 || f.bf16 ? r : emit_v2_stage2(&f);
}
