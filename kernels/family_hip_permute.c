/* permute on GPUs: rows into expert order and back, for GEMMs that take and leave them there. None of ours does: tile fetches
 * rows as it multiplies and leaves them by slot, so the family is enumerated where it is named.
 *
 *     gather_m16            x, in any format, each row of expert order fetched
 *     gather_once_m16       each token's row read once and written to all of its places
 *     sort_gather_m16       the same and the sort in one launch, for few routes
 *     unpermute_z_m16, unpermute_zw_m16    rows of a token fetched, times its routing weights, and summed; weighted ones summed */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/text.h"
#include "kernels/family_hip.h"
#include "kernels/hip/args.h"

#define THREADS     256
#define ROUTES_MAX  1024 /* that every block sorts for itself sooner than blocks could meet */
#define EXPERTS_MAX 512  /* of which a block's LDS holds counts for each wave */

enum kind { GATHER, GATHER_ONCE, SORT_GATHER, UNPERMUTE, UNPERMUTE_WEIGHTED, N_KINDS };

/* clang-format off */
static const struct {
    const char *word, *function;
    bool back;
} kinds[N_KINDS] = {
    [GATHER]             = {"gather",       "mf_gather",    false},
    [GATHER_ONCE]        = {"gather_once",  "mf_permute",   false},
    [SORT_GATHER]        = {"sort_gather",  "mf_sort_permute", false},
    [UNPERMUTE]          = {"unpermute_z",  "mf_unpermute", true},
    [UNPERMUTE_WEIGHTED] = {"unpermute_zw", "mf_unpermute", true},
};
/* clang-format on */
static const int block_ms[] = {16, 32, 64, 128, 256};

struct config {
    enum kind kind;
    int block_m;
};

struct mf_kernel {
    struct mf_shape shape;
    struct config config;
    struct mf_hip_function function;
    struct mf_grid grid;
};

static bool is_legal(const struct mf_shape *s, enum kind kind, struct mf_refusal *no)
{
    int64_t routes = s->token * s->topk;
    no->rule = NULL;
    if (kind == SORT_GATHER && (routes > ROUTES_MAX || s->expert > EXPERTS_MAX))
        mf_refuse(
            no, "routes",
            "%lld tokens x topk %d are %lld routes to %d experts; every block sorts for itself, %d to %d "
            "at most",
            (long long)s->token, s->topk, (long long)routes, s->expert, ROUTES_MAX, EXPERTS_MAX);
    else if (kind == UNPERMUTE_WEIGHTED && s->doweight_stage1)
        mf_refuse(no, "doweight_stage1", "the weight is in z already; there is no other zw");
    return !no->rule;
}

/* With doweight_stage1 the weight is in z already. */
static bool weighs(const struct mf_shape *s, enum kind kind)
{
    return kind == UNPERMUTE && !s->doweight_stage1;
}

static const struct mf_codec *codec_of(const struct mf_shape *s)
{
    struct mf_artifact x = mf_plain_x(s);
    return mf_codec_find(x.format, x.scale);
}

/* ---- steps ---- */

static void describe(const struct config *c, const struct mf_shape *shape, struct mf_step *ret)
{
    double T = (double)shape->token, slots = mf_cpu_slots(shape), H = shape->model_dim;
    double row = mf_cpu_row_bytes(shape, shape->model_dim);
    bool sorts = c->kind == SORT_GATHER;
    mf_ops sum = MF_OP_BIT(MF_OP_COMBINE) | (weighs(shape, c->kind) ? MF_OP_BIT(MF_OP_WEIGHT) : 0);
    struct mf_step s = {
        .family = "permute",
        .stage = MF_STAGE_MOVE,
        .covers = kinds[c->kind].back ? sum : MF_OP_BIT(MF_OP_GATHER) | (sorts ? MF_OP_BIT(MF_OP_SORT) : 0),
        .block_m = c->block_m};
    mf_say(s.name, sizeof(s.name), "%s_m%d", kinds[c->kind].word, c->block_m);
    if (kinds[c->kind].back) {
        mf_step_need(&s,
                     mf_cpu_bf16(c->kind == UNPERMUTE ? MF_TENSOR_Z : MF_TENSOR_ZW, "sorted", c->block_m));
        mf_step_need(&s, mf_cpu_sorted(c->block_m));
        mf_step_give(&s, mf_cpu_bf16(MF_TENSOR_Y, "token", 0));
        s.bytes = (slots + T) * H * 2;
        s.flops = 2 * slots * H;
    } else {
        mf_step_need(&s, mf_plain_x(shape));
        mf_step_need(&s, sorts ? mf_cpu_topk() : mf_cpu_sorted(c->block_m));
        mf_step_give(&s, mf_cpu_x_sorted(shape, c->block_m));
        if (sorts)
            mf_step_give(&s, mf_cpu_sorted(c->block_m));
        s.bytes = (slots + T) * row + (sorts ? T * shape->topk * 8 + slots * 8 : 0);
    }
    if (c->kind != GATHER && !sorts)
        s.workspace_bytes = (size_t)(shape->token * shape->topk) * sizeof(mf_i32);
    *ret = s;
}

typedef int (*each_fn)(void *context, const struct mf_step *step, const struct config *c);

static int each(const struct mf_shape *s, each_fn f, void *context)
{
    for (enum kind kind = GATHER; kind < N_KINDS; kind++) {
        struct mf_refusal no;
        for (size_t b = 0; is_legal(s, kind, &no) && b < MF_ARRAY_LEN(block_ms); b++) {
            const struct config c = {kind, block_ms[b]};
            struct mf_step step;
            describe(&c, s, &step);
            int r = f(context, &step, &c);
            if (r != 0)
                return r;
        }
    }
    return 0;
}

static int offer_step(void *context, const struct mf_step *step, const struct config *c)
{
    struct mf_offer *offer = context;
    (void)c;
    return offer->step(offer, step);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct mf_refusal no;
    if (!mf_hip_rows_known(device, shape, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    for (enum kind kind = GATHER; kind < N_KINDS; kind++) {
        int r = is_legal(shape, kind, &no)
                    ? 0
                    : offer->reject(offer, f->name, kinds[kind].word, no.rule, "%s", no.reason);
        if (r < 0)
            return r;
    }
    return each(shape, offer_step, offer);
}

struct search {
    const char *name;
    struct config found;
};

static int match_name(void *context, const struct mf_step *step, const struct config *c)
{
    struct search *s = context;
    if (strcmp(step->name, s->name) != 0)
        return 0;
    s->found = *c;
    return 1;
}

/* ---- code ---- */

/* Blocks of a unit at once: all slots of a chunk are in registers. */
static int blocks_sm(const struct config *c, const struct mf_shape *s)
{
    return !kinds[c->kind].back || s->topk <= 8 ? 4 : s->topk <= 16 ? 2 : 1;
}

static size_t row_bytes(const struct config *c, const struct mf_shape *s)
{
    return kinds[c->kind].back ? (size_t)s->model_dim * 2
                               : mf_codec_row_bytes(codec_of(s), (size_t)s->model_dim);
}

static void code_of(const struct config *c, const struct mf_shape *s, struct mf_code *ret)
{
    const struct mf_codec *codec = codec_of(s);
    *ret = (struct mf_code){.source = "permute.hip", .function = kinds[c->kind].function};
    mf_code_define(ret, "MF_THREADS=%d", THREADS);
    mf_code_define(ret, "MF_BLOCKS=%d", blocks_sm(c, s));
    mf_code_define(ret, "MF_K=%d", s->topk);
    mf_code_define(ret, "MF_ROW=%zu", row_bytes(c, s));
    mf_code_define(ret, "MF_CHUNK=%d", row_bytes(c, s) % 16 == 0 ? 16 : 8);
    if (c->kind == SORT_GATHER) {
        mf_code_define(ret, "MF_ROUTES=%d", ROUTES_MAX);
        mf_code_define(ret, "MF_BLOCK_M=%d", c->block_m);
        mf_hip_define_share(ret, s);
    }
    if (kinds[c->kind].back)
        mf_code_define(ret, "MF_WEIGHTED=%d", weighs(s, c->kind));
    else if (codec->scale_bytes > 0 && codec->group_rows > 0)
        mf_code_define(ret, "MF_SCALES=%zu",
                       mf_codec_scale_cols(codec, (size_t)s->model_dim) * (size_t)codec->scale_bytes);
}

static int find(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct config *ret, struct mf_code *ret_code)
{
    struct search search = {.name = name};
    struct mf_refusal no;
    if (!mf_hip_rows_known(device, shape, &no))
        return -ENOTSUP;
    if (each(shape, match_name, &search) != 1)
        return -EINVAL;
    *ret = search.found;
    code_of(ret, shape, ret_code);
    return 0;
}

static int code(const struct mf_device_info *device, const struct mf_shape *shape, const char *name,
                struct mf_code *ret)
{
    struct config c;
    return find(device, shape, name, &c, ret);
}

/* ---- launches ---- */

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct mf_code source;
    struct config c;
    (void)f;
    int r = find(&device->info, shape, name, &c, &source);
    if (r < 0)
        return r;
    struct mf_kernel *k = calloc(1, sizeof(*k));
    if (!k)
        return -ENOMEM;
    k->shape = *shape;
    k->config = c;
    int64_t rows = c.kind == GATHER ? mf_padded_rows(shape, c.block_m) : shape->token;
    int64_t work = (rows * (int64_t)(row_bytes(&c, shape) / 8) + THREADS - 1) / THREADS;
    k->grid = mf_hip_persistent_grid(&device->info, THREADS, blocks_sm(&c, shape), 0);
    k->grid.x = (uint32_t)MF_MIN((int64_t)k->grid.x, MF_MAX(work, 1));
    k->grid.early = true;
    r = mf_hip_function_open(device, &source, &k->function);
    if (r < 0) {
        free(k);
        return r;
    }
    *ret = k;
    return 0;
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_codec *codec = codec_of(&k->shape);
    bool scaled = !kinds[k->config.kind].back && codec->scale_bytes > 0, factor = scaled && codec->global;
    const struct mf_tensor_ref *order = &l->needs[1];
    struct mf_hip_permute_args a = {
        .from = l->needs[0].part[0],
        .to = l->gives[0].part[0],
        .from_scale = scaled ? l->needs[0].part[1] : NULL,
        .to_scale = scaled ? l->gives[0].part[1] : NULL,
        .from_factor = factor ? l->needs[0].part[2] : NULL,
        .to_factor = factor ? l->gives[0].part[2] : NULL,
        .row_of = l->workspace,
        .rows = (int32_t)mf_padded_rows(&k->shape, k->config.block_m),
        .token = (int32_t)k->shape.token,
    };
    if (k->config.kind == SORT_GATHER) {
        a.ids = order->part[0];
        a.weights = order->part[1];
        a.made_ids = l->gives[1].part[0];
        a.made_weights = l->gives[1].part[1];
        a.made_experts = l->gives[1].part[2];
        a.made_valid = l->gives[1].part[3];
    } else {
        a.sorted_ids = order->part[0];
        a.sorted_weights = order->part[1];
        a.num_valid = order->part[3];
    }
    return mf_hip_launch(&k->function, &k->grid, &a, sizeof(a));
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    mf_hip_function_close(&k->function);
    free(k);
    return NULL;
}

const struct mf_family mf_family_hip_permute = {
    .api = MF_FAMILY_API,
    .name = "permute",
    .device_kind = "hip",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch,
    .close = close_step,
    .code = code,
    .shares = true,
};
