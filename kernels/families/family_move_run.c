/* Execution of the steps of family move on CPUs. */
#include "kernels/families/family_move.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant.h"
#include "kernels/cpu/dequant.h"
#include "kernels/ops/align.h"
#include "kernels/ops/moe_sort.h"
#include "kernels/ops/permute.h"

/* Called for each row that each_sorted_row assigns to the thread. `room` is the context of the call. */
typedef void (*row_fn)(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room);

static void each_sorted_row(const struct mf_kernel *k, const struct mf_sorted_view *s, row_fn f, void *room,
                            int thread, int n_threads)
{
    int64_t n_blocks = s->num_valid[0] / k->block_m, seen = 0;

    for (int64_t b = 0; b < n_blocks; b++) {
        int rows = mf_block_rows(s->ids, b * k->block_m, k->block_m, k->shape.topk);
        for (int i = 0; i < rows; i++, seen++) {
            if (seen % n_threads == thread)
                f(k, s, (size_t)(b * k->block_m + i), room);
        }
    }
}

/* ---- rows of x with their scales; values shared by all rows are copied once ---- */

struct rows_of_x {
    size_t bytes, scales; /* bytes per row: elements, scales */
    mf_copy_fn copy;
};

static struct rows_of_x rows_of_x(const struct mf_kernel *k)
{
    const struct mf_codec *c = k->plan.codecs.a;
    size_t H = (size_t)k->shape.model_dim;

    return (struct rows_of_x){
        .bytes = mf_codec_row_bytes(c, H),
        .scales = c->group_rows == 0 ? 0 : mf_codec_scale_cols(c, H) * (size_t)c->scale_bytes,
        .copy = mf_row_copier(k->way != MF_MOVE_ROWS),
    };
}

static void copy_row(const struct rows_of_x *x, const struct mf_tensor_ref *from, size_t source,
                     const struct mf_tensor_ref *to, size_t row)
{
    x->copy((char *)to->part[0] + row * x->bytes, (const char *)from->part[0] + source * x->bytes, x->bytes);
    if (x->scales)
        memcpy((char *)to->part[1] + row * x->scales, (const char *)from->part[1] + source * x->scales,
               x->scales);
}

static void gather_row(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room)
{
    copy_row(room, &k->launch->needs[0], (size_t)mf_id_token(s->ids[row]), &k->launch->gives[0], row);
}

static void copy_shared(const struct mf_codec *c, const struct mf_tensor_ref *from,
                        const struct mf_tensor_ref *to)
{
    if (c->scale_bytes > 0 && c->group_rows == 0)
        memcpy(to->part[1], from->part[1], (size_t)c->scale_bytes);
    if (c->global)
        memcpy(to->part[2], from->part[2], sizeof(float));
}

static void act_row(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room)
{
    const struct mf_launch *l = k->launch;
    size_t I = (size_t)k->shape.inter_dim;
    float *const gate_up[2] = {room, (float *)room + I};
    bool biased = k->shape.has_b1;
    const float *b1 =
        biased ? (const float *)l->needs[2].part[0] + (size_t)s->experts[row / (size_t)k->block_m] * 2 * I
               : NULL;
    const float *const bias[2] = {b1, biased ? b1 + I : NULL};

    mf_bf16_to_floats((const uint16_t *)l->needs[0].part[0] + row * 2 * I, 2 * I, room);
    mf_stage_activate(k->plan.ops, &k->shape, gate_up, biased ? bias : NULL,
                      k->shape.doweight_stage1 ? s->weights[row] : 1.0f, I,
                      (uint16_t *)l->gives[0].part[0] + row * I);
}

/* Returns the address of the maximum magnitude of a thread's rows. */
static uint32_t *amax_of(const struct mf_kernel *k, int thread)
{
    char *room = (char *)k->launch->workspace + (size_t)thread * k->thread_bytes;
    return (uint32_t *)(void *)(room + k->thread_bytes - sizeof(uint32_t));
}

/* Raises *amax to the maximum magnitude of a row. Compares bit patterns, because the bit patterns of bf16
 * magnitudes sort like their values, with NaN above all. */
static void raise_amax(const struct mf_kernel *k, size_t row, size_t n, uint32_t *amax)
{
    const uint16_t *from = (const uint16_t *)k->launch->needs[0].part[0] + row * n;
    uint16_t top = 0;

    for (size_t i = 0; i < n; i++) {
        uint16_t a = from[i] & 0x7fff;
        top = a > top ? a : top;
    }
    *amax = top > *amax ? top : *amax;
}

/* Values shared by all rows: the scale from the maximum of all threads, and the calibrated factor. Thread 0
 * stores the values that the codec has in the output. */
struct shared {
    float scale, global;
};

static struct shared compute_shared(const struct mf_kernel *k, int thread)
{
    const struct mf_codec *c = k->plan.codecs.a;
    const struct mf_launch *l = k->launch;
    bool first = k->kind != MF_MOVE_QUANT2;
    struct shared s = {1, 1};
    uint32_t top = 0;

    if (c->global)
        s.global = ((const float *)l->needs[k->kind == MF_MOVE_QUANT1 ? 1 : 2].part[0])[first ? 0 : 1];
    for (int t = 0; c->group_rows == 0 && t < k->threads; t++)
        top = MF_MAX(top, *amax_of(k, t));
    if (c->group_rows == 0)
        mf_codec_group_scale(c, mf_bf16_to_float((uint16_t)top), 1.0f, &s.scale);
    if (thread == 0 && c->group_rows == 0)
        *(float *)l->gives[0].part[1] = s.scale;
    if (thread == 0 && c->global)
        *(float *)l->gives[0].part[2] = s.global;
    return s;
}

/* Quantises row `source` of the input into row `row` of the output. */
static void quantise_row(const struct mf_kernel *k, size_t source, size_t row, size_t n,
                         const struct shared *s, float *floats)
{
    const struct mf_codec *c = k->plan.codecs.a;
    const struct mf_tensor_ref *to = &k->launch->gives[0];
    const uint16_t *from = (const uint16_t *)k->launch->needs[0].part[0] + source * n;

    if (c->group_rows > 0) {
        mf_stage_quantise_row(c, from, n, row, s->global, floats, to);
        return;
    }
    mf_bf16_to_floats(from, n, floats);
    mf_codec_encode_row(c, floats, n, &s->scale, 1.0f,
                        (uint8_t *)to->part[0] + row * mf_codec_row_bytes(c, n));
}

static void amax_row(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room)
{
    (void)s;
    raise_amax(k, row, (size_t)k->shape.inter_dim, room);
}

/* Computes the values shared by all rows of x. With one scale for all rows, the threads find the maximum of
 * their tokens and synchronise at a barrier. */
static struct shared scan_x(const struct mf_kernel *k, int thread, int n_threads)
{
    int64_t from = k->shape.token * thread / n_threads, to = k->shape.token * (thread + 1) / n_threads;

    if (k->plan.codecs.a->group_rows == 0) {
        *amax_of(k, thread) = 0;
        for (int64_t t = from; t < to; t++)
            raise_amax(k, (size_t)t, (size_t)k->shape.model_dim, amax_of(k, thread));
        mf_pool_barrier();
    }
    return compute_shared(k, thread);
}

static void quant1(const struct mf_kernel *k, void *room, int thread, int n_threads)
{
    int64_t from = k->shape.token * thread / n_threads, to = k->shape.token * (thread + 1) / n_threads;
    struct shared all = scan_x(k, thread, n_threads);

    for (int64_t t = from; t < to; t++)
        quantise_row(k, (size_t)t, (size_t)t, (size_t)k->shape.model_dim, &all, room);
}

struct quant2_room {
    struct shared all;
    float *floats;
};

static void quant2_row(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row, void *room)
{
    struct quant2_room *r = room;

    (void)s;
    quantise_row(k, row, row, (size_t)k->shape.inter_dim, &r->all, r->floats);
}

static void quant2(const struct mf_kernel *k, const struct mf_sorted_view *s, void *room, int thread,
                   int n_threads)
{
    if (k->plan.codecs.a->group_rows == 0) {
        *amax_of(k, thread) = 0;
        each_sorted_row(k, s, amax_row, amax_of(k, thread), thread, n_threads);
        mf_pool_barrier();
    }
    struct quant2_room r = {compute_shared(k, thread), room};
    each_sorted_row(k, s, quant2_row, &r, thread, n_threads);
}

/* ---- combine ---- */

static int32_t *map_of(const struct mf_kernel *k)
{
    return (int32_t *)(void *)((char *)k->launch->workspace + k->thread_bytes * (size_t)k->threads +
                               k->sort_bytes);
}

static int64_t n_routes(const struct mf_kernel *k)
{
    return k->shape.token * k->shape.topk;
}

/* Returns the weights by which a combine multiplies z, or NULL if z is already weighted. */
static const float *combine_weights(const struct mf_kernel *k)
{
    if (k->kind != MF_MOVE_COMBINE || k->shape.doweight_stage1)
        return NULL;
    return k->launch->routes.bf16_weights ? (const float *)(const void *)(map_of(k) + n_routes(k))
                                          : k->launch->needs[1].part[1];
}

/* Divides the columns among the threads, not the rows, because with few tokens there are fewer rows than
 * threads. The division does not change the sums. */
static void combine_columns(const struct mf_kernel *k, int thread, int n_threads)
{
    const struct mf_launch *l = k->launch;
    size_t H = (size_t)k->shape.model_dim, pieces = (H + 63) / 64;
    size_t from = pieces * (size_t)thread / (size_t)n_threads * 64;
    size_t to = pieces * (size_t)(thread + 1) / (size_t)n_threads * 64, topk = (size_t)k->shape.topk;
    const float *all = combine_weights(k);

    to = to > H ? H : to;
    if (from >= to)
        return;
    for (size_t t = 0; t < (size_t)k->shape.token; t++) {
        const float *weights = all ? all + t * topk : NULL;
        k->plan.ops->combine((const uint16_t *)l->needs[0].part[0] + t * topk * H + from, H, k->shape.topk,
                             weights, to - from, (uint16_t *)l->gives[0].part[0] + t * H + from);
    }
}

/* ---- inverse map ---- */

/* Builds the map from route to row of sorted order. Ends with a barrier. */
static void invert(const struct mf_kernel *k, const struct mf_sorted_view *s, int thread, int n_threads)
{
    int64_t n = k->shape.token * k->shape.topk, n_blocks = s->num_valid[0] / k->block_m;
    int64_t from = n * thread / n_threads, to = n * (thread + 1) / n_threads;
    int32_t *row_of = map_of(k);

    for (int64_t i = from; i < to; i++)
        row_of[i] = -1;
    mf_pool_barrier();
    for (int64_t b = n_blocks * thread / n_threads; b < n_blocks * (thread + 1) / n_threads; b++) {
        int64_t first = b * k->block_m;
        int rows = mf_block_rows(s->ids, first, k->block_m, k->shape.topk);
        for (int64_t row = first; row < first + rows; row++)
            row_of[(int64_t)mf_id_token(s->ids[row]) * k->shape.topk + mf_id_slot(s->ids[row])] =
                (int32_t)row;
    }
    mf_pool_barrier();
}

/* Reads each token of this thread once and writes the token to all its rows. If `all` is not NULL, quantises
 * the first of these rows and copies the result to the other rows while the result is in the L1 cache. */
static void write_once(const struct mf_kernel *k, const struct shared *all, float *room, int thread,
                       int n_threads)
{
    const struct mf_tensor_ref *x = &k->launch->needs[0], *to = &k->launch->gives[0];
    int64_t from = k->shape.token * thread / n_threads, end = k->shape.token * (thread + 1) / n_threads;
    struct rows_of_x rows = rows_of_x(k);
    const int32_t *row_of = map_of(k);

    for (int64_t t = from; t < end; t++) {
        const struct mf_tensor_ref *source = x;
        size_t at = (size_t)t;
        for (int32_t j = 0; j < k->shape.topk; j++) {
            int32_t row = row_of[t * k->shape.topk + j];
            if (row < 0)
                continue;
            if (all && source == x) {
                quantise_row(k, (size_t)t, (size_t)row, (size_t)k->shape.model_dim, all, room);
                source = to;
                at = (size_t)row;
            } else {
                copy_row(&rows, source, at, to, (size_t)row);
            }
        }
    }
    mf_row_copy_fence();
}

static void gather(const struct mf_kernel *k, const struct mf_sorted_view *s, int thread, int n_threads)
{
    struct rows_of_x rows = rows_of_x(k);

    if (thread == 0)
        copy_shared(k->plan.codecs.a, &k->launch->needs[0], &k->launch->gives[0]);
    if (k->way == MF_MOVE_ONCE) {
        invert(k, s, thread, n_threads);
        write_once(k, NULL, NULL, thread, n_threads);
        return;
    }
    each_sorted_row(k, s, gather_row, &rows, thread, n_threads);
    mf_row_copy_fence();
}

/* Quantises and gathers x. Builds the inverse map first, unless the step also sorts and has therefore already
 * built the map. */
static void quant1_gather(const struct mf_kernel *k, const struct mf_sorted_view *s, void *room, int thread,
                          int n_threads)
{
    if (k->kind == MF_MOVE_QUANT1_GATHER)
        invert(k, s, thread, n_threads);
    if (!mf_cpu_quantises(&k->shape)) {
        write_once(k, NULL, NULL, thread, n_threads);
        return;
    }
    struct shared all = scan_x(k, thread, n_threads);
    write_once(k, &all, room, thread, n_threads);
}

/* Combines the slots that find_slots() found. */
static void combine_some(const struct mf_kernel *k)
{
    const struct mf_launch *l = k->launch;
    const struct mf_shape *s = &k->shape;
    struct mf_unpermute u = {
        .row_of = map_of(k),
        .tokens = s->token,
        .topk = s->topk,
        .last = n_routes(k),
        .from = l->needs[0].part[0],
        .width = (size_t)s->model_dim,
        .probs = combine_weights(k),
        .to = l->gives[0].part[0],
    };

    mf_unpermute_rows(&u, k->threads);
}

/* Maps the routes of local experts to their slots and other routes to -1. Returns true if all experts are
 * local. */
static bool find_slots(const struct mf_kernel *k)
{
    const struct mf_launch *l = k->launch;
    int32_t *row_of = map_of(k);
    bool all = true;

    for (int64_t i = 0, n = n_routes(k); i < n; i++) {
        bool local = mf_shape_local_expert(&k->shape, mf_route_id(&l->needs[1], l->routes, i)) >= 0;
        row_of[i] = local ? (int32_t)i : -1;
        all &= local;
    }
    return all;
}

/* ---- dequantising weights ---- */

/* Writes the number of active experts, then their indices in ascending order. */
static void list_experts(const struct mf_kernel *k, const struct mf_tensor_ref *topk)
{
    const struct mf_shape *s = &k->shape;
    int32_t *list = map_of(k), n = 0;

    memset(list, 0, ((size_t)s->expert + 1) * sizeof(*list));
    for (int64_t i = 0; i < n_routes(k); i++) {
        int32_t e = mf_shape_local_expert(s, mf_route_id(topk, k->launch->routes, i));
        if (e >= 0)
            list[1 + e] = 1;
    }
    for (int32_t e = 0; e < s->expert; e++) {
        if (list[1 + e])
            list[1 + n++] = e;
    }
    list[0] = n;
}

/* Dequantises a thread's contiguous part of the strips of all active experts. */
static void decode_weight(const struct mf_kernel *k, int i, enum mf_tensor w, void *room, int thread,
                          int n_threads)
{
    const int32_t *list = map_of(k);
    struct mf_dequant d = {.ops = k->plan.ops,
                           .codec = k->plan.codecs.w,
                           .panel = k->panel,
                           .from = k->launch->needs[i],
                           .to = k->launch->gives[i].part[0]};
    mf_cpu_weight_sizes(&k->shape, w, &d.N, &d.K);
    size_t of_expert = d.N / MF_DEQUANT_ROWS, n = of_expert * (size_t)list[0];
    size_t end = n * (size_t)(thread + 1) / (size_t)n_threads;

    for (size_t at = n * (size_t)thread / (size_t)n_threads; at < end; at++)
        mf_dequant_strip(&d, (size_t)list[1 + at / of_expert], at % of_expert * MF_DEQUANT_ROWS, room);
}

static void decode_weights(const struct mf_kernel *k, void *room, int thread, int n_threads)
{
    enum mf_tensor w[2];
    int n = mf_move_decodes(k->kind, w);

    for (int i = 0; i < n; i++)
        decode_weight(k, i, w[i], room, thread, n_threads);
}

/* ---- the calls ---- */

static void run_thread(void *context, int thread, int n_threads)
{
    const struct mf_kernel *k = context;
    const struct mf_launch *l = k->launch;
    void *room = (char *)l->workspace + (size_t)thread * k->thread_bytes;
    struct mf_sorted_view s = {0};

    switch (k->kind) {
    case MF_MOVE_QUANT1:
        quant1(k, room, thread, n_threads);
        return;
    case MF_MOVE_GATHER:
        s = mf_cpu_sorted_view(&l->needs[1]);
        gather(k, &s, thread, n_threads);
        return;
    case MF_MOVE_QUANT1_GATHER:
        s = mf_cpu_sorted_view(&l->needs[1]);
        quant1_gather(k, &s, room, thread, n_threads);
        return;
    case MF_MOVE_SORT_GATHER:
        quant1_gather(k, NULL, room, thread, n_threads);
        return;
    case MF_MOVE_ACT:
        s = mf_cpu_sorted_view(&l->needs[1]);
        each_sorted_row(k, &s, act_row, room, thread, n_threads);
        return;
    case MF_MOVE_QUANT2:
        s = mf_cpu_sorted_view(&l->needs[1]);
        quant2(k, &s, room, thread, n_threads);
        return;
    case MF_MOVE_COMBINE:
    case MF_MOVE_COMBINE_WEIGHTED:
        combine_columns(k, thread, n_threads);
        return;
    case MF_MOVE_DEQUANT_W1:
    case MF_MOVE_DEQUANT_W2:
    case MF_MOVE_DEQUANT_W12:
        decode_weights(k, room, thread, n_threads);
        return;
    case MF_MOVE_SORT:
    case MF_MOVE_ALIGN:
    case MF_MOVE_FROM_ALIGNED:
    case MF_MOVE_N_:
        break; /* these kinds use the thread pool themselves */
    }
}

/* Combines z. Slots without a local expert are undefined in z and are not read. */
static void combine(struct mf_kernel *k)
{
    const struct mf_launch *l = k->launch;

    if (combine_weights(k) && l->routes.bf16_weights)
        mf_bf16_to_floats(l->needs[1].part[1], (size_t)n_routes(k),
                          (float *)(void *)(map_of(k) + n_routes(k)));
    if (find_slots(k))
        mf_pool_run(run_thread, k, k->threads);
    else
        combine_some(k);
}

static char *sort_room(const struct mf_kernel *k)
{
    return (char *)k->launch->workspace + k->thread_bytes * (size_t)k->threads;
}

static int sort(const struct mf_kernel *k, const struct mf_tensor_ref *topk, const struct mf_tensor_ref *to,
                int32_t *row_of)
{
    struct mf_moe_sort in = mf_cpu_sort(&k->shape, topk, k->launch->routes, k->block_m);
    struct mf_moe_sort_out out = {.sorted_ids = to->part[0],
                                  .sorted_weights = to->part[1],
                                  .expert_ids = to->part[2],
                                  .num_valid = to->part[3],
                                  .reverse_sorted = row_of};
    const char *why;

    return mf_moe_sort(k->sort, &in, k->threads, sort_room(k), &out, &why);
}

static int align(const struct mf_kernel *k)
{
    const struct mf_shape *s = &k->shape;
    const struct mf_tensor_ref *to = &k->launch->gives[0];
    struct mf_align in = {.ids = k->launch->needs[0].part[0],
                          .wide = k->launch->routes.wide,
                          .tokens = s->token,
                          .topk = s->topk,
                          .experts = s->expert,
                          .first = s->ep_first,
                          .block = k->block_m,
                          .whole_blocks = true};
    struct mf_align_out out = {
        .sorted_ids = to->part[0], .expert_ids = to->part[1], .num_post_pad = to->part[2]};
    const char *why;

    return mf_align_blocks(k->sort, &in, k->threads, sort_room(k), &out, &why);
}

/* Converts flat ids to packed ids and gathers their routing weights. */
static void pack_aligned(const struct mf_kernel *k)
{
    const struct mf_tensor_ref *from = &k->launch->needs[0], *to = &k->launch->gives[0];
    const int32_t *flat = from->part[0], *experts = from->part[1];
    const struct mf_tensor_ref *topk_ref = &k->launch->needs[1];
    int32_t *ids = to->part[0], *num_valid = to->part[3], topk = k->shape.topk;
    int64_t rows = *(const int32_t *)from->part[2], routes = k->shape.token * topk;
    float *weights = to->part[1];

    for (int64_t r = 0; r < rows; r++) {
        bool pads = flat[r] >= routes;
        ids[r] =
            pads ? mf_pack_id((int32_t)k->shape.token, topk) : mf_pack_id(flat[r] / topk, flat[r] % topk);
        weights[r] = pads ? 0 : mf_route_weight(topk_ref, k->launch->routes, flat[r]);
    }
    memcpy(to->part[2], experts, (size_t)(rows / k->block_m) * sizeof(*experts));
    num_valid[0] = (int32_t)rows;
    num_valid[1] = (int32_t)k->shape.token;
}

int mf_move_run(struct mf_kernel *k, const struct mf_launch *l)
{
    enum mf_tensor w[2];
    int n_decoded = mf_move_decodes(k->kind, w), r = 0;

    k->launch = l;
    if (n_decoded > 0)
        list_experts(k, &l->needs[n_decoded]);
    if (k->kind == MF_MOVE_SORT)
        return sort(k, &l->needs[0], &l->gives[0], NULL);
    if (k->kind == MF_MOVE_ALIGN)
        return align(k);
    if (mf_move_combines(k->kind)) {
        combine(k);
        return 0;
    }
    if (k->kind == MF_MOVE_FROM_ALIGNED)
        pack_aligned(k);
    if (k->kind == MF_MOVE_SORT_GATHER)
        r = sort(k, &l->needs[1], &l->gives[1], map_of(k));
    if (r == 0 && k->kind != MF_MOVE_FROM_ALIGNED)
        mf_pool_run(run_thread, k, k->threads);
    return r;
}
