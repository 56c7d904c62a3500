/* Requirements of serving stacks that capture a layer once and replay it, with sixty layers sharing one
 * buffer: a launch allocates nothing, no state is kept between launches, sizes suffice for the worst routing,
 * and the caller owns all buffers. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "kernels/core/data.h"
#include "kernels/core/quant.h"
#include "kernels/pipeline/fmoe.h"
#include "kernels/reference/reference.h"
#include "support/kernels/family_contract.h"
#include "support/kernels/host_layer.h"
#include "support/mf_check.h"
#include "support/mf_draw.h"

/* ---- counting allocations ---- */

static size_t n_allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_reallocarray(void *p, size_t n, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **p, size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **p, size_t alignment, size_t size);

static void count(void)
{
    (void)__atomic_fetch_add(&n_allocations, 1, __ATOMIC_RELAXED);
}

void *__wrap_malloc(size_t size)
{
    count();
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    count();
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    count();
    return __real_realloc(p, size);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    count();
    return __real_reallocarray(p, n, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    count();
    return __real_aligned_alloc(alignment, size);
}

int __wrap_posix_memalign(void **p, size_t alignment, size_t size)
{
    count();
    return __real_posix_memalign(p, alignment, size);
}

static size_t allocations(void)
{
    return __atomic_load_n(&n_allocations, __ATOMIC_RELAXED);
}

/* ---- replays ---- */

static const int formats[] = {0,  1,  3, 7,
                              11, 14, 16}; /* bf16, and fp8, int8, fp4 and int4 with each kind of scale */
static const struct {
    const char *family; /* NULL: the format's two-stage family */
    int64_t token;
    int32_t ep_first, ep_experts;
} replays[] = {
    {NULL, 65, 0, 0},     {NULL, 33, 4, 16},  {"one_stage", 13, 0, 0}, {"one_stage", 16, 7, 24},
    {"onednn", 65, 0, 0}, {"move", 65, 0, 0}, {"move", 33, 4, 16},
};
#define N_REPLAYS ((int)(MF_ARRAY_LEN(formats) * MF_ARRAY_LEN(replays)))

/* Bugs 8b, 12, 18-20, 23, 24: a step is captured with one routing and replayed with another. The step must
 * not allocate memory during the capture. */
MF_TEST(captured_and_replayed, .rows = N_REPLAYS)
{
    if (!mf_draw(_i, 4))
        return;
    const struct contract_format *f = &contract_formats[formats[_i % (int)MF_ARRAY_LEN(formats)]];
    size_t at = (size_t)_i / MF_ARRAY_LEN(formats);
    struct contract_case c = {replays[at].token, 128, 64, 8, 3, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, f);
    const char *family = replays[at].family ? replays[at].family : f->family;
    struct mf_device *d = contract_device(NULL);
    s.ep_first = replays[at].ep_first;
    s.ep_experts = replays[at].ep_experts;
    int n = contract_replay(d, family, &s, allocations);
    bool none = (strcmp(family, "one_stage") == 0 && f->q_type == MF_QTYPE_PER_TENSOR) ||
                (strcmp(family, "onednn") == 0 && mf_isa_best() != MF_ISA_AVX512);
    ck_assert_int_eq(n > 0, !none);
    ck_assert_uint_gt(allocations(), 0); /* the counter works */
    (void)mf_device_close(d);
}

/* ---- layers that share one arena ---- */

#define PARTS_MAX 5

/* Finds the first step for each set of ops, with block_m 16 or no block_m. */
struct finder {
    struct mf_offer offer;
    const char *const *ops;
    struct mf_step found[PARTS_MAX]; /* the name is empty until the step is found */
};

static int take_step(struct mf_offer *o, const struct mf_step *step)
{
    struct finder *f = (struct finder *)o;
    char ops[MF_OPS_TEXT_MAX];
    mf_ops_print(step->covers, ops);
    for (int i = 0; i < PARTS_MAX && f->ops[i]; i++) {
        if (!f->found[i].name[0] && strcmp(ops, f->ops[i]) == 0 &&
            (step->block_m == 16 || step->block_m == 0) && step->gives[0].tensor != MF_TENSOR_ALIGNED)
            f->found[i] = *step;
    }
    return 0;
}

static const char *const bf16_ops[] = {"sort", "gather+gemm1+act", "gemm2", "weight+combine", NULL};
static const char *const quantised_ops[] = {"sort", "quant1", "gather+gemm1+act+quant2", "gemm2",
                                            "weight+combine"};

static struct mf_pipeline *open_pipeline(struct mf_device *d, const struct mf_shape *s,
                                         const char *const *ops)
{
    struct finder f = {.offer = {take_step, mf_offer_ignore_rejection}, .ops = ops};
    char text[MF_PIPELINE_TEXT_MAX] = "";
    struct mf_pipeline *p = NULL;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_enumerate(&d->info, s, NULL, &f.offer), 0);
    for (int i = 0; i < PARTS_MAX && ops[i]; i++) {
        ck_assert_msg(f.found[i].name[0] != '\0', "no step covers %s", ops[i]);
        ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(text), f.found[i].family, f.found[i].name), 0);
    }
    ck_assert_msg(mf_pipeline_open(d, s, NULL, text, why, sizeof(why), &p) == 0, "%s", why);
    return p;
}

#define LAYERS 6

struct layer {
    struct mf_layer_data data;
    struct mf_reference ref;
    struct mf_tensor_ref w[2]; /* in the pipeline's layout */
    struct mf_pipeline *pipeline;
};

static void layer_make(struct layer *l, struct mf_device *d, const struct mf_layer_data *inputs,
                       uint64_t seed)
{
    const struct mf_shape *s = &inputs->shape;
    l->data = *inputs;
    l->pipeline = open_pipeline(d, s, bf16_ops);
    for (int i = 0; i < 2; i++) {
        enum mf_tensor w = i ? MF_TENSOR_W2 : MF_TENSOR_W1;
        struct mf_tensor_spec plain = mf_plain_w(s, w, "row"), wanted = mf_pipeline_weight(l->pipeline, w);
        struct mf_tensor_ref ref = host_tensor_new(&plain, s);
        ck_assert_int_eq(mf_data_weight(s, w, seed, &ref), 0);
        *(i ? &l->data.w2 : &l->data.w1) = ref;
        l->w[i] = host_tensor_new(&wanted, s);
        ck_assert_int_eq(mf_reference_tensor_spec(&l->data, NULL, &wanted, NULL, &l->w[i]), 0);
    }
    ck_assert_int_eq(mf_reference_make(&l->data, &l->ref), 0);
}

static void layer_release(struct layer *l)
{
    l->pipeline = mf_pipeline_close(l->pipeline);
    mf_reference_release(&l->ref);
    free(l->data.w1.part[0]);
    free(l->data.w2.part[0]);
    free(l->w[0].part[0]);
    free(l->w[1].part[0]);
}

/* Bugs 15, 21: separate buffers per layer would take 4.3 GB, so layers share one arena. The layers run one
 * after the other, and the arena has no valid contents between two runs. */
MF_TEST(layers_share_an_arena)
{
    struct contract_case c = {33, 128, 64, 8, 3, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, &contract_formats[0]);
    struct mf_routing routing = {.kind = MF_ROUTING_UNIFORM};
    struct mf_device *d = contract_device(NULL);
    static struct layer layers[LAYERS];
    static uint16_t x[33 * 128], y[33 * 128];
    static int32_t ids[33 * 3];
    static float weights[33 * 3];
    s.has_b1 = s.has_b2 = false;
    mf_data_x(&s, 1, x);
    ck_assert_int_eq(mf_data_topk(&s, &routing, 1, ids, weights), 0);
    struct mf_layer_data inputs = {.shape = s, .x = x, .ids = ids, .weights = weights};
    for (int i = 0; i < LAYERS; i++)
        layer_make(&layers[i], d, &inputs, (uint64_t)i + 1);
    size_t bytes = mf_pipeline_arena_bytes(layers[0].pipeline);
    _cleanup_(mf_freep) char *arena = aligned_alloc(64, (bytes + 63) / 64 * 64);
    for (int i = 0; i < LAYERS; i++) {
        mf_pipeline_bind(layers[i].pipeline, &(struct mf_fmoe_args){.x = {{x}},
                                                                    .topk = {{ids, weights}},
                                                                    .w1 = layers[i].w[0],
                                                                    .w2 = layers[i].w[1],
                                                                    .y = {{y}},
                                                                    .arena = arena});
    }
    for (int run = 0; run < 3 * LAYERS; run++) {
        struct layer *l = &layers[(run * 5 + run / LAYERS) % LAYERS];
        memset(y, 0xff, sizeof(y));
        if (run % 2)
            memset(arena, 0xff, bytes);
        size_t before = allocations();
        int r = mf_pipeline_run(l->pipeline);
        ck_assert_uint_eq(allocations(), before);
        ck_assert_int_eq(r, 0);
        double difference = 0, norm = 0;
        for (int i = 0; i < 33 * 128; i++) {
            double want = (double)l->ref.y[i], got = (double)mf_bf16_to_float(y[i]);
            difference += (got - want) * (got - want);
            norm += want * want;
        }
        ck_assert_msg(difference < 1e-4 * norm, "run %d: %g", run, difference / norm);
    }
    for (int i = 0; i < LAYERS; i++)
        layer_release(&layers[i]);
    (void)mf_device_close(d);
}

/* Bugs 15 to 17, 21, 22 at full size: 8192 tokens, top-k 6 of 384 experts, 48 of them local. The arena has
 * room for the worst case, in which all routes go to this rank. 60 layers that share the arena allocate
 * almost nothing else. */
MF_TEST(sixty_layers_hold_one_arena)
{
    struct mf_device *d = contract_device(NULL);
    struct mf_shape s;
    ck_assert_int_eq(
        mf_shape_parse("8192,7168,3072,48,6,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,"
                       "torch.float4_e2m1fn_x2,QuantType.per_1x16,1,0,limit:10+ep:48/384",
                       &s),
        0);
    struct mf_pipeline *layers[60];
    layers[0] = open_pipeline(d, &s, quantised_ops);
    struct mallinfo2 one = mallinfo2();
    for (int i = 1; i < 60; i++)
        layers[i] = open_pipeline(d, &s, quantised_ops);
    struct mallinfo2 all = mallinfo2();
    size_t arena = mf_pipeline_arena_bytes(layers[0]),
           held = all.uordblks + all.hblkhd - one.uordblks - one.hblkhd;
    struct mf_tensor_spec h = mf_plain_h(&s, 16);
    struct mf_part parts[MF_PARTS_MAX];
    ck_assert_int_gt(mf_tensor_spec_parts(&h, &s, parts), 0);
    ck_assert_int_ge(parts[0].rows, 8192 * 6);
    ck_assert_uint_ge(arena, (size_t)mf_part_bytes(&parts[0]));
    printf("arena %zu bytes, 59 more layers %zu bytes\n", arena, held);
    ck_assert_uint_lt(held, arena / 20);
    for (int i = 0; i < 60; i++) {
        ck_assert_uint_eq(mf_pipeline_arena_bytes(layers[i]), arena);
        layers[i] = mf_pipeline_close(layers[i]);
    }
    (void)mf_device_close(d);
}

int main(void)
{
    mf_draw_start();
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
