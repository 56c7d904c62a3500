#include "support/farm/serving.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/pipeline_search.h"
#include "kernels/core/data.h"
#include "kernels/core/family.h"
#include "kernels/core/quant.h"
#include "kernels/pipeline/fmoe.h"
#include "support/tuned_table.h"

#define SEED   7
#define POISON 0x7fc1

const char *const serving_layers[3] = {
    "40,256,128,8,3,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
    "40,256,128,8,3,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_"
    "Token,1,0",
    "40,256,128,8,3,ActivationType.Gelu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_"
    "1x128,1,1",
};

const char *serving_device(struct mf_device **ret)
{
    const char *name = getenv("MOEFARM_TEST_DEVICE");
    char why[MF_REASON_MAX];

    name = name && *name ? name : "cpu:0";
    ck_assert_msg(mf_device_open_with(name, &(struct mf_device_open_options){.guest = true}, why, sizeof(why),
                                      ret) == 0,
                  "%s: %s", name, why);
    return name;
}

/* ---- tables ---- */

static char files[64][48];
static size_t n_files;

static void remove_files(void)
{
    for (size_t i = 0; i < n_files; i++)
        (void)unlink(files[i]);
}

const char *serving_file(const char *text)
{
    char *path = files[n_files++];
    int fd;

    ck_assert_uint_lt(n_files, MF_ARRAY_LEN(files));
    if (n_files == 1)
        ck_assert_int_eq(atexit(remove_files), 0);
    (void)mf_copy(path, sizeof(files[0]), "/tmp/served.XXXXXX");
    fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(close(fd), 0);
    return path;
}

const char *serving_table(const struct mf_device *device, const struct mf_shape *shape,
                          const struct served_row *rows, size_t n)
{
    static char text[1 << 16];

    mf_format(text, sizeof(text), "%s", TABLE_HEADER);
    for (size_t i = 0; i < n; i++) {
        struct mf_shape s = *shape;
        char class[MF_DEVICE_CLASS_TEXT_MAX + 8], row[MF_SHAPE_TEXT_MAX], us[32];
        s.token = rows[i].token;
        mf_shape_print(&s, row);
        mf_format(us, sizeof(us), "%.4f", rows[i].us);
        mf_format(class, sizeof(class), "%s,%d", device->info.class.gfx, device->info.class.cu_num);
        add_row(text, sizeof(text), class, row, us, rows[i].pipeline, "");
    }
    return serving_file(text);
}

/* ---- pipelines ---- */

struct offers {
    struct mf_offer offer; /* must be the first member */
    struct mf_step *steps;
    size_t n, cap;
};

static int take(struct mf_offer *offer, const struct mf_step *step)
{
    struct offers *o = (struct offers *)offer;

    for (int i = 0; i < step->n_needs; i++) {
        if (mf_tensor_spec_is_weight(&step->needs[i]) && strcmp(step->needs[i].order, "row") != 0)
            return 0;
    }
    ck_assert_int_eq(mf_array_grow(&o->steps, o->n, &o->cap, sizeof(*o->steps)), 0);
    o->steps[o->n++] = *step;
    return 0;
}
const char *serving_pipeline(struct mf_device *device, const struct mf_shape *shape, int i)
{
    static char names[8][MF_PIPELINE_TEXT_MAX];
    static int n_names;
    struct offers o = {.offer = {take, mf_offer_ignore_rejection}};
    struct mf_path_problem p = {.ops = mf_layer_ops(shape), .format = MF_FORMAT_BF16, .gap_us = 1, .keep = 1};
    char *text = names[n_names++ % (int)MF_ARRAY_LEN(names)];
    struct mf_path_step *steps;
    struct mf_path *paths;
    size_t n;

    text[0] = '\0';
    ck_assert_int_eq(mf_enumerate(&device->info, shape, NULL, &o.offer), 0);
    steps = calloc(o.n + 1, sizeof(*steps));
    for (size_t s = 0; s < o.n; s++)
        steps[s] = (struct mf_path_step){&o.steps[s], 1};
    p.steps = steps;
    p.n_steps = o.n;
    ck_assert_int_eq(mf_path_find(&p, &paths, &n), 0);
    ck_assert_uint_gt(n, (size_t)i);
    for (int32_t s = 0; s < paths[i].n; s++) {
        const struct mf_step *step = &o.steps[paths[i].steps[s]];
        ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(names[0]), step->family, step->name), 0);
    }
    free(paths);
    free(steps);
    free(o.steps);
    return text;
}

/* ---- data ---- */

static void *on_device(struct serving *s, const void *from, size_t bytes)
{
    void *at = s->device->ops->alloc(s->device, bytes);

    ck_assert_ptr_nonnull(at);
    if (from)
        ck_assert_int_eq(s->device->ops->copy(s->device, at, from, bytes), 0);
    return at;
}

static size_t x_bytes(const struct serving *s)
{
    return (size_t)s->shape.token * (size_t)s->shape.model_dim * 2;
}
static size_t topk_bytes(const struct serving *s)
{
    return (size_t)s->shape.token * (size_t)s->shape.topk * 4;
}

static void make_weight(struct serving *s, struct fmoe_layer *l, int which)
{
    struct fmoe_weight w;
    struct mf_tensor_ref *row = which == 1 ? &s->host.w1 : &s->host.w2;
    const void *from[3] = {0};
    void *packed[3] = {0};

    ck_assert_int_eq(fmoe_layer_weight(l, which, &w), 0);
    for (int i = 0; i < 3 && w.bytes[i] > 0; i++) {
        from[i] = row->part[i] = aligned_alloc(64, (w.bytes[i] + 63) / 64 * 64);
        packed[i] = aligned_alloc(64, (w.bytes[i] + 63) / 64 * 64);
    }
    ck_assert_int_eq(mf_data_weight(&s->shape, which == 1 ? MF_TENSOR_W1 : MF_TENSOR_W2, SEED, row), 0);
    ck_assert_int_eq(fmoe_layer_pack(l, which, from, packed), 0);
    for (int i = 0; i < 3 && w.bytes[i] > 0; i++) {
        s->w[which - 1][i] = on_device(s, packed[i], w.bytes[i]);
        free(packed[i]);
    }
}

void serving_make(struct serving *s, struct mf_device *device, struct fmoe_layer *l,
                  const struct mf_shape *shape)
{
    *s = (struct serving){.device = device, .shape = *shape, .host.shape = *shape};
    make_weight(s, l, 1);
    make_weight(s, l, 2);
    s->host.x = malloc(x_bytes(s));
    s->host.ids = malloc(topk_bytes(s));
    s->host.weights = malloc(topk_bytes(s));
    mf_data_x(shape, SEED, (uint16_t *)(uintptr_t)s->host.x);
    s->x = on_device(s, s->host.x, x_bytes(s));
    s->y = on_device(s, NULL, x_bytes(s));
    s->ids = on_device(s, NULL, topk_bytes(s));
    s->weights = on_device(s, NULL, topk_bytes(s));
    s->workspace_bytes = fmoe_workspace_bytes(l);
    s->workspace = on_device(s, NULL, s->workspace_bytes + 64);
    serving_route(s, SEED);
}

void serving_route(struct serving *s, uint64_t seed)
{
    const struct mf_routing routing = {.kind = MF_ROUTING_UNIFORM};

    ck_assert_int_eq(mf_data_topk(&s->shape, &routing, seed, (int32_t *)(uintptr_t)s->host.ids,
                                  (float *)(uintptr_t)s->host.weights),
                     0);
    serving_update(s);
}

void serving_update(struct serving *s)
{
    ck_assert_int_eq(s->device->ops->copy(s->device, s->ids, s->host.ids, topk_bytes(s)), 0);
    ck_assert_int_eq(s->device->ops->copy(s->device, s->weights, s->host.weights, topk_bytes(s)), 0);
    mf_reference_release(&s->reference);
    ck_assert_int_eq(mf_reference_make(&s->host, &s->reference), 0);
}

struct fmoe_call serving_call(const struct serving *s, int64_t tokens, void *stream)
{
    return (struct fmoe_call){.tokens = tokens,
                              .x = s->x,
                              .ids = s->ids,
                              .weights = s->weights,
                              .weights_type = FMOE_FLOAT32,
                              .w1 = {s->w[0][0], s->w[0][1], s->w[0][2]},
                              .w2 = {s->w[1][0], s->w[1][1], s->w[1][2]},
                              .y = s->y,
                              .workspace = s->workspace,
                              .workspace_bytes = s->workspace_bytes,
                              .stream = stream};
}

void serving_poison(const struct serving *s)
{
    uint16_t *y = malloc(x_bytes(s));

    for (size_t i = 0; i < x_bytes(s) / 2; i++)
        y[i] = POISON;
    ck_assert_int_eq(s->device->ops->copy(s->device, s->y, y, x_bytes(s)), 0);
    free(y);
}

/* Maximum relative error of a row. It results from rounding to bf16 and from the quantisation of h. */
#define APART 0.03

bool serving_matches(const struct serving *s, int64_t tokens)
{
    const size_t H = (size_t)s->shape.model_dim;
    uint16_t *y = malloc(x_bytes(s));
    bool right = true;

    ck_assert_int_eq(s->device->ops->copy(s->device, y, s->y, x_bytes(s)), 0);
    for (size_t t = 0; t < (size_t)tokens; t++) {
        double difference = 0, norm = 0;
        for (size_t i = 0; i < H; i++) {
            double want = (double)s->reference.y[t * H + i], got = (double)mf_bf16_to_float(y[t * H + i]);
            difference += (got - want) * (got - want);
            norm += want * want;
        }
        right = right && difference <= APART * APART * norm;
    }
    for (size_t i = (size_t)tokens * H; i < x_bytes(s) / 2; i++)
        right = right && y[i] == POISON;
    free(y);
    return right;
}

void serving_release(struct serving *s)
{
    const struct mf_device_ops *ops = s->device->ops;

    for (int i = 0; i < 3; i++) {
        free(s->host.w1.part[i]);
        free(s->host.w2.part[i]);
    }
    free((void *)(uintptr_t)s->host.x);
    free((void *)(uintptr_t)s->host.ids);
    free((void *)(uintptr_t)s->host.weights);
    mf_reference_release(&s->reference);
    ops->release(s->device, s->x, x_bytes(s));
    ops->release(s->device, s->y, x_bytes(s));
    ops->release(s->device, s->ids, topk_bytes(s));
    ops->release(s->device, s->weights, topk_bytes(s));
    ops->release(s->device, s->workspace, s->workspace_bytes + 64);
}
