#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/core/data.h"
#include "kernels/core/layout.h"
#include "measure/session/memfd_cache.h"
#include "measure/session/memory.h"
#include "measure/session/session.h"
#include "measure/session/session_data.h"

/* inputs and outputs are kept between steps up to at least this total size, in bytes */
#define BUFFER_MIN (256u << 20)

/* Returns an estimate of the host memory, in bytes, for the references with z and for the largest tensor
 * specs. */
static double layer_bytes(const struct mf_shape *shape)
{
    double rows = (double)shape->token * shape->topk, I = shape->inter_dim, H = shape->model_dim;
    double reference = 4 * (rows * (4 * I + 2 * H) + 3 * (double)shape->token * H);
    return reference + 3 * 4 * rows * (2 * I + H);
}

/* Returns the additional bytes that the host needs to create the weights in two layouts. */
static double host_weight_bytes(const struct mf_shape *shape)
{
    struct mf_tensor_spec w1 = mf_plain_w(shape, MF_TENSOR_W1, "row");
    double element = mf_codec_find(w1.format, w1.scale)->bits / 8.0;
    return 2 * element * shape->expert * (double)shape->model_dim *
           ((double)mf_gemm1_cols(shape) + shape->inter_dim);
}

static int check_memory(double needed, char *why, size_t cap)
{
    double available = (double)mf_memory_available();
    if (needed <= available)
        return 0;
    mf_format(why, cap,
              "the shape needs about %.1f GB of memory for its data and references; %.1f GB are available",
              needed / 1e9, available / 1e9);
    return -ENOMEM;
}

static int make_inputs(struct mf_session *s)
{
    size_t n = (size_t)(s->shape.token * s->shape.topk);
    int r =
        mf_region_new((size_t)s->shape.token * (size_t)s->shape.model_dim * sizeof(uint16_t), &s->x_region);
    if (r == 0)
        r = mf_region_new(2 * (n * 4 + 64), &s->topk_region);
    if (r < 0)
        return r;
    int32_t *ids = (int32_t *)s->topk_region.at;
    float *weights = (float *)(s->topk_region.at + (n * 4 + 63) / 64 * 64);
    mf_data_x(&s->shape, s->options.seed, (uint16_t *)s->x_region.at);
    r = mf_data_topk(&s->shape, &s->options.routing, s->options.seed, ids, weights);
    if (r < 0)
        return r;
    s->data = (struct mf_layer_data){
        .shape = s->shape, .x = (uint16_t *)s->x_region.at, .ids = ids, .weights = weights};
    r = mf_rotation_make(&s->shape, ids, &s->rotation);
    if (r == 0)
        r = mf_region_protect(&s->x_region);
    return r < 0 ? r : mf_region_protect(&s->topk_region);
}

static int make_bias(struct mf_session *s, enum mf_tensor b, struct mf_region *region, const float **ret)
{
    struct mf_tensor_spec a = mf_plain_bias(b);
    struct mf_part part[MF_PARTS_MAX];
    if (mf_tensor_spec_parts(&a, &s->shape, part) < 0)
        return 0; /* the shape has no such bias */
    int r = mf_region_new((size_t)mf_part_bytes(&part[0]), region);
    if (r == 0)
        r = mf_data_bias(&s->shape, b, s->options.seed, (float *)(void *)region->at);
    if (r == 0)
        r = mf_region_protect(region);
    *ret = (const float *)(const void *)region->at;
    return r;
}

/* Creates the weights in layout `row`. The host converts these weights to other layouts and computes
 * references from them. */
static int make_host_weights(struct mf_session *s, char *why, size_t cap)
{
    struct mf_session_weight *w;
    struct mf_tensor_spec a = mf_plain_w(&s->shape, MF_TENSOR_W1, "row");
    int r = check_memory(layer_bytes(&s->shape) + host_weight_bytes(&s->shape), why, cap);
    if (r == 0)
        r = mf_session_weight(s, &a, &w);
    if (r < 0)
        return r;
    s->data.w1 = w->ref;
    a = mf_plain_w(&s->shape, MF_TENSOR_W2, "row");
    r = mf_session_weight(s, &a, &w);
    if (r == 0)
        s->data.w2 = w->ref;
    return r;
}

/* Creates the shape's data and references. If the device can create weights, it also computes the references
 * from these weights. If the device has too little memory, the host creates everything. Writes to `why` only
 * if there is more to say than the text of strerror. */
static int make_data(struct mf_session *s, char *why, size_t cap)
{
    int r = check_memory(layer_bytes(&s->shape), why, cap);
    if (r == 0)
        r = make_inputs(s);
    if (r == 0)
        r = make_bias(s, MF_TENSOR_B1, &s->b1_region, &s->data.b1);
    if (r == 0)
        r = make_bias(s, MF_TENSOR_B2, &s->b2_region, &s->data.b2);
    if (r == 0)
        r = mf_device_data_new(s->device, &s->shape, s->options.seed, &s->device_data);
    if (r == 0) {
        r = mf_session_reference(s);
        if (r != -ENOMEM)
            return r;
        s->device_data = mf_device_data_free(s->device_data);
        r = -ENOTSUP;
    }
    if (r == -ENOTSUP)
        r = make_host_weights(s, why, cap);
    return r < 0 ? r : mf_session_reference(s);
}

int mf_session_new(const struct mf_session_args *args, char *why, size_t why_cap, struct mf_session **ret)
{
    const char *column, *sentence;
    if (mf_shape_check(&args->shape, &column, &sentence) < 0) {
        mf_format(why, why_cap, "%s: %s", column, sentence);
        return -EINVAL;
    }
    struct mf_session *s = calloc(1, sizeof(*s));
    if (!s) {
        mf_format(why, why_cap, "out of memory");
        return -ENOMEM;
    }
    s->device = args->device;
    s->shape = args->shape;
    s->options = *args->options;
    s->memfd_store = args->memfd_store;
    s->extra = args->extra;
    s->sink = args->sink;
    s->x_region = s->topk_region = s->b1_region = s->b2_region = s->ref_region = s->z_region = s->workspace =
        s->arena = (struct mf_region)MF_REGION_INIT;
    s->fixed_inputs = (struct mf_region)MF_REGION_INIT;
    s->buffer_max = MF_MAX((uint64_t)BUFFER_MIN, mf_memory_available() / 4);
    mf_session_phase(s->sink, MF_PHASE_DATA);
    mf_format(why, why_cap, "%s", "");
    int r = make_data(s, why, why_cap);
    if (r < 0) {
        if (r == -EINVAL)
            mf_format(why, why_cap,
                      "no data or reference exists for q_type %s with activations %s and weights %s",
                      mf_qtype_name(s->shape.q_type), mf_dtype_name(s->shape.q_dtype_a),
                      mf_dtype_name(s->shape.q_dtype_w));
        else if (!*why)
            mf_format(why, why_cap, "cannot create the shape's data: %s", strerror(-r));
        mf_session_free(s);
        return r == -EINVAL ? r : -ENOMEM;
    }
    *ret = s;
    return 0;
}

struct mf_session *mf_session_free(struct mf_session *s)
{
    if (!s)
        return NULL;
    mf_session_free_buffers(s);
    s->device_data = mf_device_data_free(s->device_data);
    for (size_t i = 0; i < s->n_weights; i++)
        mf_region_release(&s->weights[i].region);
    mf_region_release(&s->ref_region);
    mf_region_release(&s->z_region);
    mf_region_release(&s->x_region);
    mf_region_release(&s->topk_region);
    mf_region_release(&s->b1_region);
    mf_region_release(&s->b2_region);
    mf_region_release(&s->workspace);
    mf_region_release(&s->arena);
    mf_region_release(&s->fixed_inputs);
    free(s);
    return NULL;
}

bool mf_session_serves(const struct mf_session *s, const struct mf_shape *shape,
                       const struct mf_unit_options *o)
{
    return s && mf_shape_equal(&s->shape, shape) && s->options.seed == o->seed &&
           mf_routing_equal(&s->options.routing, &o->routing) &&
           memcmp(&s->options.err_ratio, &o->err_ratio, sizeof(double)) == 0 &&
           s->options.time_cap_ms == o->time_cap_ms && s->options.exhaustive == o->exhaustive &&
           s->options.warmup == o->warmup;
}
