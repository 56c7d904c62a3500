/* Family move on CPUs: every op of the layer except the GEMMs. Some steps do one op, others sort, quantise
 * and gather in a single pass. Steps that dequantise weights cover no op of the layer. A dequantising step
 * pays off if a bf16 GEMM is faster than a GEMM that reads the quantised weights. */
#include "kernels/families/family_move.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/cpu/dequant.h"
#include "kernels/ops/align.h"
#include "kernels/ops/moe_sort.h"

/* Maximum rows for which one thread may be faster than several, because starting threads takes as long as
 * processing this number of rows. */
#define ROWS_OF_ONE 64
#define STREAM_BYTES \
    ((int64_t)4 << 20) /* from this size, rows in expert order do not stay in a core's caches */
/* Reorder tolerance of a sort with unstable order within a block. The sums that depend on this order are over
 * rows that were rounded to bf16 and quantised once more. */
#define ATOMIC_REORDER 0.01

/* Step kinds: the word in the name, and the parameters that follow it. */
static const struct kind_info {
    const char *word;
    bool blocks, threads, sorts, gathers;
    mf_ops decodes; /* dequantisation nodes of the fusion graph, which are not ops of the layer */
} kinds[MF_MOVE_N_] = {
    [MF_MOVE_SORT] = {"sort", .blocks = true, .sorts = true},
    [MF_MOVE_ALIGN] = {"align", .blocks = true, .sorts = true},
    [MF_MOVE_SORT_GATHER] = {"sort_gather", .blocks = true, .threads = true},
    [MF_MOVE_FROM_ALIGNED] = {"from_aligned", .blocks = true},
    [MF_MOVE_QUANT1] = {"quant1", .threads = true},
    [MF_MOVE_GATHER] = {"gather", .blocks = true, .threads = true, .gathers = true},
    [MF_MOVE_QUANT1_GATHER] = {"quant1_gather", .blocks = true, .threads = true},
    [MF_MOVE_ACT] = {"act", .blocks = true, .threads = true},
    [MF_MOVE_QUANT2] = {"quant2", .blocks = true, .threads = true},
    [MF_MOVE_COMBINE] = {"combine_z", .threads = true},
    [MF_MOVE_COMBINE_WEIGHTED] = {"combine_zw", .threads = true},
    [MF_MOVE_DEQUANT_W1] = {"dequant_w1", .threads = true, .decodes = MF_OP_BIT(MF_NODE_DEQUANT_W1)},
    [MF_MOVE_DEQUANT_W2] = {"dequant_w2", .threads = true, .decodes = MF_OP_BIT(MF_NODE_DEQUANT_W2)},
    [MF_MOVE_DEQUANT_W12] = {"dequant_w12", .threads = true,
                             .decodes = MF_OP_BIT(MF_NODE_DEQUANT_W1) | MF_OP_BIT(MF_NODE_DEQUANT_W2)},
};

/* Suffix of the gather method. */
static const char *const way_words[MF_MOVE_N_WAYS_] = {"", "_nt", "_once"};

/* ---- legality ---- */

static bool kind_applies(enum mf_move_kind kind, const struct mf_shape *s)
{
    switch (kind) {
    case MF_MOVE_QUANT1:
    case MF_MOVE_QUANT2:
    case MF_MOVE_QUANT1_GATHER:
        return mf_cpu_quantises(s);
    case MF_MOVE_COMBINE_WEIGHTED:
        return !s->doweight_stage1;
    case MF_MOVE_DEQUANT_W1:
    case MF_MOVE_DEQUANT_W2:
    case MF_MOVE_DEQUANT_W12:
        return mf_plain_w(s, MF_TENSOR_W1, "row").scale != MF_SCALE_NONE;
    case MF_MOVE_SORT:
    case MF_MOVE_ALIGN:
    case MF_MOVE_SORT_GATHER:
    case MF_MOVE_FROM_ALIGNED:
    case MF_MOVE_GATHER:
    case MF_MOVE_ACT:
    case MF_MOVE_COMBINE:
    case MF_MOVE_N_:
        break;
    }
    return true;
}

static mf_ops covers_of(enum mf_move_kind kind, const struct mf_shape *s)
{
    mf_ops gather = MF_OP_BIT(MF_OP_GATHER), weight = MF_OP_BIT(MF_OP_WEIGHT);
    mf_ops quant1 = mf_cpu_quantises(s) ? MF_OP_BIT(MF_OP_QUANT1) : 0;
    const mf_ops covers[MF_MOVE_N_] = {
        [MF_MOVE_SORT] = MF_OP_BIT(MF_OP_SORT),
        [MF_MOVE_ALIGN] = MF_OP_BIT(MF_OP_SORT),
        [MF_MOVE_SORT_GATHER] = MF_OP_BIT(MF_OP_SORT) | quant1 | gather,
        [MF_MOVE_FROM_ALIGNED] = 0, /* converts one order into another, which is not an op of the layer */
        [MF_MOVE_QUANT1] = quant1,
        [MF_MOVE_GATHER] = gather,
        [MF_MOVE_QUANT1_GATHER] = quant1 | gather,
        [MF_MOVE_ACT] = MF_OP_BIT(MF_OP_ACT) | (s->doweight_stage1 ? weight : 0),
        [MF_MOVE_QUANT2] = MF_OP_BIT(MF_OP_QUANT2),
        [MF_MOVE_COMBINE] = MF_OP_BIT(MF_OP_COMBINE) | (s->doweight_stage1 ? 0 : weight),
        [MF_MOVE_COMBINE_WEIGHTED] = MF_OP_BIT(MF_OP_COMBINE),
        /* dequantising weights is not an op of the layer */
    };

    return covers[kind];
}

/* True if the fusion rules allow the step. No step contains a GEMM. Threads synchronise between passes over
 * the rows, so one step can compute an order or a scale of all rows and use it. A thread owns columns of the
 * output. Dequantising steps process lists of matrices. */
static bool may_cover(enum mf_move_kind kind, const struct mf_shape *s, struct mf_refusal *ret)
{
    static const struct mf_fusion_caps caps = {
        .whole_rows = true, .all_rows = true, .accumulates = true, .sorts = true, .lists = true};

    return mf_cpu_may_cover(s, covers_of(kind, s) | kinds[kind].decodes, mf_cpu_block_ms[0], &caps, ret);
}

/* Returns the number of threads of a sort algorithm: one, or all cores up to a limit. */
static int sort_threads(enum mf_sort sort, int cores)
{
    return sort == MF_SORT_SERIAL || sort == MF_SORT_ONE ? 1 : MF_MIN(cores, MF_SORT_THREADS);
}

/* True if a sort algorithm is not tried; *ret then has the reason. Either the algorithm cannot sort the
 * routes, or, unless `legal` is set, the algorithm is not worth trying. The multi-threaded algorithms are for
 * many routes. */
static bool refuse_sort(enum mf_sort sort, const struct mf_shape *s, int cores, bool legal,
                        struct mf_refusal *ret)
{
    int64_t routes = s->token * s->topk;
    const char *why;

    ret->rule = NULL;
    if (!mf_sort_supports(sort, routes, s->expert, sort_threads(sort, cores), &why))
        mf_refuse(ret, "routes", "%lld tokens x topk %d are %lld routes over %d experts; %s",
                  (long long)s->token, s->topk, (long long)routes, s->expert, why);
    else if (legal)
        ;
    else if (sort >= MF_SORT_STAGES && routes <= MF_SORT_ONE_ROUTES)
        mf_refuse(ret, "routes",
                  "%lld routes; a multi-threaded sort is tried from %d routes, because below that starting "
                  "the threads "
                  "costs more than it saves",
                  (long long)routes, MF_SORT_ONE_ROUTES + 1);
    else if (sort >= MF_SORT_STAGES && cores < 2)
        mf_refuse(ret, "cores", "with 1 core, %s is the serial sort with additional passes",
                  mf_sort_name(sort));
    return ret->rule != NULL;
}

static bool refuse_way(enum mf_move_way way, const struct mf_shape *s, struct mf_refusal *ret)
{
    int64_t bytes = (int64_t)(mf_cpu_row_bytes(s, s->model_dim) * (double)(s->token * s->topk));

    ret->rule = NULL;
    if (way != MF_MOVE_ROWS && bytes < STREAM_BYTES)
        mf_refuse(ret, "bytes",
                  "the rows have %lld bytes; non-temporal stores are tried from %lld bytes, because below "
                  "that the GEMM "
                  "reads the rows from the cache",
                  (long long)bytes, (long long)STREAM_BYTES);
    return ret->rule != NULL;
}

int mf_move_decodes(enum mf_move_kind kind, enum mf_tensor ret[2])
{
    int n = 0;

    if (kinds[kind].decodes & MF_OP_BIT(MF_NODE_DEQUANT_W1))
        ret[n++] = MF_TENSOR_W1;
    if (kinds[kind].decodes & MF_OP_BIT(MF_NODE_DEQUANT_W2))
        ret[n++] = MF_TENSOR_W2;
    return n;
}

/* True if the weights can be stored in panels of `panel` rows and, dequantised, in panels of
 * MF_DEQUANT_ROWS. */
static bool panels_fit(enum mf_move_kind kind, const struct mf_shape *s, int panel, struct mf_refusal *ret)
{
    enum mf_tensor w[2];
    int n = mf_move_decodes(kind, w), bits = mf_cpu_weight_bits(s);

    ret->rule = NULL;
    for (int i = 0; i < n && !ret->rule; i++) {
        size_t N, K;
        mf_cpu_weight_sizes(s, w[i], &N, &K);
        if (!mf_layout_legal(mf_cpu_layout(MF_DEQUANT_ROWS, false), 16, N, K) || K % 32 != 0 ||
            !mf_layout_legal(mf_cpu_layout(panel, false), bits, N, K))
            mf_refuse(
                ret, "divisibility",
                "%s has %zu rows of %zu %d-bit elements; the bf16 panels need multiples of %d rows and 32 "
                "elements, the quantised panels multiples of %d rows and %d elements",
                mf_tensor_name(w[i]), N, K, bits, MF_DEQUANT_ROWS, panel, panel > 1 ? 32 / bits : 1);
    }
    return ret->rule == NULL;
}

/* ---- a step ---- */

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns the workspace bytes of a thread: one row as floats, then the maximum magnitude of the thread's
 * rows. */
static size_t thread_bytes(enum mf_move_kind kind, const struct mf_shape *s)
{
    size_t H = (size_t)s->model_dim, I = (size_t)s->inter_dim, n = 0;

    if (kind == MF_MOVE_QUANT1 || kind == MF_MOVE_QUANT1_GATHER || kind == MF_MOVE_SORT_GATHER)
        n = H;
    if (kind == MF_MOVE_QUANT2 || kind == MF_MOVE_ACT)
        n = kind == MF_MOVE_ACT ? 2 * I : I;
    if (kinds[kind].decodes)
        return mf_dequant_workspace();
    return whole_lines(n * 4 + sizeof(uint32_t));
}

bool mf_move_combines(enum mf_move_kind kind)
{
    return kind == MF_MOVE_COMBINE || kind == MF_MOVE_COMBINE_WEIGHTED;
}

/* True if the step uses the inverse map, from route to row. */
static bool goes_by_map(const struct mf_kernel *k)
{
    return k->kind == MF_MOVE_QUANT1_GATHER || k->kind == MF_MOVE_SORT_GATHER ||
           (k->kind == MF_MOVE_GATHER && k->way == MF_MOVE_ONCE);
}

static struct mf_kernel configure(struct mf_kernel k)
{
    const struct mf_shape *s = &k.shape;
    size_t routes = (size_t)(s->token * s->topk);

    if (k.kind == MF_MOVE_SORT_GATHER)
        k.sort = k.threads > 1 ? MF_SORT_STABLE : MF_SORT_SERIAL;
    if (kinds[k.kind].sorts || k.kind == MF_MOVE_SORT_GATHER)
        k.sort_bytes = mf_blocks_workspace(k.sort, (int64_t)routes, s->expert, k.threads);
    if (goes_by_map(&k))
        k.map_bytes = whole_lines(routes * sizeof(int32_t));
    if (mf_move_combines(k.kind))
        k.map_bytes = whole_lines(routes * (sizeof(int32_t) + sizeof(float)));
    if (kinds[k.kind].decodes)
        k.map_bytes = whole_lines(((size_t)s->expert + 1) * sizeof(int32_t));
    k.thread_bytes = thread_bytes(k.kind, s);
    k.plan.ops = mf_cpu_ops(mf_isa_best());
    (void)mf_stage_plan_shape(&k.plan, s);
    return k;
}

/* Writes the step's name, such as "sort_stable_m16_t2", "gather_once_m16_t2", "quant1_t2" or
 * "dequant_w1_p32_t2". Names of single-threaded sorts have no _t1. */
static void print_name(const struct mf_kernel *k, char buf[MF_STEP_NAME_MAX])
{
    const struct kind_info *i = &kinds[k->kind];
    const char *sort = i->sorts && k->sort != MF_SORT_SERIAL ? mf_sort_name(k->sort) : "";
    const char *panel = i->decodes ? mf_cpu_layout(k->panel, false)->word : "";
    char block[16] = "", threads[16] = "";

    if (i->blocks)
        (void)snprintf(block, sizeof(block), "_m%d", k->block_m);
    if (i->threads || (i->sorts && k->threads > 1))
        (void)snprintf(threads, sizeof(threads), "_t%d", k->threads);
    (void)snprintf(buf, MF_STEP_NAME_MAX, "%s%s%s%s%s%s%s%s", i->word, *sort ? "_" : "", sort,
                   way_words[k->way], *panel ? "_" : "", panel, block, threads);
}

static void need_calib(const struct mf_kernel *k, struct mf_step *s)
{
    if (k->plan.codecs.a->global)
        mf_step_need(s, mf_cpu_calib());
}

static void describe_sort(const struct mf_kernel *k, struct mf_step *s)
{
    double slots = (double)k->shape.token * k->shape.topk;
    bool from_aligned = k->kind == MF_MOVE_FROM_ALIGNED;

    if (from_aligned)
        mf_step_need(s, mf_cpu_aligned(k->block_m));
    mf_step_need(s, mf_cpu_topk());
    mf_step_give(s, k->kind == MF_MOVE_ALIGN ? mf_cpu_aligned(k->block_m) : mf_cpu_sorted(k->block_m));
    s->bytes = slots * 16;
    s->reorder_tolerance = k->sort == MF_SORT_SCATTER ? ATOMIC_REORDER : 0;
}

/* Describes steps that gather x into expert order. Fused steps also quantise x. */
static void describe_gather(const struct mf_kernel *k, struct mf_step *s)
{
    const struct mf_shape *shape = &k->shape;
    double slots = mf_cpu_slots(shape), H = shape->model_dim;
    bool fused = k->kind != MF_MOVE_GATHER, sorts = k->kind == MF_MOVE_SORT_GATHER;

    mf_step_need(s, fused ? mf_cpu_bf16(MF_TENSOR_X, "token", 0) : mf_plain_x(shape));
    mf_step_need(s, sorts ? mf_cpu_topk() : mf_cpu_sorted(k->block_m));
    if (fused)
        need_calib(k, s);
    mf_step_give(s, mf_cpu_x_sorted(shape, k->block_m));
    if (sorts)
        mf_step_give(s, mf_cpu_sorted(k->block_m));
    s->bytes = slots * (mf_cpu_row_bytes(shape, (int64_t)H) + (sorts ? 16 : 0)) +
               (double)shape->token * (fused ? H * 2 : mf_cpu_row_bytes(shape, (int64_t)H));
}

static void describe_rows(const struct mf_kernel *k, struct mf_step *s)
{
    const struct mf_shape *shape = &k->shape;
    double slots = mf_cpu_slots(shape), H = shape->model_dim, I = shape->inter_dim;

    if (k->kind == MF_MOVE_QUANT1) {
        mf_step_need(s, mf_cpu_bf16(MF_TENSOR_X, "token", 0));
        need_calib(k, s);
        mf_step_give(s, mf_plain_x(shape));
        s->bytes = (double)shape->token * (H * 2 + mf_cpu_row_bytes(shape, (int64_t)H));
    } else if (k->kind == MF_MOVE_ACT) {
        mf_step_need(s, mf_cpu_bf16(MF_TENSOR_G, "sorted", k->block_m));
        mf_step_need(s, mf_cpu_sorted(k->block_m));
        if (shape->has_b1)
            mf_step_need(s, mf_plain_bias(MF_TENSOR_B1));
        mf_step_give(s, mf_cpu_bf16(MF_TENSOR_H, "sorted", k->block_m));
        s->bytes = slots * I * 6;
        s->flops = slots * I * 8;
    } else {
        mf_step_need(s, mf_cpu_bf16(MF_TENSOR_H, "sorted", k->block_m));
        mf_step_need(s, mf_cpu_sorted(k->block_m));
        need_calib(k, s);
        mf_step_give(s, mf_plain_h(shape, k->block_m));
        s->bytes = slots * (I * 2 + mf_cpu_row_bytes(shape, (int64_t)I));
    }
}

static void describe_combine(const struct mf_kernel *k, struct mf_step *s)
{
    const struct mf_shape *shape = &k->shape;
    double slots = mf_cpu_slots(shape), H = shape->model_dim;
    bool plain = k->kind == MF_MOVE_COMBINE;

    mf_step_need(s, mf_cpu_bf16(plain ? MF_TENSOR_Z : MF_TENSOR_ZW, "slot", 0));
    mf_step_need(s, mf_cpu_topk());
    mf_step_give(s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
    s->bytes = (slots + (double)shape->token) * H * 2;
    s->flops = slots * H * (plain ? 2 : 1);
}

static void describe_decoding(const struct mf_kernel *k, struct mf_step *s)
{
    const struct mf_shape *shape = &k->shape;
    double experts = mf_layer_expected_active(shape);
    enum mf_tensor w[2];
    int n = mf_move_decodes(k->kind, w);

    for (int i = 0; i < n; i++) {
        mf_step_need(s, mf_plain_w(shape, w[i], mf_cpu_layout(k->panel, false)->name));
        mf_step_give(s, mf_cpu_dequantised(w[i]));
        s->bytes += experts * mf_cpu_expert_bytes(shape, w[i]);
    }
    mf_step_need(s, mf_cpu_topk());
    s->bytes += mf_cpu_dequantised_bytes(shape, kinds[k->kind].decodes, experts);
}

static void describe(const struct mf_kernel *k, struct mf_step *ret)
{
    struct mf_step s = {.family = "move",
                        .stage = MF_STAGE_MOVE,
                        .covers = covers_of(k->kind, &k->shape),
                        .block_m = kinds[k->kind].blocks ? k->block_m : 0};

    print_name(k, s.name);
    switch (k->kind) {
    case MF_MOVE_SORT:
    case MF_MOVE_ALIGN:
    case MF_MOVE_FROM_ALIGNED:
        describe_sort(k, &s);
        break;
    case MF_MOVE_GATHER:
    case MF_MOVE_QUANT1_GATHER:
    case MF_MOVE_SORT_GATHER:
        describe_gather(k, &s);
        break;
    case MF_MOVE_QUANT1:
    case MF_MOVE_ACT:
    case MF_MOVE_QUANT2:
        describe_rows(k, &s);
        break;
    case MF_MOVE_COMBINE:
    case MF_MOVE_COMBINE_WEIGHTED:
        describe_combine(k, &s);
        break;
    case MF_MOVE_DEQUANT_W1:
    case MF_MOVE_DEQUANT_W2:
    case MF_MOVE_DEQUANT_W12:
        describe_decoding(k, &s);
        break;
    case MF_MOVE_N_:
        break;
    }
    s.workspace_bytes = k->thread_bytes * (size_t)k->threads + k->sort_bytes + k->map_bytes;
    *ret = s;
}

/* ---- enumerating ---- */

/* Callbacks for every step of the shape and for every refused variant. A non-zero result stops the
 * enumeration. */
struct each {
    const struct mf_shape *shape;
    int cores;
    /* true: also enumerate steps that are not worth trying for this token count. A row of a tuned table
     * applies to a range of token counts, so the steps of the row must open for fewer tokens as well. */
    bool legal;
    int (*step)(struct each *e, const struct mf_kernel *k);
    int (*refused)(struct each *e, const char *kernel, const struct mf_refusal *r); /* may be NULL */
    void *context;
};

static int report_refusal(struct each *e, const char *word, const char *variant, const struct mf_refusal *r)
{
    char kernel[64];

    if (!e->refused)
        return 0;
    (void)snprintf(kernel, sizeof(kernel), "%s%s", word, variant);
    return e->refused(e, kernel, r);
}

/* True if the step exists with this block_m. vLLM uses blocks of 16 rows or more; steps for vLLM's order
 * exist at both ends of the range. */
static bool has_block(enum mf_move_kind kind, int32_t block_m)
{
    return (kind != MF_MOVE_ALIGN && kind != MF_MOVE_FROM_ALIGNED) || block_m == 16 || block_m == 64;
}

static int each_block(struct each *e, enum mf_move_kind kind, int threads, enum mf_sort sort,
                      enum mf_move_way way)
{
    for (int b = 0; b < (kinds[kind].blocks ? MF_CPU_N_BLOCK_MS : 1); b++) {
        if (!has_block(kind, mf_cpu_block_ms[b]))
            continue;
        struct mf_kernel k = configure((struct mf_kernel){.kind = kind,
                                                          .shape = *e->shape,
                                                          .block_m = mf_cpu_block_ms[b],
                                                          .threads = threads,
                                                          .sort = sort,
                                                          .way = way});
        int r = e->step(e, &k);
        if (r != 0)
            return r;
    }
    return 0;
}

/* Tries every sort algorithm. Kind align is only for callers with vLLM's order, so one serial and one
 * threaded algorithm are enough for align. */
static int each_sort(struct each *e, enum mf_move_kind kind)
{
    int r = 0;

    for (enum mf_sort sort = MF_SORT_SERIAL; r == 0 && sort < MF_SORT_N_; sort++) {
        struct mf_refusal refusal;
        char variant[32];
        if (kind == MF_MOVE_ALIGN && sort != MF_SORT_SERIAL && sort != MF_SORT_STABLE)
            continue;
        (void)snprintf(variant, sizeof(variant), "_%s", mf_sort_name(sort));
        if (refuse_sort(sort, e->shape, e->cores, e->legal, &refusal))
            r = report_refusal(e, kinds[kind].word, variant, &refusal);
        else
            r = each_block(e, kind, sort_threads(sort, e->cores), sort, MF_MOVE_ROWS);
    }
    return r;
}

static int each_way(struct each *e, enum mf_move_kind kind, int threads)
{
    int r = 0;

    for (enum mf_move_way way = MF_MOVE_ROWS; r == 0 && way < (kinds[kind].gathers ? MF_MOVE_N_WAYS_ : 1);
         way++) {
        struct mf_refusal refusal;
        if (e->legal || !refuse_way(way, e->shape, &refusal))
            r = each_block(e, kind, threads, MF_SORT_SERIAL, way);
        /* this call is the last for its kind, so the refusal is reported once */
        else if (threads == e->cores)
            r = report_refusal(e, kinds[kind].word, way_words[way], &refusal);
    }
    return r;
}

/* Tries every layout that does not interleave gate and up; oneDNN has no interleaved layout. */
static int each_panel(struct each *e, enum mf_move_kind kind)
{
    static const int panels[] = {32, 16, 1};
    struct mf_refusal no;
    int r = 0;

    if (!mf_cpu_may_dequantise(e->shape, kinds[kind].decodes, e->legal, &no))
        return report_refusal(e, kinds[kind].word, "", &no);
    for (size_t p = 0; p < MF_ARRAY_LEN(panels) && r == 0; p++) {
        char variant[32];
        (void)snprintf(variant, sizeof(variant), "_%s", mf_cpu_layout(panels[p], false)->word);
        struct mf_kernel k = configure(
            (struct mf_kernel){.kind = kind, .shape = *e->shape, .threads = e->cores, .panel = panels[p]});
        r = panels_fit(kind, e->shape, panels[p], &no) ? e->step(e, &k)
                                                       : report_refusal(e, kinds[kind].word, variant, &no);
    }
    return r;
}

static int each(struct each *e)
{
    const struct mf_shape *s = e->shape;
    int least = s->token * s->topk > ROWS_OF_ONE && !e->legal ? e->cores : 1, r = 0;

    for (enum mf_move_kind kind = MF_MOVE_SORT; r == 0 && kind < MF_MOVE_N_; kind++) {
        struct mf_refusal no;
        if (!kind_applies(kind, s))
            continue;
        if (!may_cover(kind, s, &no)) {
            r = report_refusal(e, kinds[kind].word, "", &no);
            continue;
        }
        if (kinds[kind].decodes) {
            r = each_panel(e, kind);
            continue;
        }
        if (kinds[kind].sorts)
            r = each_sort(e, kind);
        else if (!kinds[kind].threads)
            r = each_block(e, kind, 1, MF_SORT_SERIAL, MF_MOVE_ROWS);
        else
            r = each_way(e, kind, least);
        /* Steps with a single pass are for many rows, so they use the same threads as the plain steps. */
        bool many_only = kind == MF_MOVE_SORT_GATHER || kind == MF_MOVE_QUANT1_GATHER;
        if (r == 0 && kinds[kind].threads && least < e->cores && (e->legal || !many_only))
            r = each_way(e, kind, e->cores);
    }
    return r;
}

static int offer_step(struct each *e, const struct mf_kernel *k)
{
    struct mf_offer *offer = e->context;
    struct mf_step step;

    describe(k, &step);
    return offer->step(offer, &step);
}

static int offer_refusal(struct each *e, const char *kernel, const struct mf_refusal *r)
{
    struct mf_offer *offer = e->context;

    return offer->reject(offer, "move", kernel, r->rule, "%s", r->reason);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct mf_refusal refusal;
    struct each e = {shape, device->cores, false, offer_step, offer_refusal, offer};

    if (!mf_cpu_shape_known(shape, &refusal))
        return offer->reject(offer, f->name, f->name, refusal.rule, "%s", refusal.reason);
    return each(&e);
}

struct search {
    const char *name;
    struct mf_kernel found;
};

static int match_name(struct each *e, const struct mf_kernel *k)
{
    struct search *s = e->context;
    char name[MF_STEP_NAME_MAX];

    print_name(k, name);
    if (strcmp(name, s->name) != 0)
        return 0;
    s->found = *k;
    return 1;
}

static bool is_kind_word(const char *name)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(kinds); i++) {
        if (strncmp(name, kinds[i].word, strlen(kinds[i].word)) == 0)
            return true;
    }
    return false;
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct search search = {.name = name};
    struct each e = {shape, device->info.cores, true, match_name, NULL, &search};
    struct mf_refusal refusal;

    (void)f;
    if (!is_kind_word(name))
        return -EINVAL;
    if (!mf_cpu_shape_known(shape, &refusal) || each(&e) != 1)
        return -ENOTSUP;
    struct mf_kernel *k = malloc(sizeof(*k));
    if (!k)
        return -ENOMEM;
    *k = search.found;
    *ret = k;
    return 0;
}

static void set_token_count(struct mf_kernel *k, int64_t token)
{
    k->shape.token = token;
    *k = configure(*k);
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    free(k);
    return NULL;
}

const struct mf_family mf_family_move = {
    .api = MF_FAMILY_API,
    .name = "move",
    .device_kind = "cpu",
    .enumerate = enumerate,
    .open = open_step,
    .launch = mf_move_run,
    .close = close_step,
    .set_token_count = set_token_count,
    .supports_ep = true,
};
