/* Family one_stage on CPUs: the whole layer in one launch, for few tokens. Every thread sorts all routes
 * itself, which is cheaper than waiting for another thread. A barrier separates the two GEMM stages; y is the
 * only output.
 *
 *     one_bf16_silu_n32_c256_t2_p16    n: tile columns of stage 1, c: columns of y per tile */
#include "kernels/families/family_cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/layout.h"

#define TOKENS_MAX 16
#define SLOTS_MAX  1024
#define BLOCK_M    16 /* an expert has at most one row per token, and so at most TOKENS_MAX rows */

struct config {
    int block_n, columns, threads, panel;
    bool alternating; /* w1 interleaves gate and up */
};

/* Workspace: a shared area, then one area per thread. Offsets in bytes. */
struct room_map {
    size_t x_q[MF_PARTS_MAX], h, h_q[MF_PARTS_MAX], shared_bytes;
    size_t ids, weights, experts, num_valid, sort, stage, thread_bytes;
};

struct mf_kernel {
    struct config config;
    struct mf_stage_plan plan1, plan2;
    struct room_map map;
    const struct mf_launch *launch;
    int error; /* error of the running launch, the same for all threads */
};

static void print_name(const struct config *c, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    char format[MF_FORMAT_WORD_MAX];

    mf_cpu_format_word(s, format);
    (void)snprintf(buf, MF_STEP_NAME_MAX, "one_%s_%s_n%d_c%d_t%d_%s%s", format, mf_cpu_act_word(s),
                   c->block_n, c->columns, c->threads, mf_cpu_layout(c->panel, c->alternating)->word,
                   s->doweight_stage1 ? "_w" : "");
}

static size_t take(size_t *at, size_t bytes)
{
    size_t here = *at;

    *at += (bytes + 63) / 64 * 64;
    return here;
}

static void take_tensor_spec(size_t *at, const struct mf_shape *s, struct mf_tensor_spec a,
                             size_t offsets[MF_PARTS_MAX])
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(&a, s, parts);

    for (int i = 0; i < n; i++)
        offsets[i] = take(at, (size_t)mf_part_bytes(&parts[i]));
}

static struct mf_tensor_ref at_offsets(char *base, const size_t offsets[MF_PARTS_MAX])
{
    struct mf_tensor_ref ref;

    for (int i = 0; i < MF_PARTS_MAX; i++)
        ref.part[i] = base + offsets[i];
    return ref;
}

static struct room_map map_rooms(const struct mf_kernel *k)
{
    const struct mf_shape *s = &k->plan1.shape;
    size_t H = (size_t)s->model_dim, I = (size_t)s->inter_dim, at = 0;
    size_t P = (size_t)mf_padded_rows(s, BLOCK_M), stage1 = mf_stage1_workspace(&k->plan1);
    size_t stage2 = mf_stage2_workspace(&k->plan2);
    struct mf_moe_sort sort = mf_cpu_sort(s, NULL, (struct mf_route_types){0}, BLOCK_M);
    struct room_map m = {0};

    if (mf_cpu_quantises(s)) {
        take_tensor_spec(&at, s, mf_plain_x(s), m.x_q);
        take_tensor_spec(&at, s, mf_plain_h(s, BLOCK_M), m.h_q);
    }
    m.h = take(&at, P * I * 2);
    m.shared_bytes = at;
    at = 0;
    m.ids = take(&at, P * 4);
    m.weights = take(&at, P * 4);
    m.experts = take(&at, P / BLOCK_M * 4);
    m.num_valid = take(&at, 2 * 4);
    m.sort = take(&at, mf_moe_sort_workspace(MF_SORT_ONE, &sort, 1));
    m.stage = take(&at, MF_MAX(MF_MAX(stage1, stage2), H * 4));
    m.thread_bytes = at;
    return m;
}

static struct mf_kernel configure(const struct config *c, const struct mf_shape *s)
{
    struct mf_kernel k = {.config = *c};

    k.plan1 = (struct mf_stage_plan){
        .ops = mf_cpu_ops(mf_isa_best()),
        .panel = c->panel,
        .gate_rows = c->alternating ? mf_cpu_layout(c->panel, true)->gate_rows : 0,
        .block_m = BLOCK_M,
        .block_n = c->block_n,
        .fetch = MF_FETCH_FAR,
        .threads = c->threads,
        .gather = true,
        .quantise = mf_cpu_quantises(s),
        .weighted = s->doweight_stage1,
    };
    (void)mf_stage_plan_shape(&k.plan1, s);
    k.plan2 = k.plan1;
    k.plan2.block_n = c->columns;
    k.plan2.gate_rows = 0;
    k.plan2.weighted = !s->doweight_stage1;
    k.plan2.out = MF_STAGE2_ADD;
    k.map = map_rooms(&k);
    return k;
}

static void describe(const struct mf_kernel *k, struct mf_step *ret)
{
    const struct mf_shape *shape = &k->plan1.shape;
    const struct mf_layout *w1 = mf_cpu_layout(k->config.panel, k->config.alternating),
                           *w2 = mf_cpu_layout(k->config.panel, false);
    struct mf_step s = {.family = "one_stage", .stage = MF_STAGE_ONE, .covers = mf_layer_ops(shape)};
    double T = (double)shape->token, H = shape->model_dim, slots = mf_cpu_slots(shape);

    print_name(&k->config, shape, s.name);
    mf_step_need(&s, mf_cpu_bf16(MF_TENSOR_X, "token", 0));
    mf_step_need(&s, mf_cpu_topk());
    mf_step_need(&s, mf_plain_w(shape, MF_TENSOR_W1, w1->name));
    mf_step_need(&s, mf_plain_w(shape, MF_TENSOR_W2, w2->name));
    if (k->plan1.codecs.a->global)
        mf_step_need(&s, mf_cpu_calib());
    if (shape->has_b1)
        mf_step_need(&s, mf_plain_bias(MF_TENSOR_B1));
    if (shape->has_b2)
        mf_step_need(&s, mf_plain_bias(MF_TENSOR_B2));
    mf_step_give(&s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
    s.workspace_bytes = k->map.shared_bytes + k->map.thread_bytes * (size_t)k->config.threads;
    s.flops = slots * 6 * H * shape->inter_dim;
    s.bytes = mf_layer_expected_active(shape) *
                  (mf_cpu_expert_bytes(shape, MF_TENSOR_W1) + mf_cpu_expert_bytes(shape, MF_TENSOR_W2)) +
              T * H * 4;
    *ret = s;
}

/* ---- which steps ---- */

static bool layout_fits(const struct mf_shape *s, int panel)
{
    const struct mf_layout *l = mf_cpu_layout(panel, false);
    int bits = mf_cpu_weight_bits(s);
    size_t H = (size_t)s->model_dim, I = (size_t)s->inter_dim;

    return mf_layout_legal(l, bits, I, H) && mf_layout_legal(l, bits, H, I);
}

typedef int (*each_fn)(void *context, const struct config *c);

static int each_size(const struct mf_shape *s, struct config c, each_fn f, void *context)
{
    static const int n1[] = {32, 96, 64}, n2[] = {1024, 256, 64};
    int r = 0, tried = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(n1) && r == 0; i++) {
        for (size_t j = 0; j < MF_ARRAY_LEN(n2) && r == 0; j++) {
            c.block_n = n1[i];
            c.columns = n2[j];
            if (s->inter_dim % c.block_n || s->model_dim % c.columns || s->model_dim / c.columns < c.threads)
                continue;
            r = f(context, &c);
            tried++;
        }
    }
    if (tried > 0 || r != 0)
        return r;
    c.block_n = c.columns = 32; /* tiles at the edges are narrower */
    return f(context, &c);
}

static int each(const struct mf_shape *s, int cores, each_fn f, void *context)
{
    static const int panels[] = {16, 32, 1};
    struct mf_refusal no;
    int r = 0;

    for (size_t p = 0; p < MF_ARRAY_LEN(panels) && r == 0; p++) {
        struct config c = {.panel = panels[p], .threads = cores};
        if (!layout_fits(s, c.panel))
            continue;
        r = each_size(s, c, f, context);
        c.block_n = c.columns = 32;
        c.alternating = mf_cpu_may_alternate(s, c.panel, &no);
        if (r == 0 && c.alternating)
            r = f(context, &c);
        c.alternating = false;
        c.threads = 1;
        if (r == 0 && cores > 1 && c.panel == 32)
            r = f(context, &c);
    }
    return r;
}

static bool shape_fits(const struct mf_shape *s, struct mf_refusal *ret)
{
    if (!mf_cpu_shape_known(s, ret))
        return false;
    /* The step sorts in every thread, which pays off for few tokens. The step contains both GEMMs and
     * quantises row by row. */
    const struct mf_fusion_caps caps = {
        .prologue = mf_layer_ops(s),
        .epilogue = mf_layer_ops(s),
        .whole_rows = true,
        .both_gemms = true,
        .accumulates = true,
        .sorts = true,
        .tokens_max = TOKENS_MAX,
        .block_n = 32,
    };
    if (!mf_cpu_may_cover(s, mf_layer_ops(s), BLOCK_M, &caps, ret))
        return false;
    if (s->token * s->topk > SLOTS_MAX) {
        mf_refuse(ret, "slots", "token x topk is %lld; every thread sorts all slots, which is limited to %d",
                  (long long)(s->token * s->topk), SLOTS_MAX);
        return false;
    }
    return true;
}

struct walk {
    const struct mf_shape *shape;
    struct mf_offer *offer;
    const char *name;
    struct config found;
};

static int offer_step(void *context, const struct config *c)
{
    struct walk *w = context;
    struct mf_kernel k = configure(c, w->shape);
    struct mf_step step;

    describe(&k, &step);
    return w->offer->step(w->offer, &step);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct walk w = {.shape = shape, .offer = offer};
    struct mf_refusal refusal;

    if (!shape_fits(shape, &refusal))
        return offer->reject(offer, f->name, f->name, refusal.rule, "%s", refusal.reason);
    for (int panel = 16; panel <= 32; panel += 16) {
        if (layout_fits(shape, panel))
            continue;
        int r = offer->reject(offer, f->name, mf_cpu_layout(panel, false)->word, "divisibility",
                              "layout %s needs multiples of %d rows and %d elements: inter_dim is %d "
                              "(remainder %d) and model_dim "
                              "%d (remainder %d)",
                              mf_cpu_layout(panel, false)->name, panel, 32 / mf_cpu_weight_bits(shape),
                              shape->inter_dim, shape->inter_dim % panel, shape->model_dim,
                              shape->model_dim % panel);
        if (r < 0)
            return r;
    }
    int r = mf_cpu_reject_alternating(f, "one_", shape, offer);
    return r < 0 ? r : each(shape, device->cores, offer_step, &w);
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

    (void)f;
    if (strncmp(name, "one_", 4) != 0)
        return -EINVAL;
    if (!shape_fits(shape, &refusal) || each(shape, device->info.cores, match_name, &w) != 1)
        return -ENOTSUP;
    struct mf_kernel *k = malloc(sizeof(*k));
    if (!k)
        return -ENOMEM;
    *k = configure(&w.found, shape);
    *ret = k;
    return 0;
}

/* ---- the launch ---- */

static int sort_here(struct mf_kernel *k, char *room, struct mf_sorted_view *ret)
{
    struct mf_moe_sort in = mf_cpu_sort(&k->plan1.shape, &k->launch->needs[1], k->launch->routes, BLOCK_M);
    struct mf_moe_sort_out out = {
        .sorted_ids = (void *)(room + k->map.ids),
        .sorted_weights = (void *)(room + k->map.weights),
        .expert_ids = (void *)(room + k->map.experts),
        .num_valid = (void *)(room + k->map.num_valid),
    };
    const char *why;
    int r = mf_moe_sort(MF_SORT_ONE, &in, 1, room + k->map.sort, &out, &why);

    *ret = (struct mf_sorted_view){out.sorted_ids, out.expert_ids, out.num_valid, out.sorted_weights};
    return r;
}

static void quantise_x(const struct mf_kernel *k, const struct mf_tensor_ref *to, char *room, int thread,
                       int n_threads)
{
    const struct mf_stage_plan *p = &k->plan1;
    const struct mf_launch *l = k->launch;
    size_t H = (size_t)p->shape.model_dim, T = (size_t)p->shape.token;
    float global = p->codecs.a->global ? ((const float *)l->needs[4].part[0])[0] : 1.0f;

    if (p->codecs.a->global && thread == 0)
        *(float *)to->part[2] = global;
    for (size_t t = (size_t)thread; t < T; t += (size_t)n_threads)
        mf_stage_quantise_row(p->codecs.a, (const uint16_t *)l->needs[0].part[0] + t * H, H, t, global,
                              (void *)(room + k->map.stage), to);
}

static void run_thread(void *context, int thread, int n_threads)
{
    struct mf_kernel *k = context;
    const struct mf_launch *l = k->launch;
    char *shared = l->workspace, *room = shared + k->map.shared_bytes + (size_t)thread * k->map.thread_bytes;
    bool quantised = k->plan1.quantise;
    struct mf_tensor_ref x = l->needs[0], h = {{shared + k->map.h}};
    struct mf_sorted_view sorted;
    int r = sort_here(k, room, &sorted), at = 4;
    const float *calib = k->plan1.codecs.a->global ? l->needs[at++].part[0] : NULL;
    const float *b1 = k->plan1.shape.has_b1 ? l->needs[at++].part[0] : NULL;
    const float *b2 = k->plan1.shape.has_b2 ? l->needs[at].part[0] : NULL;

    if (r < 0) {
        if (thread == 0)
            k->error = r;
        return; /* all threads return here, because they sort the same ids */
    }
    if (quantised) {
        x = at_offsets(shared, k->map.x_q);
        h = at_offsets(shared, k->map.h_q);
        quantise_x(k, &x, room, thread, n_threads);
        mf_pool_barrier();
    }
    struct mf_stage1_args a1 = {
        .sorted = sorted,
        .x = x,
        .w = l->needs[2],
        .h = (void *)(shared + k->map.h),
        .h_q = h,
        .calib = calib,
        .bias = b1,
        .workspace = room + k->map.stage,
    };
    mf_stage1_run(&k->plan1, &a1, thread, n_threads);
    mf_pool_barrier();
    struct mf_stage2_args a2 = {
        .sorted = sorted,
        .h = h,
        .w = l->needs[3],
        .bias = b2,
        .out = l->gives[0].part[0],
        .workspace = room + k->map.stage,
    };
    mf_stage2_run(&k->plan2, &a2, thread, n_threads);
}

static int launch_step(struct mf_kernel *k, const struct mf_launch *l)
{
    k->launch = l;
    k->error = 0;
    mf_pool_run(run_thread, k, k->config.threads);
    return k->error;
}

static void set_token_count(struct mf_kernel *k, int64_t token)
{
    const struct config c = k->config;
    struct mf_shape s = k->plan1.shape;

    s.token = token;
    *k = configure(&c, &s);
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    free(k);
    return NULL;
}

const struct mf_family mf_family_one_stage = {
    .api = MF_FAMILY_API,
    .name = "one_stage",
    .device_kind = "cpu",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch_step,
    .close = close_step,
    .set_token_count = set_token_count,
    .supports_ep = true,
};
