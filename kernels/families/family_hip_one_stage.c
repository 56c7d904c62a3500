/* Family one_stage on GPUs: the whole layer in one launch, for few tokens (kernels/gpu/src/one.hip).
 *
 *     one_bf16_silu_t512_b8_c1_y12[_p128]
 *
 *     t512   threads per block                     b8     loads of w1 in flight
 *     c1     columns per warp                      y12    loads of w2 in flight
 *     _p128  weights in layout panel128 */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/families/family_hip_whole.h"
#include "kernels/gpu/src/args.h"

#define TOKENS_MAX 8

struct variant {
    int threads, batch, columns, batch_y;
};

static const struct variant variants[] = {
    {512, 4, 1, 8},  {512, 7, 1, 8},   {512, 8, 1, 8},   {512, 8, 1, 12},  {512, 7, 2, 8},
    {512, 8, 2, 8},  {512, 7, 4, 12},  {512, 8, 4, 12},  {1024, 3, 1, 6},  {1024, 4, 1, 6},
    {1024, 4, 2, 6}, {256, 14, 1, 16}, {256, 16, 1, 16}, {256, 16, 4, 16},
};

/* Variants for waves of 64 lanes, which need half as many loads per row as warps of 32 lanes. With 1024
 * threads, a thread has 128 registers, and more loads would spill. */
static const struct variant wide_variants[] = {
    {256, 7, 1, 8}, {256, 8, 2, 8}, {256, 14, 4, 12}, {512, 4, 1, 4},  {512, 7, 1, 8},
    {512, 4, 2, 8}, {512, 4, 4, 8}, {1024, 2, 1, 4},  {1024, 2, 2, 4},
};

struct plan {
    const struct variant *v;
    bool sliced; /* w1 and w2 are in layout panel128 */
    enum mf_hip_format format;
};

/* Returns the i-th candidate, or false if i is out of range. The order is: all variants with weights in
 * checkpoint layout, then, if the shape supports it, all variants with panel128. */
static bool nth_plan(const struct mf_device_info *device, const struct mf_shape *s, size_t i,
                     struct plan *ret)
{
    struct mf_refusal no;
    bool wide = mf_hip_machine_of(device)->wave == 64;
    size_t n = wide ? MF_ARRAY_LEN(wide_variants) : MF_ARRAY_LEN(variants);
    *ret = (struct plan){.v = (wide ? wide_variants : variants) + i % n, .sliced = i >= n};
    return i < n || (i < 2 * n && mf_hip_reads_panel128(device) &&
                     mf_hip_may_panel128(s, MF_TENSOR_W1, &no) && mf_hip_may_panel128(s, MF_TENSOR_W2, &no));
}

static void print_name(const struct plan *c, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    char format[MF_FORMAT_WORD_MAX];
    const char *w1 = mf_hip_weights_word(s, MF_TENSOR_W1, c->sliced);
    mf_cpu_format_word(s, format);
    mf_format(buf, MF_STEP_NAME_MAX, "one_%s_%s_t%d_b%d_c%d_y%d%s%s%s", format, mf_cpu_act_word(s),
              c->v->threads, c->v->batch, c->v->columns, c->v->batch_y, s->doweight_stage1 ? "_w" : "",
              *w1 ? "_" : "", w1);
}

/* Returns the bytes of shared memory for the routes and for the activations of one GEMM with their scales. */
static uint32_t shared_bytes(const struct mf_shape *s)
{
    int64_t slots = s->token * s->topk,
            x = s->token * (s->model_dim * INT64_C(2) + (s->model_dim / 128 + 1) * 4);
    int64_t h = slots * (s->inter_dim * INT64_C(2) + (s->inter_dim / 128 + 1) * 4);
    int64_t routes = (slots * 8 + 127) / 128 * 128;
    /* plus the maximum magnitude per warp */
    return (uint32_t)MF_MIN(routes + MF_MAX(x, h) + 128 + 128, INT64_C(1) << 30);
}

static bool is_legal(const struct mf_device_info *device, const struct mf_shape *s,
                     enum mf_hip_format *ret_format, struct mf_refusal *no)
{
    /* families one_stage and two_stage support the same weight formats */
    if (!mf_hip_family_takes("two_stage", device, s, ret_format, no))
        return false;
    uint32_t shared_max = (uint32_t)mf_hip_machine_of(device)->shared_block;
    if (mf_hip_is_int8(*ret_format))
        mf_refuse(no, "q_dtype", "activations are int8; family one_stage supports bf16 and fp8 only");
    else if (s->token > TOKENS_MAX)
        mf_refuse(
            no, "tokens_max",
            "token is %lld; the kernel reads an expert's weights once per slot, which pays up to %d tokens",
            (long long)s->token, TOKENS_MAX);
    else if (shared_bytes(s) > shared_max)
        mf_refuse(no, "lds", "the activations of %lld tokens need %u bytes of shared memory; a block has %u",
                  (long long)s->token, shared_bytes(s), shared_max);
    else
        return mf_hip_whole_allowed(s, TOKENS_MAX, no);
    return false;
}

static void describe(const struct plan *c, const struct mf_shape *shape, struct mf_step *ret)
{
    struct mf_step s = mf_hip_whole_step("one_stage", shape, c->sliced);
    print_name(c, shape, s.name);
    s.workspace_bytes = (uint64_t)(shape->token * shape->topk * shape->inter_dim) * 2;
    *ret = s;
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct mf_refusal no;
    enum mf_hip_format format;
    if (!is_legal(device, shape, &format, &no))
        return offer->reject(offer, f->name, f->name, no.rule, "%s", no.reason);
    struct plan c;
    for (size_t i = 0; nth_plan(device, shape, i, &c); i++) {
        struct mf_step step;
        if (shape->model_dim % c.v->columns)
            continue;
        describe(&c, shape, &step);
        int r = offer->step(offer, &step);
        if (r < 0)
            return r;
    }
    return 0;
}

static int find(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *s,
                const char *name, void *ret_plan)
{
    struct plan *plan = ret_plan;
    struct mf_refusal no;
    enum mf_hip_format format;
    char own[MF_STEP_NAME_MAX];
    (void)f;
    if (strncmp(name, "one_", 4) != 0)
        return -EINVAL;
    if (!is_legal(device, s, &format, &no))
        return -ENOTSUP;
    for (size_t i = 0; nth_plan(device, s, i, plan); i++) {
        print_name(plan, s, own);
        if (strcmp(own, name) != 0)
            continue;
        plan->format = format;
        return 0;
    }
    return -ENOTSUP;
}

static void write_code(const struct mf_device_info *device, const struct mf_shape *s, const void *plan,
                       struct mf_code *ret)
{
    const struct plan *c = plan;
    (void)device;
    *ret = (struct mf_code){.source = "one.hip", .function = "mf_one"};
    mf_hip_whole_define(ret, s, c->format);
    if (c->sliced)
        mf_code_define(ret, "MF_PANELS");
    mf_code_define(ret, "MF_THREADS=%d", c->v->threads);
    mf_code_define(ret, "MF_BATCH=%d", c->v->batch);
    mf_code_define(ret, "MF_BATCH_Y=%d", c->v->batch_y);
    mf_code_define(ret, "MF_COLS=%d", c->v->columns);
    mf_hip_define_rank(ret, s);
}

/* Launches one block per SM, because all blocks must be resident at once. */
static void set_token_count(struct mf_kernel *k)
{
    const struct plan *plan = k->plan;
    uint32_t blocks = (uint32_t)k->function.device->info.cores;
    k->grid =
        (struct mf_grid){blocks, 1, 1, (uint32_t)plan->v->threads, shared_bytes(&k->shape), true, false};
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->shape;
    const struct mf_hip_one_args args = {
        .x = l->needs[0].part[0],
        .ids = l->needs[1].part[0],
        .weights = l->needs[1].part[1],
        .w1 = l->needs[2].part[0],
        .w1_scale = l->needs[2].part[1],
        .w2 = l->needs[3].part[0],
        .w2_scale = l->needs[3].part[1],
        .b1 = mf_hip_whole_bias(l, s, MF_TENSOR_B1),
        .b2 = mf_hip_whole_bias(l, s, MF_TENSOR_B2),
        .h = l->workspace,
        .y = l->gives[0].part[0],
        .token = (int32_t)s->token,
        .types = mf_hip_route_types(l),
    };
    return mf_hip_launch(&k->function, &k->grid, &args, sizeof(args));
}

static const struct mf_hip_steps steps = {
    .plan_bytes = sizeof(struct plan),
    .find = find,
    .code = write_code,
    .set_token_count = set_token_count,
};

const struct mf_family mf_family_hip_one_stage =
    MF_HIP_FAMILY(.name = "one_stage", .enumerate = enumerate, .launch = launch, .hip_steps = &steps);
