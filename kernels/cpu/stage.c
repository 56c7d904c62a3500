#include "kernels/cpu/stage.h"

#include <errno.h>
#include <string.h>

#include "kernels/quant.h"

#define ROW_PAD      32 /* elements: rows of A must not all fall into one set of the first cache */
#define COST_OF_TILE 12 /* reading a tile's weights costs about as much as that many rows of arithmetic */

static size_t align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t groups(size_t n)
{
    return (n + 127) / 128;
}

int mf_stage_plan_shape(struct mf_stage_plan *p, const struct mf_shape *shape)
{
    p->shape = *shape;
    p->per_token = shape->q_type == MF_QTYPE_PER_TOKEN;
    p->per_block = shape->q_type == MF_QTYPE_PER_1X128;
    if (shape->q_type == MF_QTYPE_NO) {
        p->format = MF_FORMAT_BF16;
        return 0;
    }
    if (!p->per_token && !p->per_block)
        return -ENOTSUP;
    if (shape->q_dtype_a != shape->q_dtype_w || mf_format_of_dtype(shape->q_dtype_w, &p->format) < 0 ||
        p->format == MF_FORMAT_BF16)
        return -ENOTSUP;
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

static size_t element_bytes(const struct mf_stage_plan *p)
{
    return p->format == MF_FORMAT_BF16 ? 2 : 1;
}

/* ---- sharing out ---- */

/* Tiles of all blocks in order, the cost of each known: a thread has those whose start falls into its share. */
struct share {
    const struct mf_stage_plan *p;
    struct mf_sorted_view sorted;
    int64_t n_blocks, n_tiles;
    int64_t from, to;  /* cost */
    int64_t block, at; /* the next block and the cost before it */
};

static int64_t tile_cost(const struct share *s, int64_t block)
{
    return COST_OF_TILE +
           mf_block_rows(s->sorted.ids, block * s->p->block_m, s->p->block_m, s->p->shape.topk);
}

static struct share share_out(const struct mf_stage_plan *p, struct mf_sorted_view sorted, int64_t n_tiles,
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
    int64_t tile, tile_end; /* of this thread in this block */
};

/* The next block of which this thread has tiles. */
static bool share_next(struct share *s, struct part *ret)
{
    while (s->block < s->n_blocks && s->at < s->to) {
        int64_t b = s->block++, row0 = b * s->p->block_m;
        int rows = mf_block_rows(s->sorted.ids, row0, s->p->block_m, s->p->shape.topk);
        int64_t cost = COST_OF_TILE + rows, at = s->at;
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

struct room {
    uint16_t *a;
    float *a_scale; /* per_token: [rows]; per_block: [rows, groups] */
    float *c, *c2;
    float *sum; /* stage 2, add: [T, block_n] */
    void *scratch;
    size_t lda, ldc;
};

static size_t carve(const struct mf_stage_plan *p, size_t k, size_t sum_floats, bool two, char *base,
                    struct room *ret)
{
    size_t bm = (size_t)p->block_m, at = 0;
    struct room r = {.lda = (k + 31) / 32 * 32 + ROW_PAD, .ldc = ((size_t)p->block_n + 15) / 16 * 16};

#define CARVE(field, bytes)            \
    do {                               \
        r.field = (void *)(base + at); \
        at += align64(bytes);          \
    } while (0)
    CARVE(a, bm * r.lda * 2);
    CARVE(a_scale, bm * groups(k) * 4);
    CARVE(c, bm * r.ldc * 4);
    CARVE(c2, two ? bm * r.ldc * 4 : 0);
    CARVE(sum, sum_floats * 4);
    CARVE(scratch, mf_tile_scratch_bytes(p->block_m, p->block_n));
#undef CARVE
    *ret = r;
    return at;
}

/* Rows of quantised h are made in floats; a row of them fits where A was. */
size_t mf_stage1_workspace(const struct mf_stage_plan *p)
{
    struct room r;
    size_t bytes = carve(p, (size_t)p->shape.model_dim, 0, true, NULL, &r);
    size_t row = align64((size_t)p->shape.inter_dim * 4);

    return bytes > row ? bytes : row;
}

size_t mf_stage2_workspace(const struct mf_stage_plan *p)
{
    struct room r;
    size_t sums = p->out == MF_STAGE2_ADD ? (size_t)p->shape.token * (size_t)p->block_n : 0;

    return carve(p, (size_t)p->shape.inter_dim, sums, false, NULL, &r);
}

/* Brings row i of the block's A into place, with its scales. */
static void pack_row(const struct mf_stage_plan *p, const struct room *room, const void *from,
                     const float *scales, size_t source, size_t k, int i)
{
    const char *row = (const char *)from + source * k * element_bytes(p);

    p->ops->pack(p->format, row, k, room->a + (size_t)i * room->lda);
    if (p->per_token)
        room->a_scale[i] = scales[source];
    else if (p->per_block)
        memcpy(room->a_scale + (size_t)i * groups(k), scales + source * groups(k), groups(k) * 4);
}

struct weights {
    const char *w;
    const float *scale;
    size_t N, K; /* of one expert */
};

static const char *weight_row(const struct mf_stage_plan *p, const struct weights *w, int32_t expert,
                              size_t n)
{
    return w->w + ((size_t)expert * w->N + n) * w->K * element_bytes(p);
}

/* n columns from row n0 of an expert's weight, scaled. */
static void run_tile(const struct mf_stage_plan *p, const struct room *room, const struct weights *w,
                     int32_t expert, size_t n0, int n, int rows, float *c, const void *next)
{
    struct mf_tile t = {
        .a = room->a,
        .lda = room->lda,
        .rows = rows,
        .n = n,
        .format = p->format,
        .panel = p->panel,
        .w = weight_row(p, w, expert, n0),
        .next = next,
        .k = w->K,
        .block_k = (size_t)p->block_k,
        .c = c,
        .ldc = room->ldc,
        .scratch = room->scratch,
    };

    if (p->per_block) {
        t.a_scale = room->a_scale;
        t.lda_scale = groups(w->K);
        t.ldw_scale = groups(w->K);
        t.w_scale = w->scale + ((size_t)expert * groups(w->N) + n0 / 128) * groups(w->K);
        t.n_offset = (int)(n0 % 128);
    }
    p->ops->gemm(&t);
    if (!p->per_token)
        return;
    for (int i = 0; i < rows; i++)
        p->ops->scale(c + (size_t)i * room->ldc, (size_t)n, room->a_scale[i],
                      w->scale + (size_t)expert * w->N + n0);
}

void mf_stage_quantise_row(enum mf_format format, bool per_block, const uint16_t *from, size_t n, size_t row,
                           float *floats, uint8_t *q, float *scale)
{
    mf_bf16_to_floats(from, n, floats);
    if (per_block)
        mf_quant_row_1x128(format, floats, n, q + row * n, scale + row * groups(n));
    else
        scale[row] = mf_quant_row(format, floats, n, q + row * n);
}

/* The last column of tiles may be narrower. */
static int tile_columns(const struct mf_stage_plan *p, size_t n_all, size_t n0)
{
    return n_all - n0 < (size_t)p->block_n ? (int)(n_all - n0) : p->block_n;
}

static void stage1_tile(const struct mf_stage_plan *p, const struct mf_stage1_args *a,
                        const struct room *room, const struct part *part, const struct weights *w,
                        int64_t tile, const void *next)
{
    size_t I = (size_t)p->shape.inter_dim, n0 = (size_t)tile * (size_t)p->block_n;
    int32_t expert = a->sorted.experts[part->block];
    int n = tile_columns(p, I, n0);

    run_tile(p, room, w, expert, n0, n, part->rows, room->c, weight_row(p, w, expert, I + n0));
    run_tile(p, room, w, expert, I + n0, n, part->rows, room->c2, next);
    for (int i = 0; i < part->rows; i++) {
        size_t row = (size_t)(part->row0 + i);
        float weight = p->weighted ? a->sorted.weights[row] : 1.0f;
        p->ops->activate(p->shape.act_type, room->c + (size_t)i * room->ldc, room->c2 + (size_t)i * room->ldc,
                         weight, (size_t)n, a->h + row * I + n0);
    }
}

static void quantise_h(const struct mf_stage_plan *p, const struct mf_stage1_args *a, int thread,
                       int n_threads)
{
    size_t I = (size_t)p->shape.inter_dim;
    int64_t n_blocks = a->sorted.num_valid[0] / p->block_m;

    for (int64_t b = 0; b < n_blocks; b++) {
        int rows = mf_block_rows(a->sorted.ids, b * p->block_m, p->block_m, p->shape.topk);
        for (int i = 0; i < rows; i++) {
            size_t row = (size_t)(b * p->block_m + i);
            if ((int)(row % (size_t)n_threads) == thread)
                mf_stage_quantise_row(p->format, p->per_block, a->h + row * I, I, row, a->workspace, a->h_q,
                                      a->h_scale);
        }
    }
}

void mf_stage1_run(const struct mf_stage_plan *p, const struct mf_stage1_args *a, int thread, int n_threads)
{
    size_t H = (size_t)p->shape.model_dim, I = (size_t)p->shape.inter_dim, bn = (size_t)p->block_n;
    struct weights w = {a->w, a->w_scale, 2 * I, H};
    struct share share = share_out(p, a->sorted, (int64_t)((I + bn - 1) / bn), thread, n_threads);
    struct room room;
    struct part part;

    (void)carve(p, H, 0, true, a->workspace, &room);
    while (share_next(&share, &part)) {
        int32_t expert = a->sorted.experts[part.block];
        int64_t following = part.block + 1 < share.n_blocks ? part.block + 1 : part.block;
        for (int i = 0; i < part.rows; i++) {
            size_t row = (size_t)(part.row0 + i);
            pack_row(p, &room, a->x, a->x_scale, p->gather ? (size_t)mf_id_token(a->sorted.ids[row]) : row, H,
                     i);
        }
        for (int64_t tile = part.tile; tile < part.tile_end; tile++) {
            bool last = tile + 1 == part.tile_end;
            const void *next = weight_row(p, &w, last ? a->sorted.experts[following] : expert,
                                          last ? 0 : (size_t)(tile + 1) * bn);
            stage1_tile(p, a, &room, &part, &w, tile, next);
        }
    }
    if (p->quantise) {
        mf_pool_barrier();
        quantise_h(p, a, thread, n_threads);
    }
}

/* ---- stage 2 ---- */

static void store_tile(const struct mf_stage_plan *p, const struct mf_stage2_args *a, const struct room *room,
                       const struct part *part, size_t n0, int n)
{
    size_t H = (size_t)p->shape.model_dim;

    for (int i = 0; i < part->rows; i++) {
        size_t row = (size_t)(part->row0 + i);
        int32_t id = a->sorted.ids[row];
        size_t slot = (size_t)mf_id_token(id) * (size_t)p->shape.topk + (size_t)mf_id_slot(id);
        float *c = room->c + (size_t)i * room->ldc;
        if (p->weighted)
            p->ops->scale(c, (size_t)n, a->sorted.weights[row], NULL);
        p->ops->to_bf16(c, (size_t)n, a->out + slot * H + n0);
    }
}

static void stage2_store(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int thread,
                         int n_threads)
{
    size_t H = (size_t)p->shape.model_dim, I = (size_t)p->shape.inter_dim, bn = (size_t)p->block_n;
    struct weights w = {a->w, a->w_scale, H, I};
    struct share share = share_out(p, a->sorted, (int64_t)((H + bn - 1) / bn), thread, n_threads);
    struct room room;
    struct part part;

    (void)carve(p, I, 0, false, a->workspace, &room);
    while (share_next(&share, &part)) {
        int32_t expert = a->sorted.experts[part.block];
        int64_t following = part.block + 1 < share.n_blocks ? part.block + 1 : part.block;
        for (int i = 0; i < part.rows; i++)
            pack_row(p, &room, a->h, a->h_scale, (size_t)(part.row0 + i), I, i);
        for (int64_t tile = part.tile; tile < part.tile_end; tile++) {
            bool last = tile + 1 == part.tile_end;
            size_t n0 = (size_t)tile * bn;
            const void *next =
                weight_row(p, &w, last ? a->sorted.experts[following] : expert, last ? 0 : n0 + bn);
            int n = tile_columns(p, H, n0);
            run_tile(p, &room, &w, expert, n0, n, part.rows, room.c, next);
            store_tile(p, a, &room, &part, n0, n);
        }
    }
}

static void add_columns(const struct mf_stage_plan *p, const struct mf_stage2_args *a,
                        const struct room *room, size_t n0, int n)
{
    size_t I = (size_t)p->shape.inter_dim, H = (size_t)p->shape.model_dim, ld = (size_t)p->block_n;
    struct weights w = {a->w, a->w_scale, H, I};
    int64_t n_blocks = a->sorted.num_valid[0] / p->block_m;

    memset(room->sum, 0, (size_t)p->shape.token * ld * 4);
    for (int64_t b = 0; b < n_blocks; b++) {
        int64_t row0 = b * p->block_m;
        int rows = mf_block_rows(a->sorted.ids, row0, p->block_m, p->shape.topk);
        int32_t expert = a->sorted.experts[b];
        const void *next = b + 1 < n_blocks ? weight_row(p, &w, a->sorted.experts[b + 1], n0)
                                            : weight_row(p, &w, a->sorted.experts[0],
                                                         n0 + (size_t)n < H ? n0 + (size_t)n : 0);
        for (int i = 0; i < rows; i++)
            pack_row(p, room, a->h, a->h_scale, (size_t)(row0 + i), I, i);
        if (rows > 0)
            run_tile(p, room, &w, expert, n0, n, rows, room->c, next);
        for (int i = 0; i < rows; i++) {
            size_t row = (size_t)(row0 + i);
            float weight = p->weighted ? a->sorted.weights[row] : 1.0f;
            p->ops->add(room->sum + (size_t)mf_id_token(a->sorted.ids[row]) * ld,
                        room->c + (size_t)i * room->ldc, (size_t)n, weight);
        }
    }
    for (int64_t t = 0; t < p->shape.token; t++)
        p->ops->to_bf16(room->sum + (size_t)t * ld, (size_t)n, a->out + (size_t)t * H + n0);
}

static void stage2_add(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int thread,
                       int n_threads)
{
    size_t H = (size_t)p->shape.model_dim, bn = (size_t)p->block_n, tiles = (H + bn - 1) / bn;
    size_t from = tiles * (size_t)thread / (size_t)n_threads,
           to = tiles * (size_t)(thread + 1) / (size_t)n_threads;
    struct room room;

    (void)carve(p, (size_t)p->shape.inter_dim, (size_t)p->shape.token * bn, false, a->workspace, &room);
    for (size_t tile = from; tile < to; tile++)
        add_columns(p, a, &room, tile * bn, tile_columns(p, H, tile * bn));
}

void mf_stage2_run(const struct mf_stage_plan *p, const struct mf_stage2_args *a, int thread, int n_threads)
{
    if (p->out == MF_STAGE2_ADD)
        stage2_add(p, a, thread, n_threads);
    else
        stage2_store(p, a, thread, n_threads);
}
