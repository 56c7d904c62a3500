/* Two-stage grouped GEMM on CPUs: the families two_stage (16- and 8-bit weights), two_stage_mx
 * (microscaled weights) and two_stage_int4, which differ only in the weights they accept. Step names:
 *
 *     s1_bf16_silu_m16_n32_k512_t2_p16[_near|_hw][_sk2][_x|_a16][_w][_q]   gather+gemm1+act, writes h
 *     s2_bf16_m16_n128_k192_t2_p16[_near|_hw]_z|zw|y                       gemm2, writes z, weighted z, or y
 *
 *     m16   rows per expert block               n32   columns per tile
 *     k512  elements of K per pass, for blocks with many bf16 rows
 *     t2    threads                             p16   weight layout; gu1, gu16, gu32: gate and up interleaved
 *     sk2   split-K: parts summed separately    _x    x is already in sorted order
 *     _a16  x is bf16 and quantised here        _w    routing weight applied before act
 *     _q    h is quantised
 *     _near, _hw   prefetch distance of the weights: MF_FETCH_NEAR bytes, or hardware prefetch only
 *                  (default: MF_FETCH_FAR bytes) */
#include "kernels/families/family_cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/layout.h"

enum reach { FAR, NEAR, HARDWARE, REACHES };

static const size_t fetches[] = {[FAR] = MF_FETCH_FAR, [NEAR] = MF_FETCH_NEAR, [HARDWARE] = MF_FETCH_NONE};
static const char *const reach_words[] = {[FAR] = "", [NEAR] = "_near", [HARDWARE] = "_hw"};

enum out { TO_H, TO_HQ, TO_Z, TO_ZW, TO_Y };

enum from { FROM_X, FROM_SORTED, FROM_BF16 };

static const char *const from_words[] = {[FROM_X] = "", [FROM_SORTED] = "_x", [FROM_BF16] = "_a16"};
static const char *const out_words[] = {
    [TO_H] = "", [TO_HQ] = "_q", [TO_Z] = "_z", [TO_ZW] = "_zw", [TO_Y] = "_y"};

struct config {
    int stage; /* 1, 2 */
    int block_m, block_n, block_k, threads, panel;
    bool alternating; /* w1 interleaves gate and up */
    enum reach reach; /* prefetch distance of the weights */
    int ksplit;       /* 1: no split-K */
    enum from from;
    enum out out;
};

struct mf_kernel {
    const char *family;
    struct config config;
    struct mf_stage_plan plan;
    size_t h_bytes; /* workspace: bf16 h before its quantisation */
    size_t partial; /* then the partial sums of split-K */
    size_t room;    /* then one area of this size per thread */
    const struct mf_launch *launch;
};

static void print_name(const struct config *c, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    const char *layout = mf_cpu_layout(c->panel, c->alternating)->word;
    const char *reach = reach_words[c->reach];
    char format[MF_FORMAT_WORD_MAX], split[16] = "";

    mf_cpu_format_word(s, format);
    if (c->ksplit > 1)
        (void)snprintf(split, sizeof(split), "_sk%d", c->ksplit);
    if (c->stage == 1)
        (void)snprintf(buf, MF_STEP_NAME_MAX, "s1_%s_%s_m%d_n%d_k%d_t%d_%s%s%s%s%s%s", format,
                       mf_cpu_act_word(s), c->block_m, c->block_n, c->block_k, c->threads, layout, reach,
                       split, from_words[c->from], s->doweight_stage1 ? "_w" : "", out_words[c->out]);
    else
        (void)snprintf(buf, MF_STEP_NAME_MAX, "s2_%s_m%d_n%d_k%d_t%d_%s%s%s", format, c->block_m, c->block_n,
                       c->block_k, c->threads, layout, reach, out_words[c->out]);
}

static int plan_of(const struct config *c, const struct mf_shape *s, struct mf_stage_plan *ret)
{
    *ret = (struct mf_stage_plan){
        .ops = mf_cpu_ops(mf_isa_best()),
        .panel = c->panel,
        .gate_rows = c->alternating ? mf_cpu_layout(c->panel, true)->gate_rows : 0,
        .block_m = c->block_m,
        .block_n = c->block_n,
        .block_k = c->block_k,
        .fetch = fetches[c->reach],
        .threads = c->threads,
        .ksplit = c->ksplit,
        .gather = c->stage == 1 && c->from != FROM_SORTED,
        .quantise_x = c->from == FROM_BF16,
        .quantise = c->out == TO_HQ,
        .weighted = c->stage == 1 ? s->doweight_stage1 : !s->doweight_stage1 && c->out != TO_Z,
        .out = c->out == TO_Y ? MF_STAGE2_ADD : MF_STAGE2_STORE,
    };
    return mf_stage_plan_shape(ret, s);
}

/* ---- the grid ---- */

#define N_MAX 4

/* Chooses up to `most` tile widths that divide n and returns their number. The candidates start with a
 * narrow width, which balances load when few experts are active, and a wide one, which keeps more
 * accumulators in registers. */
static int choose_columns(const int *candidates, size_t n_candidates, int n, int panel, int most,
                          int out[N_MAX])
{
    int found = 0;

    for (size_t i = 0; i < n_candidates && found < most; i++) {
        if (candidates[i] <= n && n % candidates[i] == 0 && candidates[i] % panel == 0)
            out[found++] = candidates[i];
    }
    if (found == 0 && n % panel == 0 && n <= 4096)
        out[found++] = n;
    return found;
}

static const int stage1_columns[] = {32, 96, 64, 48, 16, 128, 8};
static const int stage2_columns[] = {64, 256, 128, 32, 16, 8};

struct widths {
    const int *candidates;
    size_t n;
};

static struct widths widths_of(int stage)
{
    return stage == 1 ? (struct widths){stage1_columns, MF_ARRAY_LEN(stage1_columns)}
                      : (struct widths){stage2_columns, MF_ARRAY_LEN(stage2_columns)};
}

typedef int (*each_fn)(void *context, const struct config *c);

static bool layout_fits(const struct mf_shape *s, int stage, int panel)
{
    const struct mf_layout *l = mf_cpu_layout(panel, false);
    size_t n = stage == 1 ? (size_t)s->inter_dim : (size_t)s->model_dim;
    size_t k = stage == 1 ? (size_t)s->model_dim : (size_t)s->inter_dim;

    return mf_layout_legal(l, mf_cpu_weight_bits(s), n, k);
}

static int k_pieces(const struct mf_shape *s, int K, int out[2])
{
    bool bf16 = mf_cpu_weight_bits(s) == 16;

    out[0] = s->q_type == MF_QTYPE_PER_1X128 ? 128 : 512;
    if (out[0] > K)
        out[0] = K;
    /* only blocks with many bf16 rows process K in pieces */
    out[1] = K;
    return bf16 && K > out[0] ? 2 : 1;
}

/* Input and output of a step: one form for each set of ops that a stage can cover. */
static const struct form {
    int stage;
    enum from from;
    enum out out;
    const char *word; /* kernel name in rejections of the form */
} forms[] = {
    {1, FROM_X, TO_H, "s1"},        {1, FROM_X, TO_HQ, "s1_q"},        {1, FROM_SORTED, TO_H, "s1_x"},
    {1, FROM_BF16, TO_H, "s1_a16"}, {1, FROM_BF16, TO_HQ, "s1_a16_q"}, {2, FROM_X, TO_Z, "s2_z"},
    {2, FROM_X, TO_ZW, "s2_zw"},    {2, FROM_X, TO_Y, "s2_y"},
};

static mf_ops covers_of(const struct mf_shape *s, int stage, enum from from, enum out out)
{
    mf_ops weight = MF_OP_BIT(MF_OP_WEIGHT);

    if (stage == 1)
        return MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT) |
               (from == FROM_SORTED ? 0 : MF_OP_BIT(MF_OP_GATHER)) |
               (from == FROM_BF16 ? MF_OP_BIT(MF_OP_QUANT1) : 0) | (s->doweight_stage1 ? weight : 0) |
               (out == TO_HQ ? MF_OP_BIT(MF_OP_QUANT2) : 0);
    return MF_OP_BIT(MF_OP_GEMM2) | (s->doweight_stage1 || out == TO_Z ? 0 : weight) |
           (out == TO_Y ? MF_OP_BIT(MF_OP_COMBINE) : 0);
}

/* True if the form is meaningful for the shape. */
static bool form_exists(const struct form *f, const struct mf_shape *s)
{
    bool quantises = f->out == TO_HQ || f->from == FROM_BF16;
    return quantises ? mf_cpu_quantises(s) : f->out != TO_ZW || !s->doweight_stage1;
}

/* True if the fusion rules allow the form. A thread gathers the rows of a block once for all its tiles, and
 * threads synchronise between gemm1 and quant2, so whole rows are available. A thread owns columns of the
 * output and adds all slots of a token. The rows of x that a thread quantises stay in a buffer, which limits
 * the token count. */
static bool form_allowed(const struct form *f, const struct mf_shape *s, struct mf_refusal *ret)
{
    const struct mf_fusion_caps caps = {
        .prologue = MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_QUANT1),
        .epilogue = MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_QUANT2) |
                    MF_OP_BIT(MF_OP_COMBINE),
        .whole_rows = true,
        .accumulates = true,
        .tokens_max = f->from == FROM_BF16 ? MF_QUANTISE_X_TOKENS : 0,
    };

    return mf_cpu_may_cover(s, covers_of(s, f->stage, f->from, f->out), mf_cpu_block_ms[0], &caps, ret);
}

/* Bit i is set if the shape has forms[i] and the fusion rules allow that form. */
typedef unsigned form_set;

static form_set allowed_forms(const struct mf_shape *s)
{
    struct mf_refusal no;
    form_set allowed = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(forms); i++)
        allowed |= form_exists(&forms[i], s) && form_allowed(&forms[i], s, &no) ? 1u << i : 0;
    return allowed;
}

/* Calls f for the forms of a stage that read x as the layer provides it. Form zw costs one more
 * multiplication per row than form z, so zw is offered in one layout only. */
static int each_form(form_set allowed, struct config c, each_fn f, void *context)
{
    int r = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(forms) && r == 0; i++) {
        if (!(allowed & 1u << i) || forms[i].stage != c.stage || forms[i].from != FROM_X ||
            (forms[i].out == TO_ZW && c.panel != 32))
            continue;
        c.out = forms[i].out;
        r = f(context, &c);
    }
    return r;
}

/* True if blocks have so few rows that memory bandwidth limits the step. Then the prefetch distance and the
 * division of columns among threads matter, and the length of the pieces of K does not. */
static bool streams_weights(const struct config *c)
{
    return c->block_m == mf_cpu_block_ms[0];
}

/* Calls f for every prefetch distance, or only for FAR if the distance makes no difference. */
static int each_reach(const struct mf_shape *s, form_set allowed, struct config c, each_fn f, void *context)
{
    struct mf_stage_plan plan;
    bool matters = streams_weights(&c) && plan_of(&c, s, &plan) == 0 && mf_stage_prefetches(&plan);
    enum reach end = matters ? REACHES : FAR + 1;
    int r = 0;

    for (c.reach = FAR; c.reach < end && r == 0; c.reach++)
        r = each_form(allowed, c, f, context);
    return r;
}

/* Returns the number of tile widths to try. The number is lower if there are more forms or larger blocks, to
 * bound the tuning time. */
static int most_widths(const struct mf_shape *s, const struct config *c)
{
    if (!streams_weights(c))
        return c->panel == 1 || c->alternating ? 1 : 2;
    if (c->alternating)
        return mf_cpu_quantises(s) ? 1 : N_MAX;
    return c->stage == 1 ? N_MAX : 3;
}

/* Calls f for one configuration if its form is allowed. */
static int in_form(form_set allowed, const struct config *c, each_fn f, void *context)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(forms); i++) {
        if ((allowed & 1u << i) && forms[i].stage == c->stage && forms[i].from == c->from &&
            forms[i].out == c->out)
            return f(context, c);
    }
    return 0;
}

/* Split-K as in AITER's kernels: 2 to 8 equal parts, each a multiple of a scale block. */
#define KSPLIT_MAX 8

static bool ksplit_legal(const struct mf_shape *s, int ksplit)
{
    return s->model_dim % ksplit == 0 && s->model_dim / ksplit % MF_SPLIT_K == 0;
}

/* Returns the expected number of tiles per thread. */
static double tiles_of_thread(const struct mf_shape *s, int block_n, int threads)
{
    return mf_layer_expected_active(s) * ((s->inter_dim + block_n - 1) / block_n) / threads;
}

/* Split-K improves the load balance if there are few tiles. With enough tiles, or if a weight is read for
 * several rows, the cost of adding the parts outweighs the better balance. */
#define TILES_ENOUGH 4

static bool ksplit_pays(const struct mf_shape *s, int block_n, int threads)
{
    return mf_cpu_slots(s) <= s->expert && tiles_of_thread(s, block_n, threads) < TILES_ENOUGH;
}

static int each_split(const struct mf_shape *s, form_set allowed, struct config c, each_fn f, void *context)
{
    int r = 0;

    if (!ksplit_pays(s, c.block_n, c.threads) || c.block_m != mf_cpu_block_ms[0])
        return 0;
    for (c.ksplit = 2; c.ksplit <= KSPLIT_MAX && r == 0; c.ksplit++) {
        for (c.out = TO_H; c.out <= TO_HQ && r == 0 && ksplit_legal(s, c.ksplit); c.out++)
            r = in_form(allowed, &c, f, context);
    }
    return r;
}

/* Calls f for steps that quantise x. Such steps are for few tokens, so they exist only for the two smallest
 * block sizes. */
static int each_from_bf16(form_set allowed, struct config c, each_fn f, void *context)
{
    int r = 0;

    c.from = FROM_BF16;
    for (c.out = TO_H; c.out <= TO_HQ && r == 0 && c.block_m <= mf_cpu_block_ms[1]; c.out++)
        r = in_form(allowed, &c, f, context);
    return r;
}

/* Calls f for further variants: bf16 x, split-K, x in sorted order, one thread. These variants exist for few
 * parameter values only, to bound the tuning time. */
static int each_further(const struct mf_shape *s, form_set allowed, struct config c, each_fn f, void *context)
{
    int r = 0, cores = c.threads;

    if (c.panel == 32 && c.stage == 1)
        r = each_from_bf16(allowed, c, f, context);
    if (r == 0 && c.panel > 1 && c.stage == 1)
        r = each_split(s, allowed, c, f, context);
    if (r != 0 || c.panel != 32)
        return r;
    c.threads = 1;
    c.out = c.stage == 1 ? TO_H : TO_Y;
    if (cores > 1)
        r = in_form(allowed, &c, f, context);
    c.threads = cores;
    c.from = FROM_SORTED;
    return r == 0 ? in_form(allowed, &c, f, context) : r;
}

/* Calls f for every tile width and length of the pieces of K with all threads. Further variants use the
 * first width and the last length, or with `legal` every length. */
static int each_of_panel(const struct mf_shape *s, int cores, bool legal, form_set allowed, struct config c,
                         each_fn f, void *context)
{
    struct widths widths = widths_of(c.stage);
    int N = c.stage == 1 ? s->inter_dim : s->model_dim, K = c.stage == 1 ? s->model_dim : s->inter_dim;
    int columns[N_MAX], pieces[2];
    int n_columns = choose_columns(widths.candidates, widths.n, N, c.panel, most_widths(s, &c), columns);
    int n_pieces = c.panel == 1 ? 1 : k_pieces(s, K, pieces);
    int r = 0;

    if (c.panel == 1)
        pieces[0] = K;
    if (c.stage == 2 || c.alternating || (streams_weights(&c) && !legal))
        n_pieces = 1;
    c.ksplit = 1;
    c.threads = cores;
    for (int i = 0; i < n_columns && r == 0; i++) {
        for (int j = 0; j < n_pieces && r == 0; j++) {
            c.block_n = columns[i];
            c.block_k = pieces[j];
            r = each_reach(s, allowed, c, f, context);
            if (r == 0 && i == 0 && !c.alternating && (legal || j + 1 == n_pieces))
                r = each_further(s, allowed, c, f, context);
        }
    }
    return r;
}

/* Calls f for every configuration of a stage. legal: true includes configurations that are not worth trying.
 */
static int each(const struct mf_shape *s, int cores, int stage, bool legal, each_fn f, void *context)
{
    static const int panels[] = {16, 32, 1};
    form_set allowed = allowed_forms(s);
    int r = 0;

    for (size_t p = 0; p < MF_ARRAY_LEN(panels) && r == 0; p++) {
        for (size_t b = 0; b < MF_CPU_N_BLOCK_MS && r == 0; b++) {
            struct config c = {.stage = stage, .panel = panels[p], .block_m = mf_cpu_block_ms[b]};
            struct mf_refusal no;
            if (!legal && !mf_cpu_block_pays(s, mf_cpu_block_ms, b, &no))
                continue;
            if (layout_fits(s, stage, c.panel))
                r = each_of_panel(s, cores, legal, allowed, c, f, context);
            c.alternating = stage == 1 && mf_cpu_may_alternate(s, c.panel, &no);
            if (r == 0 && c.alternating)
                r = each_of_panel(s, cores, legal, allowed, c, f, context);
        }
    }
    return r;
}

/* ---- steps ---- */

static struct mf_kernel configure(const char *family, const struct config *c, const struct mf_shape *s)
{
    struct mf_kernel k = {.family = family, .config = *c};

    (void)plan_of(c, s, &k.plan);
    k.room = c->stage == 1 ? mf_stage1_workspace(&k.plan) : mf_stage2_workspace(&k.plan);
    if (c->out == TO_HQ)
        k.h_bytes = ((size_t)mf_padded_rows(s, c->block_m) * (size_t)s->inter_dim * 2 + 63) / 64 * 64;
    k.partial = c->stage == 1 ? mf_stage1_partial(&k.plan) : 0;
    return k;
}

static void describe_stage1(const struct mf_kernel *k, struct mf_step *s)
{
    const struct mf_shape *shape = &k->plan.shape;
    int32_t bm = k->config.block_m;
    double slots = mf_cpu_slots(shape), H = shape->model_dim, I = shape->inter_dim;
    bool quantised = k->config.out == TO_HQ, from_bf16 = k->config.from == FROM_BF16;

    s->stage = MF_STAGE_STAGE1;
    s->ksplit = k->config.ksplit > 1 ? k->config.ksplit : 0;
    s->covers = covers_of(shape, 1, k->config.from, k->config.out);
    mf_step_need(s, from_bf16                       ? mf_cpu_bf16(MF_TENSOR_X, "token", 0)
                    : k->config.from == FROM_SORTED ? mf_cpu_x_sorted(shape, bm)
                                                    : mf_plain_x(shape));
    mf_step_need(s, mf_cpu_sorted(bm));
    mf_step_need(
        s, mf_plain_w(shape, MF_TENSOR_W1, mf_cpu_layout(k->config.panel, k->config.alternating)->name));
    if ((quantised || from_bf16) && k->plan.codecs.a->global)
        mf_step_need(s, mf_cpu_calib());
    if (shape->has_b1)
        mf_step_need(s, mf_plain_bias(MF_TENSOR_B1));
    mf_step_give(s, quantised ? mf_plain_h(shape, bm) : mf_cpu_bf16(MF_TENSOR_H, "sorted", bm));
    s->flops = slots * 4 * H * I;
    s->bytes = mf_layer_expected_active(shape) * mf_cpu_expert_bytes(shape, MF_TENSOR_W1) +
               (double)shape->token * (from_bf16 ? H * 2 : mf_cpu_row_bytes(shape, (int64_t)H)) +
               slots * (quantised ? mf_cpu_row_bytes(shape, (int64_t)I) : I * 2);
}

static void describe_stage2(const struct mf_kernel *k, struct mf_step *s)
{
    const struct mf_shape *shape = &k->plan.shape;
    int32_t bm = k->config.block_m;
    double slots = mf_cpu_slots(shape), H = shape->model_dim, I = shape->inter_dim;
    enum out out = k->config.out;

    s->stage = MF_STAGE_STAGE2;
    s->covers = covers_of(shape, 2, FROM_X, out);
    mf_step_need(s, mf_plain_h(shape, bm));
    mf_step_need(s, mf_cpu_sorted(bm));
    mf_step_need(s, mf_plain_w(shape, MF_TENSOR_W2, mf_cpu_layout(k->config.panel, false)->name));
    if (shape->has_b2)
        mf_step_need(s, mf_plain_bias(MF_TENSOR_B2));
    mf_step_give(s, out == TO_Y ? mf_cpu_bf16(MF_TENSOR_Y, "token", 0)
                                : mf_cpu_bf16(out == TO_Z ? MF_TENSOR_Z : MF_TENSOR_ZW, "slot", 0));
    s->flops = slots * 2 * H * I;
    s->bytes = mf_layer_expected_active(shape) * mf_cpu_expert_bytes(shape, MF_TENSOR_W2) +
               slots * mf_cpu_row_bytes(shape, (int64_t)I) +
               (out == TO_Y ? (double)shape->token : slots) * H * 2;
}

static void describe(const struct mf_kernel *k, struct mf_step *ret)
{
    struct mf_step s = {.block_m = k->config.block_m};

    (void)snprintf(s.family, sizeof(s.family), "%s", k->family);

    print_name(&k->config, &k->plan.shape, s.name);
    if (k->config.stage == 1)
        describe_stage1(k, &s);
    else
        describe_stage2(k, &s);
    s.workspace_bytes = k->h_bytes + k->partial + k->room * (size_t)k->config.threads;
    *ret = s;
}

struct walk {
    const char *family;
    const struct mf_shape *shape;
    struct mf_offer *offer;
    const char *name; /* name of the wanted step */
    struct config found;
};

static int offer_step(void *context, const struct config *c)
{
    struct walk *w = context;
    struct mf_kernel k = configure(w->family, c, w->shape);
    struct mf_step step;

    describe(&k, &step);
    return w->offer->step(w->offer, &step);
}

/* Rejects each layout that does not fit a stage. */
static int reject_layouts(const struct mf_family *f, const struct mf_shape *s, struct mf_offer *offer)
{
    for (int stage = 1; stage <= 2; stage++) {
        for (int panel = 16; panel <= 32; panel += 16) {
            char kernel[32];
            int n = stage == 1 ? s->inter_dim : s->model_dim, k = stage == 1 ? s->model_dim : s->inter_dim;
            int group = 32 / mf_cpu_weight_bits(s);
            if (layout_fits(s, stage, panel))
                continue;
            (void)snprintf(kernel, sizeof(kernel), "s%d_%s", stage, mf_cpu_layout(panel, false)->word);
            int r = offer->reject(offer, f->name, kernel, "divisibility",
                                  "w%d has %d rows%s of %d elements; layout %s needs a multiple of %d rows "
                                  "(remainder %d) and of "
                                  "%d elements (remainder %d)",
                                  stage, n, stage == 1 ? " each of gate and up" : "", k,
                                  mf_cpu_layout(panel, false)->name, panel, n % panel, group, k % group);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* Rejects each form that the fusion rules refuse. */
static int reject_forms(const struct mf_family *f, const struct mf_shape *s, struct mf_offer *offer)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(forms); i++) {
        struct mf_refusal no;
        if (!form_exists(&forms[i], s) || form_allowed(&forms[i], s, &no))
            continue;
        int r = offer->reject(offer, f->name, forms[i].word, no.rule, "%s", no.reason);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Rejects each tile width that does not divide the columns of its stage. */
static int reject_widths(const struct mf_family *f, const struct mf_shape *s, struct mf_offer *offer)
{
    for (int stage = 1; stage <= 2; stage++) {
        struct widths widths = widths_of(stage);
        int n = stage == 1 ? s->inter_dim : s->model_dim;
        for (size_t i = 0; i < widths.n; i++) {
            char kernel[32];
            if (n % widths.candidates[i] == 0)
                continue;
            (void)snprintf(kernel, sizeof(kernel), "s%d_n%d", stage, widths.candidates[i]);
            int r = offer->reject(offer, f->name, kernel, "divisibility",
                                  "%s %d is not a multiple of block_n %d (remainder %d)",
                                  stage == 1 ? "inter_dim" : "model_dim", n, widths.candidates[i],
                                  n % widths.candidates[i]);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* Rejects split-K as a whole if it does not pay off. Otherwise rejects each number of parts that does not
 * divide K. */
static int reject_splits(const struct mf_family *f, const struct mf_shape *s, int threads,
                         struct mf_offer *offer)
{
    int columns[N_MAX], r = 0, H = s->model_dim;
    struct widths widths = widths_of(1);

    if (!layout_fits(s, 1, 16) ||
        choose_columns(widths.candidates, widths.n, s->inter_dim, 16, 1, columns) == 0)
        return 0; /* reject_layouts or reject_widths has reported the reason */
    if (mf_cpu_slots(s) > s->expert)
        return offer->reject(offer, f->name, "s1_sk", "ksplit",
                             "split-K does not pay for %.0f routes over %d experts: weights are read for "
                             "several rows, and every "
                             "row would need its parts of K added",
                             mf_cpu_slots(s), s->expert);
    if (!ksplit_pays(s, columns[0], threads))
        return offer->reject(
            offer, f->name, "s1_sk", "ksplit",
            "each of %d threads has %.1f tiles of %d columns; from %d tiles per thread the load is balanced "
            "without split-K",
            threads, tiles_of_thread(s, columns[0], threads), columns[0], TILES_ENOUGH);
    for (int n = 2; n <= KSPLIT_MAX && r == 0; n++) {
        char kernel[32];
        (void)snprintf(kernel, sizeof(kernel), "s1_sk%d", n);
        if (!ksplit_legal(s, n))
            r = offer->reject(
                offer, f->name, kernel, "divisibility",
                "model_dim %d cannot be split into %d parts (remainder %d) of whole blocks of %d "
                "(a part of %d has remainder %d)",
                H, n, H % n, MF_SPLIT_K, H / n, H / n % MF_SPLIT_K);
    }
    return r;
}

/* Rejects each block_m that is not worth trying. */
static int reject_blocks(const struct mf_family *f, const struct mf_shape *s, struct mf_offer *offer)
{
    int r = 0;

    for (int stage = 1; stage <= 2; stage++) {
        for (size_t b = 0; b < MF_CPU_N_BLOCK_MS && r == 0; b++) {
            struct mf_refusal no;
            char kernel[32];
            (void)snprintf(kernel, sizeof(kernel), "s%d_m%d", stage, mf_cpu_block_ms[b]);
            if (!mf_cpu_block_pays(s, mf_cpu_block_ms, b, &no))
                r = offer->reject(offer, f->name, kernel, no.rule, "%s", no.reason);
        }
    }
    return r;
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct walk w = {.family = f->name, .shape = shape, .offer = offer};
    struct mf_refusal refusal;
    int r;

    if (!mf_cpu_family_takes(f->name, shape, &refusal))
        return offer->reject(offer, f->name, f->name, refusal.rule, "%s", refusal.reason);
    r = reject_layouts(f, shape, offer);
    if (r == 0)
        r = mf_cpu_reject_alternating(f, "s1_", shape, offer);
    if (r == 0)
        r = reject_widths(f, shape, offer);
    if (r == 0)
        r = reject_forms(f, shape, offer);
    if (r == 0)
        r = reject_splits(f, shape, device->cores, offer);
    if (r == 0)
        r = reject_blocks(f, shape, offer);
    for (int stage = 1; stage <= 2 && r == 0; stage++)
        r = each(shape, device->cores, stage, false, offer_step, &w);
    return r;
}

static int match_name(void *context, const struct config *c)
{
    struct walk *w = context;
    char name[MF_STEP_NAME_MAX];

    print_name(c, w->shape, name);
    if (strcmp(name, w->name) != 0)
        return 0;
    w->found = *c;
    return 1;
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct walk w = {.shape = shape, .name = name};
    struct mf_refusal refusal;
    bool first = strncmp(name, "s1_", 3) == 0;

    if (!first && strncmp(name, "s2_", 3) != 0)
        return -EINVAL;
    if (!mf_cpu_family_takes(f->name, shape, &refusal) ||
        each(shape, device->info.cores, first ? 1 : 2, true, match_name, &w) != 1)
        return -ENOTSUP;
    struct mf_kernel *k = malloc(sizeof(*k));
    if (!k)
        return -ENOMEM;
    *k = configure(f->name, &w.found, shape);
    *ret = k;
    return 0;
}

static void run_stage1(void *context, int thread, int n_threads)
{
    const struct mf_kernel *k = context;
    const struct mf_tensor_ref *needs = k->launch->needs, *give = &k->launch->gives[0];
    char *workspace = k->launch->workspace;
    struct mf_stage1_args a = {
        .sorted = mf_cpu_sorted_view(&needs[1]),
        .x = needs[0],
        .w = needs[2],
        .h = give->part[0],
        .partial = (void *)(workspace + k->h_bytes),
        .workspace = workspace + k->h_bytes + k->partial + (size_t)thread * k->room,
    };

    int at = 3;

    if (k->config.out == TO_HQ) {
        a.h = (void *)workspace;
        a.h_q = *give;
    }
    if ((k->plan.quantise || k->plan.quantise_x) && k->plan.codecs.a->global)
        a.calib = needs[at++].part[0];
    a.bias = k->plan.shape.has_b1 ? needs[at].part[0] : NULL;
    mf_stage1_run(&k->plan, &a, thread, n_threads);
}

static void run_stage2(void *context, int thread, int n_threads)
{
    const struct mf_kernel *k = context;
    const struct mf_tensor_ref *needs = k->launch->needs;
    struct mf_stage2_args a = {
        .sorted = mf_cpu_sorted_view(&needs[1]),
        .h = needs[0],
        .w = needs[2],
        .bias = k->plan.shape.has_b2 ? needs[3].part[0] : NULL,
        .out = k->launch->gives[0].part[0],
        .workspace = (char *)k->launch->workspace + (size_t)thread * k->room,
    };

    mf_stage2_run(&k->plan, &a, thread, n_threads);
}

static int launch_step(struct mf_kernel *k, const struct mf_launch *l)
{
    k->launch = l;
    mf_pool_run(k->config.stage == 1 ? run_stage1 : run_stage2, k, k->config.threads);
    return 0;
}

static void set_token_count(struct mf_kernel *k, int64_t token)
{
    const struct config c = k->config;
    struct mf_shape s = k->plan.shape;

    s.token = token;
    *k = configure(k->family, &c, &s);
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    free(k);
    return NULL;
}

/* clang-format off */
#define TWO_STAGE(which)                                                                                \
    const struct mf_family mf_family_##which = {                                                        \
        .api = MF_FAMILY_API, .name = #which, .device_kind = "cpu", .enumerate = enumerate,             \
        .open = open_step, .launch = launch_step, .close = close_step,                                  \
        .set_token_count = set_token_count, .supports_ep = true,                                             \
    }
/* clang-format on */
TWO_STAGE(two_stage);
TWO_STAGE(two_stage_mx);
TWO_STAGE(two_stage_int4);
