/* Arguments of libfmoe in the types and the memory that frameworks have: ids and weights of every type,
 * packing and expert maps on the device. Runs on the CPU, or on the device that MOEFARM_TEST_DEVICE names. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant.h"
#include "support/farm/serving.h"
#include "support/mf_check.h"

static struct mf_device *device;
static const char *name;

static void open_device(void)
{
    name = serving_device(&device);
}
static void close_device(void)
{
    device = mf_device_close(device);
}

/* A layer with its own handle and its data. */
struct served_layer {
    struct fmoe *f;
    struct fmoe_layer *l;
    struct serving data;
};

static struct fmoe_layer *open_layer(struct fmoe *f, const char *text, const char *form, struct mf_shape *ret)
{
    struct fmoe_error error = {""};
    struct fmoe_layer_model model;
    struct fmoe_layer *l = NULL;

    ck_assert_int_eq(mf_shape_parse(text, ret), 0);
    model = serving_model(ret, SERVING_TOKENS);
    model.form = form;
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    return l;
}

static void serve_layer(struct served_layer *s, int layer)
{
    struct fmoe_error error = {""};
    struct mf_shape shape;

    ck_assert_msg(fmoe_open(name, NULL, 0, &error, &s->f) == 0, "%s", error.text);
    s->l = open_layer(s->f, serving_layers[layer], NULL, &shape);
    serving_make(&s->data, device, s->l, &shape);
}

static void end_serving(struct served_layer *s)
{
    serving_release(&s->data);
    fmoe_close(s->f);
}

/* Ids that no expert has. Truncated to int32, those beyond int32 would be experts. */
static const int64_t invalid_ids[] = {-1,       8, 4000, INT32_MAX, INT32_MIN, 1ll << 32, (1ll << 33) + 3,
                                      INT64_MIN};

/* Routes of experts that are not here contribute nothing, and the element types of ids and weights do not
 * change the result. */
MF_TEST(accepts_every_type, .rows = MF_ARRAY_LEN(serving_layers))
{
    const int64_t routes = SERVING_TOKENS * 3;
    struct served_layer s;
    int32_t *ids;
    float *weights;
    int64_t wide[SERVING_TOKENS * 3];
    uint16_t narrow[SERVING_TOKENS * 3];
    void *on_device[2];

    serve_layer(&s, _i);
    ids = (int32_t *)(uintptr_t)s.data.host.ids;
    weights = (float *)(uintptr_t)s.data.host.weights;
    for (int64_t i = 0; i < routes; i++) {
        int64_t id = i % 3 == 1 ? invalid_ids[i / 3 % (int64_t)MF_ARRAY_LEN(invalid_ids)] : ids[i];
        narrow[i] = mf_bf16_from_float(weights[i]);
        weights[i] = mf_bf16_to_float(narrow[i]);
        wide[i] = id;
        ids[i] = id == (int32_t)id ? (int32_t)id : -1;
    }
    serving_update(&s.data);
    for (int i = 0; i < 2; i++)
        on_device[i] = device->ops->alloc(device, sizeof(wide));
    ck_assert_int_eq(device->ops->copy(device, on_device[0], wide, sizeof(wide)), 0);
    ck_assert_int_eq(device->ops->copy(device, on_device[1], narrow, sizeof(narrow)), 0);
    for (int64_t tokens = 1; tokens <= SERVING_TOKENS; tokens += 13) {
        for (int types = 0; types < 4; types++) {
            struct fmoe_call call = serving_call(&s.data, tokens, NULL);
            if (types & 1) {
                call.ids = on_device[0];
                call.ids_type = FMOE_INT64;
            }
            if (types & 2) {
                call.weights = on_device[1];
                call.weights_type = FMOE_BFLOAT16;
            }
            serving_poison(&s.data);
            ck_assert_int_eq(fmoe_run(s.l, &call), 0);
            ck_assert_int_eq(device->ops->sync(device), 0);
            ck_assert_msg(serving_matches(&s.data, tokens), "%d tokens, types %d", (int)tokens, types);
        }
    }
    for (int i = 0; i < 2; i++)
        device->ops->release(device, on_device[i], sizeof(wide));
    end_serving(&s);
}

#define ALL 20

/* fmoe_remap_ids_device gives the ids of fmoe_remap_ids, for both types of ids. */
MF_TEST(remaps_ids_on_the_device)
{
    static const int32_t expert_map[ALL] = {-1, 5,  -1, 0,  3,  -1, -1, 7,  1,  -1,
                                            2,  -1, 4,  -1, -1, 6,  -1, -1, -1, -1};
    int32_t ids[12], want[12], got[12];
    int64_t wide[12], wide_got[12];
    struct fmoe_error error = {""};
    struct fmoe *f = NULL;
    struct fmoe_layer *l, *plain;
    struct mf_shape s;
    void *map = device->ops->alloc(device, sizeof(expert_map)),
         *at = device->ops->alloc(device, sizeof(wide));

    ck_assert_msg(fmoe_open(name, NULL, 0, &error, &f) == 0, "%s", error.text);
    plain = open_layer(f, serving_layers[0], NULL, &s);
    l = open_layer(f, serving_layers[0], "ep:0/20", &s);
    for (int i = 0; i < 12; i++) {
        ids[i] = i == 0 ? -1 : i == 11 ? ALL : i * 2;
        wide[i] = i == 0 ? (1ll << 32) + 1 : ids[i];
    }
    ck_assert_int_eq(fmoe_remap_ids(l, expert_map, 4, ids, want, &error), 0);
    ck_assert_int_eq(device->ops->copy(device, map, expert_map, sizeof(expert_map)), 0);
    for (int type = FMOE_INT32; type <= FMOE_INT64; type++) {
        bool is_wide = type == FMOE_INT64;
        size_t bytes = is_wide ? sizeof(wide) : sizeof(ids);
        ck_assert_int_eq(device->ops->copy(device, at, is_wide ? (void *)wide : ids, bytes), 0);
        ck_assert_int_eq(fmoe_remap_ids_device(l, map, 4, at, type, at, NULL), 0);
        ck_assert_int_eq(device->ops->sync(device), 0);
        ck_assert_int_eq(device->ops->copy(device, is_wide ? (void *)wide_got : got, at, bytes), 0);
        for (int i = 0; i < 12; i++)
            ck_assert_int_eq(is_wide ? wide_got[i] : got[i], want[i]);
    }
    ck_assert_int_eq(fmoe_remap_ids_device(l, map, 4, at, FMOE_FLOAT32, at, NULL), -EINVAL);
    ck_assert_int_eq(fmoe_remap_ids_device(l, map, 0, at, FMOE_INT32, at, NULL), -EINVAL);
    ck_assert_int_eq(fmoe_remap_ids_device(plain, map, 4, at, FMOE_INT32, at, NULL), -EINVAL);
    device->ops->release(device, map, sizeof(expert_map));
    device->ops->release(device, at, sizeof(wide));
    fmoe_close(f);
}

/* The device conversion gives the bytes of the host conversion. */
MF_TEST(packs_on_the_device, .rows = MF_ARRAY_LEN(serving_layers))
{
    struct served_layer s;

    serve_layer(&s, _i);
    for (int which = 1; which <= 2; which++) {
        const struct mf_tensor_ref *row = which == 1 ? &s.data.host.w1 : &s.data.host.w2;
        struct fmoe_weight w;
        void *from[3] = {0}, *to[3] = {0};
        ck_assert_int_eq(fmoe_layer_weight(s.l, which, &w), 0);
        for (int i = 0; i < 3 && w.bytes[i] > 0; i++) {
            from[i] = device->ops->alloc(device, w.bytes[i]);
            to[i] = device->ops->alloc(device, w.bytes[i]);
            ck_assert_int_eq(device->ops->copy(device, from[i], row->part[i], w.bytes[i]), 0);
        }
        ck_assert_int_eq(fmoe_layer_pack_device(s.l, which, (const void *const *)from, to, NULL), 0);
        ck_assert_int_eq(device->ops->sync(device), 0);
        for (int i = 0; i < 3 && w.bytes[i] > 0; i++) {
            _cleanup_(mf_freep) char *got = malloc(w.bytes[i]);
            _cleanup_(mf_freep) char *want = malloc(w.bytes[i]);
            ck_assert_int_eq(device->ops->copy(device, got, to[i], w.bytes[i]), 0);
            ck_assert_int_eq(device->ops->copy(device, want, s.data.w[which - 1][i], w.bytes[i]), 0);
            ck_assert_mem_eq(got, want, w.bytes[i]);
            device->ops->release(device, from[i], w.bytes[i]);
            device->ops->release(device, to[i], w.bytes[i]);
        }
    }
    ck_assert_int_eq(fmoe_layer_pack_device(s.l, 3, NULL, NULL, NULL), -EINVAL);
    end_serving(&s);
}

/* ---- calibration ---- */

static const char nvfp4[] = "40,256,128,8,3,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,"
                            "torch.float4_e2m1fn_x2,QuantType.per_1x16,1,0";

/* A layer with NVFP4 activations; its members of host data are for SERVING_TOKENS tokens. */
static void serve_nvfp4(struct served_layer *s)
{
    struct fmoe_error error = {""};
    struct mf_shape shape;

    ck_assert_msg(fmoe_open(name, NULL, 0, &error, &s->f) == 0, "%s", error.text);
    s->l = open_layer(s->f, nvfp4, NULL, &shape);
    serving_make(&s->data, device, s->l, &shape);
}

static double ratio(float a, float b)
{
    return (double)a / (double)b;
}

/* The magnitudes are those of the reference, over all batches; routes of no expert do not count. With the
 * factors, the layer computes the reference's output. */
MF_TEST(calibrates_from_batches)
{
    struct fmoe_calibration c = {0};
    struct fmoe_error error = {""};
    struct served_layer s;
    struct fmoe_call call;
    float factors[2], first;

    serve_nvfp4(&s);
    ((int32_t *)(uintptr_t)s.data.host.ids)[4] = -1;
    ((int32_t *)(uintptr_t)s.data.host.ids)[7] = 4000;
    serving_update(&s.data);
    call = serving_call(&s.data, 3, NULL);
    call.y = call.workspace = NULL;
    call.workspace_bytes = 0;
    ck_assert_int_eq(fmoe_calibration_factors(s.l, &c, 1, factors, &error), -ENODATA);
    ck_assert_msg(fmoe_calibrate(s.l, &call, &c, &error) == 0, "%s", error.text);
    first = c.h_amax;
    call.tokens = SERVING_TOKENS;
    ck_assert_msg(fmoe_calibrate(s.l, &call, &c, &error) == 0, "%s", error.text);
    ck_assert_int_eq(c.batches, 2);
    ck_assert_int_eq(c.tokens, 3 + SERVING_TOKENS);
    ck_assert(first > 0 && first <= c.h_amax);
    ck_assert(c.x_amax == s.data.reference.x_amax);
    ck_assert_double_eq_tol(ratio(c.h_amax, s.data.reference.h_amax), 1, 0.02);
    ck_assert_int_eq(fmoe_calibration_factors(s.l, &c, 0, factors, &error), -EINVAL);
    ck_assert_int_eq(fmoe_calibration_factors(s.l, &c, 1, factors, &error), 0);
    ck_assert_double_eq_tol(ratio(factors[0] * c.x_amax, 2688), 1, 1e-5);
    ck_assert_double_eq_tol(ratio(factors[1] * c.h_amax, 2688), 1, 1e-5);
    call = serving_call(&s.data, SERVING_TOKENS, NULL);
    s.data.calib = device->ops->alloc(device, sizeof(factors));
    call.calib = s.data.calib;
    ck_assert_int_eq(device->ops->copy(device, s.data.calib, factors, sizeof(factors)), 0);
    serving_poison(&s.data);
    ck_assert_int_eq(fmoe_run(s.l, &call), 0);
    ck_assert_int_eq(device->ops->sync(device), 0);
    ck_assert_msg(serving_matches(&s.data, SERVING_TOKENS), "the calibrated layer is wrong");
    device->ops->release(device, s.data.calib, sizeof(factors));
    end_serving(&s);
}

MF_TEST(refuses_what_it_cannot_calibrate)
{
    struct fmoe_calibration c = {.x_amax = 2};
    struct fmoe_error error = {""};
    struct served_layer s;
    struct fmoe_call call;
    float factors[2];

    serve_layer(&s, 0);
    call = serving_call(&s.data, 1, NULL);
    ck_assert_int_eq(fmoe_calibrate(s.l, &call, &c, &error), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "only NVFP4 activations have factors"));
    ck_assert_int_eq(fmoe_calibration_factors(s.l, &c, 1, factors, &error), -EINVAL);
    end_serving(&s);
    serve_nvfp4(&s);
    call = serving_call(&s.data, SERVING_TOKENS + 1, NULL);
    ck_assert_int_eq(fmoe_calibrate(s.l, &call, &c, &error), -EINVAL);
    ck_assert_str_eq(error.text, "tokens is 41: expected 1 to 40");
    call.tokens = 1;
    call.weights_type = 0;
    ck_assert_int_eq(fmoe_calibrate(s.l, &call, &c, &error), -EINVAL);
    call.weights_type = FMOE_FLOAT32;
    ((uint16_t *)(uintptr_t)s.data.host.x)[5] = 0x7f80; /* infinity */
    ck_assert_int_eq(device->ops->copy(device, s.data.x, s.data.host.x, 16), 0);
    ck_assert_int_eq(fmoe_calibrate(s.l, &call, &c, &error), -EINVAL);
    ck_assert_str_eq(error.text, "x of batch 0 holds a value that is not finite");
    ck_assert(c.x_amax == 2 && c.batches == 0);
    end_serving(&s);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 110, .setup = open_device, .teardown = close_device});
}
