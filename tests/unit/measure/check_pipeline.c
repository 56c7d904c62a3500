/* Pipelines of the production operator with test-only families: wiring, arena, accumulation, errors. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/data.h"
#include "kernels/core/quant.h"
#include "kernels/pipeline/fmoe.h"
#include "kernels/reference/reference.h"
#include "support/kernels/host_layer.h"
#include "support/kernels/planted_session.h"

#include "support/mf_check.h"

/* ---- a second family: accumulation into a zeroed y, and steps that do not match ---- */

struct mf_kernel {
    struct mf_shape shape;
    char name[MF_STEP_NAME_MAX];
};

static const struct {
    const char *name;
    mf_ops covers;
    const char *needs[3], *gives[2];
    uint64_t workspace;
} oddities[] = {
    {"zero", 0, {NULL}, {"y/f32/none/token+zeroed"}, 0},
    {"accumulate",
     1u << MF_OP_COMBINE,
     {"zw/f32/none/slot", "y/f32/none/token+zeroed"},
     {"y/f32/none/token"},
     100},
    {"cast", 0, {"y/f32/none/token"}, {"y/bf16/none/token"}, 0},
    {"again", 1u << MF_OP_SORT, {"topk/index/none/token"}, {"sorted/index/none/sorted.4"}, 0},
    {"panel", 0, {"w1/bf16/none/panel16"}, {NULL}, 0},
    {"odd", 0, {NULL}, {"g/f32/none/token"}, 0},
};

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    (void)device;
    (void)shape;
    for (size_t i = 0; i < MF_ARRAY_LEN(oddities); i++) {
        struct mf_step step = {.covers = oddities[i].covers, .workspace_bytes = oddities[i].workspace};
        (void)mf_copy(step.family, sizeof(step.family), f->name);
        (void)mf_copy(step.name, sizeof(step.name), oddities[i].name);
        for (int n = 0; n < 3 && oddities[i].needs[n]; n++)
            ck_assert_int_eq(mf_tensor_spec_parse(oddities[i].needs[n], &step.needs[step.n_needs++]), 0);
        for (int n = 0; n < 2 && oddities[i].gives[n]; n++)
            ck_assert_int_eq(mf_tensor_spec_parse(oddities[i].gives[n], &step.gives[step.n_gives++]), 0);
        int r = offer->step(offer, &step);
        if (r < 0)
            return r;
    }
    return offer->reject(offer, f->name, "never", "size", "H is %d, it wants %d", 160, 4096);
}

static int open_kernel(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                       const char *name, struct mf_kernel **ret)
{
    (void)f;
    (void)device;
    struct mf_kernel *k = calloc(1, sizeof(*k));
    k->shape = *shape;
    (void)mf_copy(k->name, sizeof(k->name), name);
    *ret = k;
    return 0;
}

static struct mf_kernel *close_kernel(struct mf_kernel *k)
{
    free(k);
    return NULL;
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->shape;
    size_t n = (size_t)(s->token * s->model_dim);
    float *y = l->gives[0].part[0];
    if (strcmp(k->name, "zero") == 0) {
        memset(y, 0, n * sizeof(*y));
    } else if (strcmp(k->name, "cast") == 0) {
        mf_bf16_from_floats(l->needs[0].part[0], n, l->gives[0].part[0]);
    } else {
        /* family.h: an accumulating step's input and output are one buffer */
        ck_assert_ptr_eq(l->needs[1].part[0], l->gives[0].part[0]);
        ck_assert_uint_eq((uintptr_t)l->workspace % 64, 0);
        memset(l->workspace, 0x77, 100);
        for (int64_t row = 0; row < s->token * s->topk; row++) {
            for (int32_t i = 0; i < s->model_dim; i++)
                y[row / s->topk * s->model_dim + i] += ((float *)l->needs[0].part[0])[row * s->model_dim + i];
        }
    }
    return 0;
}

static void set_token_count(struct mf_kernel *k, int64_t token)
{
    k->shape.token = token;
}

/* clang-format off */
#define FAMILY(...) \
    {.api = MF_FAMILY_API, .enumerate = enumerate, .open = open_kernel, \
     .launch = launch,     .close = close_kernel,  __VA_ARGS__}
/* clang-format on */
static const struct mf_family odd = FAMILY(.name = "odd", .device_kind = "cpu",
                                           .set_token_count = set_token_count),
                              gpu_family = FAMILY(.name = "else", .device_kind = "gpu"),
                              fixed = FAMILY(.name = "fixed", .device_kind = "cpu");
static const struct mf_family *const list[] = {&planted_family, &odd, &gpu_family, &fixed};
static const struct mf_family_set set = {list, 4};

/* Number of calls of count_and_enumerate, which enumerates planted_family. */
static int n_enumerated;

static int count_and_enumerate(const struct mf_family *f, const struct mf_device_info *device,
                               const struct mf_shape *shape, struct mf_offer *offer)
{
    n_enumerated++;
    return planted_family.enumerate(f, device, shape, offer);
}

/* ---- errors ---- */

static const struct {
    const char *pipeline;
    const char *why;
} refused[] = {
    {"planted", "invalid step \"planted\": expected family:step"},
    {"a_family_name_of_thirty_two_byte:x", ": expected family:step"},
    {"missing:x", "unknown family \"missing\" for a cpu device"},
    {"else:zero", "unknown family \"else\" for a cpu device"},
    {"planted:sort.5", "family planted offers no step sort.5 for this shape"},
    {"odd:never", "odd:never is not legal for this shape (size): H is 160, it wants 4096"},
    {"planted:stage1.4", "stage1.4 needs sorted/index/none/sorted.4, which no earlier step gives"},
    {"planted:sort.16|planted:stage1.4", "stage1.4 needs sorted/index/none/sorted.4"},
    {"planted:sort.4|planted:stage1.4|planted:stage2.4", "no step gives the layer's output, y in bf16"},
    {"planted:sort.4|odd:again|planted:stage1.4|planted:stage2.4|planted:combine",
     "again covers sort, which an earlier step covers"},
    {"planted:sort.4|planted:stage1.4|planted:stage2.4|odd:panel|planted:combine",
     "w1 is used in two layouts, row and panel16"},
    {"odd:odd", "the shape has no tensor spec g/f32/none/token"},
    {"odd:cast", "cast needs y/f32/none/token, which no earlier step gives"},
    {"odd:zero|odd:cast", "cast needs y/f32/none/token, which no earlier step gives"},
};

MF_TEST(open_errors, .rows = MF_ARRAY_LEN(refused))
{
    struct mf_shape s = planted_shape(0, 5);
    struct mf_pipeline *p = NULL;
    char why[MF_REASON_MAX];
    ck_assert_int_eq(mf_pipeline_open(test_device, &s, &set, refused[_i].pipeline, why, sizeof(why), &p),
                     -EINVAL);
    ck_assert_msg(strstr(why, refused[_i].why) != NULL, "\"%s\", expected \"%s\"", why, refused[_i].why);
    ck_assert_ptr_null(p);
}

/* A family without expert-parallelism support is not enumerated for a rank's shape. The error names the rule
 * (ep). */
MF_TEST(family_without_ep_support)
{
    struct mf_shape s = planted_shape(0, 5);
    struct mf_pipeline *p = NULL;
    char why[MF_REASON_MAX];
    s.ep_first = 1;
    s.ep_experts = s.expert + 2;
    ck_assert_int_eq(mf_pipeline_open(test_device, &s, &set, "planted:sort.4", why, sizeof(why), &p),
                     -EINVAL);
    ck_assert_ptr_nonnull(strstr(why, "planted:planted is not legal for this shape (ep): "));
}

MF_TEST(step_count_limits)
{
    struct mf_shape s = planted_shape(0, 5);
    struct mf_pipeline *p = NULL;
    char text[17 * 9 + 1] = "", why[MF_REASON_MAX];
    for (int i = 0; i < 17; i++)
        ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(text), "odd", "zero"), 0);
    ck_assert_int_eq(mf_pipeline_open(test_device, &s, &set, "", why, sizeof(why), &p), -EINVAL);
    ck_assert_str_eq(why, "invalid step \"\": expected family:step");
    ck_assert_int_eq(mf_pipeline_open(test_device, &s, &set, text, why, sizeof(why), &p), -EINVAL);
    ck_assert_str_eq(why, "the pipeline has 17 steps: expected 1 to 16");
}

/* ---- runs ---- */

/* Formats with quantisation insert quant1 after the sort. */
static const struct {
    const char *sort, *others;
    size_t n; /* steps without quant1 */
} chains[] = {
    {"planted:sort.16", "planted:stage1.16|planted:stage2.16|planted:combine", 4},
    {"planted:sort.4", "planted:stage1.4|odd:zero|planted:stage2.4|odd:accumulate|odd:cast", 6},
};

/* Runs every format with both ways to combine, with and without biases. The arena is filled with NaN and
 * followed by a guard band. The pipeline runs fewer tokens than it was opened for, and the output matches the
 * reference. */
MF_TEST(runs_the_layer, .rows = 4 * PLANTED_N_FORMATS)
{
    struct mf_shape s = planted_shape(_i / 2 % PLANTED_N_FORMATS, 9), bucket;
    struct mf_pipeline *p = NULL;
    struct host_layer l;
    s.has_b1 = s.has_b2 = _i >= 2 * PLANTED_N_FORMATS;
    bool quantises = s.q_type != MF_QTYPE_NO;
    char text[MF_PIPELINE_TEXT_MAX], why[MF_REASON_MAX];
    mf_format(text, sizeof(text), "%s|%s%s", chains[_i % 2].sort, quantises ? "planted:quant1|" : "",
              chains[_i % 2].others);
    host_layer_make(&l, &s, "uniform", 3);
    _cleanup_(mf_freep) uint16_t *y = calloc((size_t)(s.token * s.model_dim), sizeof(*y));
    ck_assert_ptr_nonnull(y);
    bucket = s;
    bucket.token = 16;
    ck_assert_msg(mf_pipeline_open(test_device, &bucket, &set, text, why, sizeof(why), &p) == 0, "%s", why);
    ck_assert_uint_eq(mf_pipeline_n_steps(p), chains[_i % 2].n + quantises);
    ck_assert_str_eq(mf_pipeline_weight(p, MF_TENSOR_W1).order, "row");
    size_t bytes = mf_pipeline_arena_bytes(p);
    uint8_t *arena = aligned_alloc(64, bytes + 64);
    for (int repeat = 0; repeat < 2; repeat++) {
        memset(arena, 0xff, bytes + 64);
        memset(y, 0xff, (size_t)(s.token * s.model_dim) * 2);
        struct mf_fmoe_args args = {.x = {{(void *)l.data.x}},
                                    .topk = {{(void *)l.data.ids, (void *)l.data.weights}},
                                    .w1 = l.data.w1,
                                    .w2 = l.data.w2,
                                    .b1 = {{(void *)l.data.b1}},
                                    .b2 = {{(void *)l.data.b2}},
                                    .y = {{y}},
                                    .arena = arena};
        ck_assert_int_eq(mf_pipeline_call(p, 17, &args, NULL), -EINVAL);
        ck_assert_int_eq(mf_pipeline_call(p, 0, &args, NULL), -EINVAL);
        ck_assert_int_eq(mf_pipeline_call(p, 9, &args, NULL), 0);
        for (int i = 0; i < 64; i++)
            ck_assert_int_eq(arena[bytes + (size_t)i], 0xff);
        double difference = 0, norm = 0;
        for (int64_t i = 0; i < s.token * s.model_dim; i++) {
            double want = (double)l.ref.y[i], got = (double)mf_bf16_to_float(y[i]);
            difference += (got - want) * (got - want);
            norm += want * want;
        }
        ck_assert_msg(difference < 2e-4 * norm, "%g", difference / norm);
    }
    free(arena);
    p = mf_pipeline_close(p);
    host_layer_release(&l);
}

/* Tensors with disjoint lifetimes share arena memory: h is dead when the output is summed. */
MF_TEST(arena_memory_is_reused)
{
    struct mf_shape s = planted_shape(0, 64);
    struct mf_pipeline *p = NULL;
    static const char text[] =
        "planted:sort.16|planted:stage1.16|planted:stage2.16|odd:zero|odd:accumulate|odd:cast";
    char why[MF_REASON_MAX];
    struct mf_part part[MF_PARTS_MAX];
    size_t sum = 0;
    ck_assert_msg(mf_pipeline_open(test_device, &s, &set, text, why, sizeof(why), &p) == 0, "%s", why);
    for (size_t i = 0; i < 6; i++) {
        const struct mf_step *step = mf_pipeline_step(p, i);
        int n = mf_tensor_spec_parts(&step->gives[0], &s, part);
        for (int j = 0; j < n; j++)
            sum += (size_t)mf_part_bytes(&part[j]);
    }
    ck_assert_uint_lt(mf_pipeline_arena_bytes(p), sum - (size_t)(64 * 160 * 4));
    p = mf_pipeline_close(p);
}

/* mf_pipeline_open_steps opens the same pipeline from offered steps as mf_pipeline_open does from their
 * names, without enumerating families. Errors: unknown family, incomplete pipeline, too many steps. */
MF_TEST(opens_offered_steps)
{
    struct mf_shape s = planted_shape(0, 16);
    struct mf_pipeline *named = NULL, *p = NULL;
    static const char text[] = "planted:sort.16|planted:stage1.16|planted:stage2.16|planted:combine";
    struct mf_step steps[17];
    char why[MF_REASON_MAX];

    ck_assert_msg(mf_pipeline_open(test_device, &s, &set, text, why, sizeof(why), &named) == 0, "%s", why);
    for (size_t i = 0; i < MF_ARRAY_LEN(steps); i++)
        steps[i] = *mf_pipeline_step(named, i % 4);
    struct mf_family counted = planted_family;
    counted.enumerate = count_and_enumerate;
    const struct mf_family *const counted_list[] = {&counted};
    const struct mf_family_set counted_set = {counted_list, 1};
    ck_assert_int_eq(mf_pipeline_open_steps(test_device, &s, &counted_set, steps, 4, why, sizeof(why), &p),
                     0);
    ck_assert_int_eq(n_enumerated, 0);
    ck_assert_uint_eq(mf_pipeline_n_steps(p), 4);
    ck_assert_uint_eq(mf_pipeline_arena_bytes(p), mf_pipeline_arena_bytes(named));
    for (size_t i = 0; i < 4; i++)
        ck_assert_str_eq(mf_pipeline_step(p, i)->name, steps[i].name);
    p = mf_pipeline_close(p);
    ck_assert_int_eq(mf_pipeline_open_steps(test_device, &s, &set, steps, 17, why, sizeof(why), &p), -EINVAL);
    ck_assert_str_eq(why, "the pipeline has 17 steps: expected 1 to 16");
    ck_assert_int_eq(mf_pipeline_open_steps(test_device, &s, &set, steps, 3, why, sizeof(why), &p), -EINVAL);
    ck_assert_str_eq(why, "no step gives the layer's output, y in bf16");
    mf_format(steps[1].family, sizeof(steps[1].family), "missing");
    ck_assert_int_eq(mf_pipeline_open_steps(test_device, &s, &set, steps, 4, why, sizeof(why), &p), -EINVAL);
    ck_assert_str_eq(why, "unknown family \"missing\" for a cpu device");
    named = mf_pipeline_close(named);
}

/* Family `fixed` has no set_token_count: the pipeline accepts only the token count it was opened with. */
MF_TEST(fixed_token_count)
{
    struct mf_shape s = planted_shape(0, 16);
    struct mf_pipeline *p = NULL;
    static const char text[] =
        "planted:sort.16|planted:stage1.16|planted:stage2.16|fixed:zero|fixed:accumulate|fixed:cast";
    char why[MF_REASON_MAX];

    ck_assert_msg(mf_pipeline_open(test_device, &s, &set, text, why, sizeof(why), &p) == 0, "%s", why);
    ck_assert_int_eq(mf_pipeline_call(p, 15, &(struct mf_fmoe_args){0}, NULL), -ENOTSUP);
    p = mf_pipeline_close(p);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = planted_setup, .teardown = planted_teardown});
}
