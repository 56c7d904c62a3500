#include "kernels/cpu/stage.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/quant.h"

/* elements of padding per row, so that rows of A do not map to the same set of the L1 cache */
#define ROW_PAD 32
/* K elements decoded at a time: a multiple of every scale group, and few enough that 32 decoded rows take
 * half the L1 cache. */
#define PIECE_K      512
#define Y_SUMS_BYTES (256u << 10)
/* cost of reading a tile's weights, as the number of rows whose arithmetic costs the same */
#define TILE_COST_ROWS 12

static size_t align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static bool per_block(const struct mf_codec *c)
{
    return c->scale == MF_SCALE_PER_1X128 || c->scale == MF_SCALE_PER_128X128;
}

static bool is_fp8(const struct mf_codec *c)
{
    return c->format == MF_FORMAT_FP8FN || c->format == MF_FORMAT_FP8FNUZ;
}

int mf_stage_plan_shape(struct mf_stage_plan *p, const struct mf_shape *shape)
{
    const char *why;

    p->shape = *shape;
    if (mf_codecs_of_shape(shape, &p->codecs, &why) < 0)
        return -ENOTSUP;
    const struct mf_codec *w = p->codecs.w;
    bool codes = is_fp8(w) || (w->format == MF_FORMAT_INT8 && p->ops->int8);
    p->native =
        w->format == MF_FORMAT_BF16 || (codes && p->codecs.a->format == w->format && !mf_codec_folds(w));
    return 0;
}

int mf_block_rows(const int32_t *ids, int64_t row0, int block_m, int topk)
{
    int low = 0, high = block_m;

    while (low < high) {
        int middle = (low + high) / 2;
        if (mf_id_slot(ids[row0 + middle]) < topk)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- division of work among threads ---- */

/* One thread's share of the tiles of all blocks. Tiles are in order and have known costs. The thread owns the
 * tiles that begin at a cumulative cost in [from, to). */
struct share {
    const struct mf_stage_plan *p;
    struct mf_sorted_view sorted;
    int64_t n_blocks, n_tiles;
    int64_t from, to;  /* cumulative cost */
    int64_t block, at; /* the next block and the cumulative cost before it */
};

static int64_t tile_cost(const struct share *s, int64_t block)
{
    return TILE_COST_ROWS +
           mf_block_rows(s->sorted.ids, block * s->p->block_m, s->p->block_m, s->p->shape.topk);
}

static struct share thread_share(const struct mf_stage_plan *p, struct mf_sorted_view sorted, int64_t n_tiles,
                                 int thread, int n_threads)
{
    struct share s = {.p = p, .sorted = sorted, .n_tiles = n_tiles};
    int64_t total = 0;

    s.n_blocks = sorted.num_valid[0] / p->block_m;
    if (n_threads == 1) {
        s.to = INT64_MAX;
        return s;
    }
    for (int64_t b = 0; b < s.n_blocks; b++)
        total += tile_cost(&s, b) * n_tiles;
    s.from = total * thread / n_threads;
    s.to = thread + 1 == n_threads ? INT64_MAX : total * (thread + 1) / n_threads;
    return s;
}

struct part {
    int64_t block, row0;
    int rows;
    int64_t tile, tile_end; /* tiles of this thread in this block */
};

/* Finds the next block in which this thread owns tiles. */
static bool share_next(struct share *s, struct part *ret)
{
    while (s->block < s->n_blocks && s->at < s->to) {
        int64_t b = s->block++, row0 = b * s->p->block_m;
        int rows = mf_block_rows(s->sorted.ids, row0, s->p->block_m, s->p->shape.topk);
        int64_t cost = TILE_COST_ROWS + rows, at = s->at;
        s->at += cost * s->n_tiles;
        int64_t first = s->from <= at ? 0 : (s->from - at + cost - 1) / cost;
        int64_t end = s->to == INT64_MAX ? s->n_tiles : (s->to - at + cost - 1) / cost;
        end = end > s->n_tiles ? s->n_tiles : end;
        if (first >= end || rows == 0)
            continue;
        *ret = (struct part){b, row0, rows, first, end};
        return true;
    }
    return false;
}

/* ---- stage 1 ---- */

struct scratch {
    uint16_t *a;
    /* scales of A: [rows, groups] if there is one scale per 128 K elements; otherwise [rows], including the
     * inverse of the global factor */
    float *a_scale;
    float *c, *c2;
    float *sum;             /* for stage 2 with add: [T, block_n · tiles_per_pass] */
    float *part;            /* sums of one piece of K: [rows, ldc] */
    uint16_t *w;            /* the weights of that piece of K, decoded */
    struct mf_tensor_ref x; /* with quantise_x: quantised rows of x by token, filled on first use */
    uint8_t *x_quantised;   /* [tokens]: 1 if the row of x is filled */
    float *x_floats;
    size_t lda, ldc;
};

static size_t carve(const struct mf_stage_plan *p, size_t k, size_t sum_floats, bool two, char *base,
                    struct scratch *ret)
{
    size_t bm = (size_t)p->block_m, columns = (size_t)p->block_n * (p->gate_rows > 0 ? 2 : 1), at = 0;
    struct scratch r = {.lda = (k + 31) / 32 * 32 + ROW_PAD, .ldc = (columns + 15) / 16 * 16};

#define CARVE(field, bytes)            \
    do {                               \
        r.field = (void *)(base + at); \
        at += align64(bytes);          \
    } while (0)
    CARVE(a, bm * r.lda * 2);
    CARVE(a_scale, bm * MF_MAX(mf_codec_scale_cols(p->codecs.a, k), (size_t)1) * 4);
    CARVE(c, bm * r.ldc * 4);
    CARVE(c2, two ? bm * r.ldc * 4 : 0);
    CARVE(sum, sum_floats * 4);
    CARVE(part, p->native ? 0 : bm * r.ldc * 4);
    CARVE(w, p->native ? 0 : r.ldc * PIECE_K * 2);
    size_t tokens = p->quantise_x ? (size_t)p->shape.token : 0;
    CARVE(x.part[0], tokens * mf_codec_row_bytes(p->codecs.a, k));
    CARVE(x.part[1], tokens * mf_codec_scale_cols(p->codecs.a, k) * (size_t)p->codecs.a->scale_bytes);
    CARVE(x_quantised, tokens);
    CARVE(x_floats, tokens ? k * 4 : 0);
#undef CARVE
    *ret = r;
    return at;
}

/* Quantising h needs one row of floats. That row reuses the workspace after all tiles are done. */
size_t mf_stage1_workspace(const struct mf_stage_plan *p)
{
    struct scratch r;
    size_t bytes = carve(p, (size_t)p->shape.model_dim, 0, true, NULL, &r);
    size_t row = align64((size_t)p->shape.inter_dim * 4);

    return bytes > row ? bytes : row;
}

/* Returns the number of tiles of y per pass whose sums a thread keeps. The number is as large as possible
 * while the sums of all tokens fit the L2 cache, so that the thread reads an expert's weights in one long
 * run. */
static size_t tiles_per_pass(const struct mf_stage_plan *p)
{
    size_t bn = (size_t)p->block_n, tiles = ((size_t)p->shape.model_dim + bn - 1) / bn;
    size_t fit = Y_SUMS_BYTES / ((size_t)p->shape.token * bn * 4);

    return MF_MAX(MF_MIN(tiles, fit), (size_t)1);
}

static size_t y_sum_floats(const struct mf_stage_plan *p)
{
    return (size_t)p->shape.token * (size_t)p->block_n * tiles_per_pass(p);
}

size_t mf_stage2_workspace(const struct mf_stage_plan *p)
{
    struct scratch r;

    return carve(p, (size_t)p->shape.inter_dim, p->out == MF_STAGE2_ADD ? y_sum_floats(p) : 0, false, NULL,
                 &r);
}

static size_t k_parts(const struct mf_stage_plan *p)
{
    return p->ksplit > 1 ? (size_t)p->ksplit : 1;
}

/* Returns the number of floats per sorted row: each part of K has its sums of gate, then its sums of up. */
static size_t partial_floats(const struct mf_stage_plan *p)
{
    return k_parts(p) * 2 * (size_t)p->shape.inter_dim;
}

size_t mf_stage1_partial(const struct mf_stage_plan *p)
{
    size_t rows = (size_t)mf_padded_rows(&p->shape, p->block_m);
    return k_parts(p) > 1 ? align64(rows * partial_floats(p) * 4) : 0;
}

struct weights {
    const struct mf_tensor_ref *ref;
    size_t N, K; /* size of one expert's weight */
};

/* The range of K elements to sum. */
struct span {
    size_t k0, k_end;
};

static const char *weight_row(const struct mf_stage_plan *p, const struct weights *w, int32_t expert,
                              size_t n)
{
    return (const char *)w->ref->part[0] +
           ((size_t)expert * w->N + n) * mf_codec_row_bytes(p->codecs.w, w->K);
}

/* Returns the scales of an expert's weight. If the codec has scales per row or per block of rows, the result
 * points to the scales of row n. */
static const char *weight_scale(const struct mf_stage_plan *p, const struct weights *w, int32_t expert,
                                size_t n)
{
    const struct mf_codec *c = p->codecs.w;
    size_t rows = mf_codec_scale_rows(c, w->N), row = c->group_rows == 0 ? 0 : n / (size_t)c->group_rows;
    return (const char *)w->ref->part[1] +
           ((size_t)expert * rows + row) * mf_codec_scale_cols(c, w->K) * (size_t)c->scale_bytes;
}

/* Runs a tile over a span of K. The loops derive the panel stride from K, so a span that is not all of K runs
 * panel by panel. */
static void run_span(const struct mf_stage_plan *p, const struct mf_tile *t, struct span s,
                     void (*gemm)(const struct mf_tile *t))
{
    const struct mf_codec *c = p->codecs.w;
    size_t panel = (size_t)p->panel, panel_bytes = panel * mf_codec_row_bytes(c, t->k);
    size_t a_bytes = p->native && c->format == MF_FORMAT_INT8 ? 1 : 2;
    const char *first = (const char *)t->w + s.k0 * (size_t)c->bits / 8 * panel;

    if (s.k0 == 0 && s.k_end == t->k) {
        gemm(t);
        return;
    }
    for (size_t n = 0; n < (size_t)t->n; n += panel) {
        struct mf_tile piece = *t;
        piece.a = (const void *)((const char *)t->a + s.k0 * a_bytes);
        piece.n = p->panel;
        piece.w = first + n / panel * panel_bytes;
        piece.next = n + panel < (size_t)t->n ? first + (n / panel + 1) * panel_bytes : t->next;
        piece.k = s.k_end - s.k0;
        piece.c = t->c + n;
        if (t->a_scale) {
            piece.a_scale = t->a_scale + s.k0 / 128;
            piece.w_scale = t->w_scale + ((size_t)t->n_offset + n) / 128 * t->ldw_scale + s.k0 / 128;
            piece.n_offset = (int)(((size_t)t->n_offset + n) % 128);
        }
        if (t->group_scale)
            piece.group_scale = (const char *)t->group_scale + n * t->ld_group_scale +
                                s.k0 / (size_t)c->group_cols * (size_t)c->scale_bytes;
        gemm(&piece);
    }
}

/* Computes n columns, from row n0 of an expert's weight, with a GEMM that reads the weights as stored. */
static void run_native(const struct mf_stage_plan *p, const struct scratch *scratch, const struct weights *w,
                       int32_t expert, size_t n0, int n, struct span s, int rows, float *c, const void *next)
{
    struct mf_tile t = {
        .a = scratch->a,
        .lda = scratch->lda,
        .rows = rows,
        .n = n,
        .format = p->codecs.w->format,
        .panel = p->panel,
        .w = weight_row(p, w, expert, n0),
        .next = next,
        .fetch = p->fetch,
        .k = w->K,
        .block_k = (size_t)p->block_k,
        .c = c,
        .ldc = scratch->ldc,
    };

    if (per_block(p->codecs.w)) {
        t.a_scale = scratch->a_scale;
        t.lda_scale = t.ldw_scale = mf_codec_scale_cols(p->codecs.w, w->K);
        t.w_scale = (const float *)(const void *)weight_scale(p, w, expert, n0);
        t.n_offset = (int)(n0 % 128);
    }
    run_span(p, &t, s, p->ops->gemm);
}

/* Adds the sums of the piece that begins at K element k0 to C. Applies block scales here, because the block
 * of weight rows may change within the tile. */
static void add_piece(const struct mf_stage_plan *p, const struct scratch *scratch, const struct weights *w,
                      int32_t expert, size_t n0, int n, size_t k0, int rows, float *c)
{
    size_t groups = mf_codec_scale_cols(p->codecs.w, w->K);

    for (int i = 0; i < rows; i++) {
        float *to = c + (size_t)i * scratch->ldc, *from = scratch->part + (size_t)i * scratch->ldc;
        if (!per_block(p->codecs.w)) {
            p->ops->add(to, from, (size_t)n, 1.0f);
            continue;
        }
        for (size_t j = 0; j < (size_t)n;) {
            size_t m = MF_MIN((size_t)n - j, 128 - (n0 + j) % 128);
            const float *scale = (const float *)(const void *)weight_scale(p, w, expert, n0 + j);
            p->ops->add(to + j, from + j, m,
                        scratch->a_scale[(size_t)i * groups + k0 / 128] * scale[k0 / 128]);
            j += m;
        }
    }
}

/* True if a tile with this number of rows is multiplied by stream(). */
static bool streams(const struct mf_stage_plan *p, int rows)
{
    return !p->native && p->ops->stream && rows <= p->ops->stream_rows && p->panel > 1 &&
           !per_block(p->codecs.w) && p->codecs.w->format != MF_FORMAT_INT8;
}

bool mf_stage_prefetches(const struct mf_stage_plan *p)
{
    return p->ops->fetches && p->panel > 1 && (p->native || streams(p, p->block_m));
}

/* Packs one row of A as row i of a block with `rows` rows, and stores its scale in a_scale. */
static void pack_row(const struct mf_stage_plan *p, const struct scratch *scratch,
                     const struct mf_tensor_ref *from, size_t source, size_t k, int i, int rows)
{
    const struct mf_codec *c = p->codecs.a;
    const uint8_t *row = (const uint8_t *)from->part[0] + source * mf_codec_row_bytes(c, k);
    size_t scales = mf_codec_scale_cols(c, k);
    const uint8_t *scale =
        (const uint8_t *)from->part[1] + (c->group_rows == 0 ? 0 : source) * scales * (size_t)c->scale_bytes;
    uint16_t *to = scratch->a + (size_t)i * scratch->lda;

    if (p->native)
        p->ops->pack(c->format, row, k, to);
    else
        p->ops->unpack(c, row, scale, k, to);
    if (streams(p, rows))
        p->ops->order(p->codecs.w, to, k);
    if (per_block(c))
        memcpy(scratch->a_scale + (size_t)i * scales, scale, scales * 4);
    else if (c->scale_bytes == 4)
        memcpy(&scratch->a_scale[i], scale, 4);
    else
        scratch->a_scale[i] = c->global ? 1.0f / *(const float *)from->part[2] : 1.0f;
}

static void run_stream(const struct mf_stage_plan *p, const struct scratch *scratch, const struct weights *w,
                       int32_t expert, size_t n0, int n, struct span s, int rows, float *c, const void *next)
{
    const struct mf_codec *codec = p->codecs.w;
    struct mf_tile t = {
        .a = scratch->a,
        .lda = scratch->lda,
        .rows = rows,
        .n = n,
        .panel = p->panel,
        .w = weight_row(p, w, expert, n0),
        .next = next,
        .fetch = p->fetch,
        .k = w->K,
        .c = c,
        .ldc = scratch->ldc,
        .codec = codec,
        .group_scale = mf_codec_folds(codec) ? weight_scale(p, w, expert, n0) : NULL,
        .ld_group_scale = mf_codec_scale_cols(codec, w->K) * (size_t)codec->scale_bytes,
    };

    run_span(p, &t, s, p->ops->stream);
}

static void run_decoded(const struct mf_stage_plan *p, const struct scratch *scratch, const struct weights *w,
                        int32_t expert, size_t n0, int n, struct span s, int rows, float *c)
{
    const struct mf_codec *codec = p->codecs.w;
    size_t piece = per_block(codec) ? 128 : PIECE_K;
    bool whole = s.k_end - s.k0 <= piece && !per_block(codec);
    struct mf_decode d = {
        .codec = codec,
        .panel = p->panel,
        .w = weight_row(p, w, expert, n0),
        .scale = mf_codec_folds(codec) ? weight_scale(p, w, expert, n0) : NULL,
        .ld_scale = mf_codec_scale_cols(codec, w->K) * (size_t)codec->scale_bytes,
        .n = n,
        .K = w->K,
        .to = scratch->w,
    };
    struct mf_tile t = {
        .lda = scratch->lda,
        .rows = rows,
        .n = (n + 15) / 16 * 16,
        .format = MF_FORMAT_BF16,
        .panel = 16,
        .w = scratch->w,
        .c = whole ? c : scratch->part,
        .ldc = scratch->ldc,
    };

    for (int i = 0; i < rows && !whole; i++)
        memset(c + (size_t)i * scratch->ldc, 0, scratch->ldc * 4);
    for (size_t k0 = s.k0; k0 < s.k_end; k0 += piece) {
        d.k0 = k0;
        d.k_end = MF_MIN(s.k_end, k0 + piece);
        p->ops->decode(&d);
        t.a = scratch->a + k0;
        t.k = (d.k_end - k0 + 1) / 2 * 2;
        p->ops->gemm(&t);
        if (!whole)
            add_piece(p, scratch, w, expert, n0, n, k0, rows, c);
    }
}

/* Applies the scales that are constant along K: the scales per row of A, the scales per row or per tensor of
 * the weight, and the global factors. */
static void scale_tile(const struct mf_stage_plan *p, const struct scratch *scratch, const struct weights *w,
                       int32_t expert, size_t n0, int n, int rows, float *c)
{
    const struct mf_codec *a = p->codecs.a, *b = p->codecs.w;
    bool by_column = b->scale == MF_SCALE_PER_TOKEN, whole = b->scale == MF_SCALE_PER_TENSOR;
    const float *scale =
        b->scale_bytes == 4 ? (const float *)(const void *)weight_scale(p, w, expert, n0) : NULL;
    float common = whole ? scale[0] : b->global ? 1.0f / ((const float *)w->ref->part[2])[expert] : 1.0f;

    if (per_block(b) || (a->scale == MF_SCALE_NONE && b->scale == MF_SCALE_NONE))
        return;
    for (int i = 0; i < rows; i++)
        p->ops->scale(c + (size_t)i * scratch->ldc, (size_t)n, scratch->a_scale[i] * common,
                      by_column ? scale : NULL);
}

static void run_tile_span(const struct mf_stage_plan *p, const struct scratch *scratch,
                          const struct weights *w, int32_t expert, size_t n0, int n, struct span s, int rows,
                          float *c, const void *next)
{
    if (p->native)
        run_native(p, scratch, w, expert, n0, n, s, rows, c, next);
    else if (streams(p, rows))
        run_stream(p, scratch, w, expert, n0, n, s, rows, c, next);
    else
        run_decoded(p, scratch, w, expert, n0, n, s, rows, c);
    scale_tile(p, scratch, w, expert, n0, n, rows, c);
}

static void run_tile(const struct mf_stage_plan *p, const struct scratch *scratch, const struct weights *w,
                     int32_t expert, size_t n0, int n, int rows, float *c, const void *next)
{
    run_tile_span(p, scratch, w, expert, n0, n, (struct span){0, w->K}, rows, c, next);
}

void mf_stage_activate(const struct mf_cpu_ops *ops, const struct mf_shape *shape, float *const gate_up[2],
                       const float *const bias[2], float weight, size_t n, uint16_t *h)
{
    for (int i = 0; bias && i < 2; i++) {
        ops->scale(gate_up[i], n, weight, NULL);
        ops->add(gate_up[i], bias[i], n, 1.0f);
    }
    ops->activate(shape, gate_up[0], gate_up[1], bias ? 1.0f : weight, n, h);
}

void mf_stage_quantise_row(const struct mf_codec *c, const uint16_t *from, size_t n, size_t row, float global,
                           float *floats, const struct mf_tensor_ref *to)
{
    mf_bf16_to_floats(from, n, floats);
    mf_codec_encode(c, floats, 1, n, global, (uint8_t *)to->part[0] + row * mf_codec_row_bytes(c, n),
                    (uint8_t *)to->part[1] + row * mf_codec_scale_cols(c, n) * (size_t)c->scale_bytes);
}

/* Returns the columns of a tile. The last tile of a row may be narrower than block_n. */
static int tile_columns(const struct mf_stage_plan *p, size_t n_all, size_t n0)
{
    return n_all - n0 < (size_t)p->block_n ? (int)(n_all - n0) : p->block_n;
}

/* Splits 2n sums into n gate sums and n up sums. In `sums`, gate and up alternate every `unit` sums. */
static void deinterleave_gate_up(const float *sums, size_t unit, size_t n, float *const gate_up[2])
{
    for (size_t i = 0; i < n; i += unit) {
        for (size_t j = 0; j < unit; j++) {
            gate_up[0][i + j] = sums[2 * i + j];
            gate_up[1][i + j] = sums[2 * i + unit + j];
        }
    }
}

/* Returns pointers to the n gate sums and n up sums of row i of a block. */
static void sums_of_row(const struct mf_stage_plan *p, const struct scratch *scratch, int i, size_t n,
                        float *gate_up[2])
{
    float *c = scratch->c + (size_t)i * scratch->ldc, *c2 = scratch->c2 + (size_t)i * scratch->ldc;
    bool alternates = p->gate_rows > 0;

    gate_up[0] = alternates ? c2 : c;
    gate_up[1] = alternates ? c2 + n : c2;
    if (alternates)
        deinterleave_gate_up(c, (size_t)p->gate_rows, n, gate_up);
}

/* Computes n columns of a row of h, from column n0, from the sums of these columns. Modifies the sums. */
static void activate_row(const struct mf_stage_plan *p, const struct mf_stage1_args *a, size_t row, size_t n0,
                         size_t n, float *const gate_up[2])
{
    size_t I = (size_t)p->shape.inter_dim, expert = (size_t)a->sorted.experts[row / (size_t)p->block_m];
    const float *b1 = p->shape.has_b1 ? a->bias + expert * 2 * I + n0 : NULL;
    const float *const bias[2] = {b1, b1 ? b1 + I : NULL};

    mf_stage_activate(p->ops, &p->shape, gate_up, b1 ? bias : NULL,
                      p->weighted ? a->sorted.weights[row] : 1.0f, n, a->h + row * I + n0);
}

/* Computes one unit: one part of K of a tile. The parts of a tile are consecutive units. */
static void stage1_unit(const struct mf_stage_plan *p, const struct mf_stage1_args *a,
                        const struct scratch *scratch, const struct part *part, const struct weights *w,
                        int64_t unit, const void *next)
{
    size_t I = (size_t)p->shape.inter_dim, parts = k_parts(p), at = (size_t)unit % parts;
    size_t n0 = (size_t)unit / parts * (size_t)p->block_n;
    struct span s = {w->K / parts * at, w->K / parts * (at + 1)};
    int32_t expert = a->sorted.experts[part->block];
    int n = tile_columns(p, I, n0);

    if (p->gate_rows > 0) {
        run_tile_span(p, scratch, w, expert, 2 * n0, 2 * n, s, part->rows, scratch->c, next);
    } else {
        run_tile_span(p, scratch, w, expert, n0, n, s, part->rows, scratch->c,
                      weight_row(p, w, expert, I + n0));
        run_tile_span(p, scratch, w, expert, I + n0, n, s, part->rows, scratch->c2, next);
    }
    for (int i = 0; i < part->rows; i++) {
        size_t row = (size_t)(part->row0 + i);
        float *gate_up[2];
        sums_of_row(p, scratch, i, (size_t)n, gate_up);
        if (parts == 1) {
            activate_row(p, a, row, n0, (size_t)n, gate_up);
            continue;
        }
        float *to = a->partial + row * partial_floats(p) + at * 2 * I + n0;
        memcpy(to, gate_up[0], (size_t)n * 4);
        memcpy(to + I, gate_up[1], (size_t)n * 4);
    }
}

/* Adds the partial sums of all parts of K for a row of h, then applies the activation to the whole row. */
static void reduce_k_parts(const struct mf_stage_plan *p, const struct mf_stage1_args *a, size_t row)
{
    size_t I = (size_t)p->shape.inter_dim;
    float *sum = a->partial + row * partial_floats(p);

    for (size_t at = 1; at < k_parts(p); at++)
        p->ops->add(sum, sum + at * 2 * I, 2 * I, 1.0f);
    activate_row(p, a, row, 0, I, (float *[2]){sum, sum + I});
}

/* Does this thread's share of the work on whole rows. Runs after the barrier. */
static void finish_rows(const struct mf_stage_plan *p, const struct mf_stage1_args *a, int thread,
                        int n_threads)
{
    size_t I = (size_t)p->shape.inter_dim, seen = 0;
    int64_t n_blocks = a->sorted.num_valid[0] / p->block_m;
    float global = p->quantise && p->codecs.a->global ? a->calib[1] : 1.0f;

    if (p->quantise && p->codecs.a->global && thread == 0)
        *(float *)a->h_q.part[2] = global;
    for (int64_t b = 0; b < n_blocks; b++) {
        int rows = mf_block_rows(a->sorted.ids, b * p->block_m, p->block_m, p->shape.topk);
        for (int i = 0; i < rows; i++, seen++) {
            size_t row = (size_t)(b * p->block_m + i);
            if (seen % (size_t)n_threads != (size_t)thread)
                continue;
            if (k_parts(p) > 1)
                reduce_k_parts(p, a, row);
            if (p->quantise)
                mf_stage_quantise_row(p->codecs.a, a->h + row * I, I, row, global, a->workspace, &a->h_q);
        }
    }
}

/* Loads sorted row `row` of x as row i of A. With quantise_x, quantises a token when this thread uses it for
 * the first time. */
static void load_x_row(const struct mf_stage_plan *p, const struct mf_stage1_args *a,
                       const struct scratch *scratch, size_t row, int i, int rows)
{
    size_t H = (size_t)p->shape.model_dim, source = p->gather ? (size_t)mf_id_token(a->sorted.ids[row]) : row;

    if (p->quantise_x && !scratch->x_quantised[source]) {
        mf_stage_quantise_row(p->codecs.a, (const uint16_t *)a->x.part[0] + source * H, H, source,
                              p->codecs.a->global ? a->calib[0] : 1.0f, scratch->x_floats, &scratch->x);
        scratch->x_quantised[source] = 1;
    }
    pack_row(p, scratch, p->quantise_x ? &scratch->x : &a->x, source, H, i, rows);
}

void mf_stage1_run(const struct mf_stage_plan *p, const struct mf_stage1_args *a, int thread, int n_threads)
{
    size_t H = (size_t)p->shape.model_dim, I = (size_t)p->shape.inter_dim, bn = (size_t)p->block_n;
    struct weights w = {&a->w, 2 * I, H};
    int64_t parts = (int64_t)k_parts(p);
    struct share share = thread_share(p, a->sorted, (int64_t)((I + bn - 1) / bn) * parts, thread, n_threads);
    struct scratch scratch;
    struct part part;

    (void)carve(p, H, 0, true, a->workspace, &scratch);
    if (p->quantise_x) {
        memset(scratch.x_quantised, 0, (size_t)p->shape.token);
        scratch.x.part[2] = (void *)a->calib;
    }
    while (share_next(&share, &part)) {
        int32_t expert = a->sorted.experts[part.block];
        int64_t next_block = part.block + 1 < share.n_blocks ? part.block + 1 : part.block;
        for (int i = 0; i < part.rows; i++)
            load_x_row(p, a, &scratch, (size_t)(part.row0 + i), i, part.rows);
        for (int64_t unit = part.tile; unit < part.tile_end; unit++) {
            bool last = unit + 1 == part.tile_end;
            const void *next =
                weight_row(p, &w, last ? a->sorted.experts[next_block] : expert,
                           last ? 0 : (size_t)((unit + 1) / parts) * bn * (p->gate_rows > 0 ? 2 : 1));
            stage1_unit(p, a, &scratch, &part, &w, unit, next);
        }
    }
    if (p->quantise || parts > 1) {
        mf_pool_barrier();
        finish_rows(p, a, thread, n_threads);
    }
}

/* ---- stage 2 ---- */

/* Returns b2 of an expert from column n0, or NULL if the shape has no b2. */
static const float *bias_of(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int32_t expert,
                            size_t n0)
{
    return p->shape.has_b2 ? a->bias + (size_t)expert * (size_t)p->shape.model_dim + n0 : NULL;
}

static void store_tile(const struct mf_stage_plan *p, const struct mf_stage2_args *a,
                       const struct scratch *scratch, const struct part *part, size_t n0, int n)
{
    const float *bias = bias_of(p, a, a->sorted.experts[part->block], n0);
    size_t H = (size_t)p->shape.model_dim;

    for (int i = 0; i < part->rows; i++) {
        size_t row = (size_t)(part->row0 + i);
        int32_t id = a->sorted.ids[row];
        size_t slot = (size_t)mf_id_token(id) * (size_t)p->shape.topk + (size_t)mf_id_slot(id);
        float *c = scratch->c + (size_t)i * scratch->ldc;
        if (bias)
            p->ops->add(c, bias, (size_t)n, 1.0f);
        if (p->weighted)
            p->ops->scale(c, (size_t)n, a->sorted.weights[row], NULL);
        p->ops->to_bf16(c, (size_t)n, a->out + slot * H + n0);
    }
}

static void stage2_store(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int thread,
                         int n_threads)
{
    size_t H = (size_t)p->shape.model_dim, I = (size_t)p->shape.inter_dim, bn = (size_t)p->block_n;
    struct weights w = {&a->w, H, I};
    struct share share = thread_share(p, a->sorted, (int64_t)((H + bn - 1) / bn), thread, n_threads);
    struct scratch scratch;
    struct part part;

    (void)carve(p, I, 0, false, a->workspace, &scratch);
    while (share_next(&share, &part)) {
        int32_t expert = a->sorted.experts[part.block];
        int64_t next_block = part.block + 1 < share.n_blocks ? part.block + 1 : part.block;
        for (int i = 0; i < part.rows; i++)
            pack_row(p, &scratch, &a->h, (size_t)(part.row0 + i), I, i, part.rows);
        for (int64_t tile = part.tile; tile < part.tile_end; tile++) {
            bool last = tile + 1 == part.tile_end;
            size_t n0 = (size_t)tile * bn;
            const void *next =
                weight_row(p, &w, last ? a->sorted.experts[next_block] : expert, last ? 0 : n0 + bn);
            int n = tile_columns(p, H, n0);
            run_tile(p, &scratch, &w, expert, n0, n, part.rows, scratch.c, next);
            store_tile(p, a, &scratch, &part, n0, n);
        }
    }
}

/* Adds a block's output of n columns to the sums of its tokens. The columns begin at column n0 of y. */
static void add_tile(const struct mf_stage_plan *p, const struct mf_stage2_args *a,
                     const struct scratch *scratch, const struct part *part, size_t n0, int n, float *sum,
                     size_t ld)
{
    const float *bias = bias_of(p, a, a->sorted.experts[part->block], n0);

    for (int i = 0; i < part->rows; i++) {
        size_t row = (size_t)(part->row0 + i);
        float weight = p->weighted ? a->sorted.weights[row] : 1.0f,
              *to = sum + (size_t)mf_id_token(a->sorted.ids[row]) * ld;
        p->ops->add(to, scratch->c + (size_t)i * scratch->ldc, (size_t)n, weight);
        if (bias)
            p->ops->add(to, bias, (size_t)n, weight);
    }
}

/* Computes the columns of the tiles [tile0, tile_end) of y, block after block. */
static void add_columns(const struct mf_stage_plan *p, const struct mf_stage2_args *a,
                        const struct scratch *scratch, int64_t tile0, int64_t tile_end)
{
    size_t I = (size_t)p->shape.inter_dim, H = (size_t)p->shape.model_dim, bn = (size_t)p->block_n;
    size_t n0 = (size_t)tile0 * bn, n_end = MF_MIN(H, (size_t)tile_end * bn), ld = bn * tiles_per_pass(p);
    struct weights w = {&a->w, H, I};
    int64_t n_blocks = a->sorted.num_valid[0] / p->block_m;

    memset(scratch->sum, 0, (size_t)p->shape.token * ld * 4);
    for (int64_t b = 0; b < n_blocks; b++) {
        struct part part = {.block = b, .row0 = b * p->block_m};
        int32_t expert = a->sorted.experts[b];
        bool last = b + 1 == n_blocks;
        const void *next_block = weight_row(p, &w, a->sorted.experts[last ? 0 : b + 1],
                                            last && n_end < H ? n_end
                                            : last            ? 0
                                                              : n0);
        part.rows = mf_block_rows(a->sorted.ids, part.row0, p->block_m, p->shape.topk);
        for (int i = 0; i < part.rows; i++)
            pack_row(p, scratch, &a->h, (size_t)(part.row0 + i), I, i, part.rows);
        for (size_t n = n0; n < n_end && part.rows > 0; n += bn) {
            int columns = tile_columns(p, H, n);
            run_tile(p, scratch, &w, expert, n, columns, part.rows, scratch->c,
                     n + bn < n_end ? weight_row(p, &w, expert, n + bn) : next_block);
            add_tile(p, a, scratch, &part, n, columns, scratch->sum + (n - n0), ld);
        }
    }
    for (int64_t t = 0; t < p->shape.token; t++)
        p->ops->to_bf16(scratch->sum + (size_t)t * ld, n_end - n0, a->out + (size_t)t * H + n0);
}

static void stage2_add(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int thread,
                       int n_threads)
{
    int64_t H = p->shape.model_dim, tiles = (H + p->block_n - 1) / p->block_n;
    int64_t to = tiles * (thread + 1) / n_threads, step = (int64_t)tiles_per_pass(p);
    struct scratch scratch;

    (void)carve(p, (size_t)p->shape.inter_dim, y_sum_floats(p), false, a->workspace, &scratch);
    for (int64_t tile = tiles * thread / n_threads; tile < to; tile += step)
        add_columns(p, a, &scratch, tile, MF_MIN(to, tile + step));
}

void mf_stage2_run(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int thread, int n_threads)
{
    if (p->out == MF_STAGE2_ADD)
        stage2_add(p, a, thread, n_threads);
    else
        stage2_store(p, a, thread, n_threads);
}
