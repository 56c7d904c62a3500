/* Calibrates the factors of NVFP4 activations: runs a layer up to h and reads the magnitudes of x and h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fmoe/private.h"
#include "kernels/core/codec.h"
#include "kernels/core/quant.h"
#include "kernels/ops/calibrate.h"

static const struct mf_codec *activations_of(const struct mf_shape *s)
{
    const struct mf_tensor_spec x = mf_plain_x(s);

    return mf_codec_find(x.format, x.scale);
}

/* Returns the largest magnitude of n bf16 values. NaN is larger than all numbers. */
static float amax_of(const uint16_t *at, size_t n)
{
    uint16_t most = 0;

    for (size_t i = 0; i < n; i++)
        most = MF_MAX(most, (uint16_t)(at[i] & 0x7fff));
    return mf_bf16_to_float(most);
}

/* ---- a run up to h ---- */

/* Memory of the run, on the device. */
struct run {
    struct fmoe_layer *l;
    struct mf_pipeline *pipeline;
    void *arena, *y, *calib;
    size_t arena_bytes, y_bytes;
};

static void end(struct run *r)
{
    struct mf_device *d = r->l->f->device;

    (void)d->ops->sync(d);
    if (r->arena)
        d->ops->release(d, r->arena, r->arena_bytes);
    if (r->y)
        d->ops->release(d, r->y, r->y_bytes);
    if (r->calib)
        d->ops->release(d, r->calib, 2 * sizeof(float));
    r->pipeline = mf_pipeline_close(r->pipeline);
}

static int begin(struct run *r, const struct mf_shape *s, struct fmoe_error *error)
{
    struct mf_device *d = r->l->f->device;
    struct mf_fmoe_choice choice;
    char why[MF_REASON_MAX] = "";
    int result =
        mf_fmoe_observing_h(d, s, r->l->weight[0].order, r->l->weight[1].order, why, sizeof(why), &choice);

    if (result == 0)
        result = mf_pipeline_open(d, s, NULL, choice.names, why, sizeof(why), &r->pipeline);
    if (result < 0)
        return fmoe_fail(error, -ENOTSUP, "%s", why);
    r->arena_bytes = mf_pipeline_arena_bytes(r->pipeline) + 64;
    r->y_bytes = (size_t)(s->token * s->model_dim) * 2;
    r->arena = d->ops->alloc(d, r->arena_bytes);
    r->y = d->ops->alloc(d, r->y_bytes);
    r->calib = d->ops->alloc(d, 2 * sizeof(float));
    return r->arena && r->y && r->calib ? 0 : fmoe_fail(error, -ENOMEM, "out of memory");
}

/* Reads the rows of h that belong to routes; the rows of padding are undefined. */
static int read_h(const struct run *r, const struct mf_fmoe_args *args, float *ret_amax)
{
    struct mf_device *d = r->l->f->device;
    const size_t I = (size_t)r->l->shape.inter_dim;
    int64_t rows = 0, unused;
    size_t step;
    const struct mf_tensor_ref sorted = mf_pipeline_between(r->pipeline, MF_TENSOR_SORTED, MF_FORMAT_INDEX,
                                                            args, &unused, &step),
                               h = mf_pipeline_between(r->pipeline, MF_TENSOR_H, MF_FORMAT_BF16, args, &rows,
                                                       &step);
    _cleanup_(mf_freep) int32_t *ids = calloc((size_t)rows + 1, sizeof(*ids));
    _cleanup_(mf_freep) uint16_t *values = calloc((size_t)rows * I + 1, sizeof(*values));
    int32_t num_valid[2] = {0};
    int result = ids && values ? 0 : -ENOMEM;

    if (result == 0)
        result = d->ops->copy(d, num_valid, sorted.part[3], sizeof(num_valid));
    if (result == 0)
        result = d->ops->copy(d, ids, sorted.part[0], (size_t)rows * sizeof(*ids));
    if (result == 0)
        result = d->ops->copy(d, values, h.part[0], (size_t)rows * I * sizeof(*values));
    for (int64_t i = 0; result == 0 && i < MF_MIN(rows, (int64_t)num_valid[0]); i++) {
        float amax = mf_id_slot(ids[i]) < r->l->shape.topk ? amax_of(values + (size_t)i * I, I) : 0;
        *ret_amax = amax > *ret_amax || amax != amax ? amax : *ret_amax;
    }
    return result;
}

/* Runs the steps up to the one that writes h. */
static int run_to_h(const struct run *r, const struct fmoe_call *c, float x_factor, float *ret_amax)
{
    struct mf_device *d = r->l->f->device;
    const float calib[2] = {x_factor, 1};
    struct mf_fmoe_args args = fmoe_args_of(c);
    int64_t rows;
    size_t last = 0;
    int result = d->ops->copy(d, r->calib, calib, sizeof(calib));

    args.calib.part[0] = r->calib;
    args.y.part[0] = r->y;
    args.arena = r->arena;
    if (!mf_pipeline_between(r->pipeline, MF_TENSOR_H, MF_FORMAT_BF16, &args, &rows, &last).part[0])
        return -ENOTSUP;
    mf_pipeline_bind(r->pipeline, &args);
    for (size_t i = 0; i <= last && result == 0; i++)
        result = mf_pipeline_launch(r->pipeline, i);
    if (result == 0)
        result = d->ops->sync(d);
    return result < 0 ? result : read_h(r, &args, ret_amax);
}

/* ---- the calls ---- */

static int observe(struct fmoe_layer *l, const struct fmoe_call *c, const struct mf_codec *codec,
                   float ret_amax[2], struct fmoe_error *error)
{
    struct mf_device *d = l->f->device;
    struct run run = {.l = l};
    struct mf_shape s = l->shape;
    size_t n = (size_t)(c->tokens * s.model_dim);
    _cleanup_(mf_freep) uint16_t *x = malloc(n * sizeof(*x));
    int r;

    s.token = c->tokens;
    if (!x)
        return fmoe_fail(error, -ENOMEM, "out of memory");
    r = d->ops->sync(d);
    if (r == 0)
        r = d->ops->copy(d, x, c->x, n * sizeof(*x));
    if (r < 0)
        return fmoe_fail(error, r, "reading x: %s", strerror(-r));
    ret_amax[0] = amax_of(x, n);
    r = begin(&run, &s, error);
    if (r == 0) {
        r = run_to_h(&run, c, mf_codec_global(codec, ret_amax[0]), &ret_amax[1]);
        if (r < 0)
            r = fmoe_fail(error, r, "running the layer up to h: %s", strerror(-r));
    }
    end(&run);
    return r;
}

static int check(const struct fmoe_layer *l, const struct fmoe_call *c, struct fmoe_error *error)
{
    if (!activations_of(&l->shape)->global)
        return fmoe_fail(error, -EINVAL,
                         "q_dtype_a is '%s', q_type '%s': only NVFP4 activations have factors",
                         mf_dtype_name(l->shape.q_dtype_a), mf_qtype_name(l->shape.q_type));
    if (c->tokens < 1 || c->tokens > l->max_tokens)
        return fmoe_fail(error, -EINVAL, "tokens is %lld: expected 1 to %lld", (long long)c->tokens,
                         (long long)l->max_tokens);
    if ((c->ids_type != FMOE_INT32 && c->ids_type != FMOE_INT64) ||
        (c->weights_type != FMOE_FLOAT32 && c->weights_type != FMOE_BFLOAT16))
        return fmoe_fail(error, -EINVAL, "ids_type is %d, weights_type %d: expected enum fmoe_type",
                         (int)c->ids_type, (int)c->weights_type);
    return 0;
}

int fmoe_calibrate(struct fmoe_layer *l, const struct fmoe_call *call, struct fmoe_calibration *c,
                   struct fmoe_error *error)
{
    struct mf_device *d = l->f->device;
    struct mf_calibration sum = {c->x_amax, c->h_amax, c->batches, c->tokens};
    bool is_cpu = !d->ops->own_memory;
    float amax[2] = {0, 0};
    char why[MF_REASON_MAX] = "";
    int r = check(l, call, error);

    if (r < 0)
        return r;
    if (is_cpu && !fmoe_cpu_take())
        return fmoe_fail(error, -EBUSY, "another call of the process uses the CPU");
    (void)pthread_mutex_lock(&l->f->lock);
    r = d->ops->enter(d);
    d->stream = call->stream;
    r = r < 0 ? fmoe_fail(error, r, "the device has failed: restart the process")
              : observe(l, call, activations_of(&l->shape), amax, error);
    d->stream = NULL;
    (void)pthread_mutex_unlock(&l->f->lock);
    if (is_cpu)
        fmoe_cpu_give();
    if (r < 0)
        return r;
    r = mf_calibration_add(&sum, call->tokens, amax[0], amax[1], why, sizeof(why));
    if (r < 0)
        return fmoe_fail(error, r, "%s", why);
    *c = (struct fmoe_calibration){sum.x_amax, sum.h_amax, sum.batches, sum.tokens};
    return 0;
}

int fmoe_calibration_factors(const struct fmoe_layer *l, const struct fmoe_calibration *c, float margin,
                             float ret[2], struct fmoe_error *error)
{
    const struct mf_calibration sum = {c->x_amax, c->h_amax, c->batches, c->tokens};
    const struct mf_codec *codec = activations_of(&l->shape);
    char why[MF_REASON_MAX] = "";
    int r = codec->global ? mf_calibration_factors(&sum, codec, margin, ret, why, sizeof(why)) : -EINVAL;

    return r < 0 ? fmoe_fail(error, r, "%s", *why ? why : "only NVFP4 activations have factors") : 0;
}
