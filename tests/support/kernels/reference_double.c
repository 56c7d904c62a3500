#include "support/kernels/reference_double.h"

#include <errno.h>

#include "common/base/cleanup.h"
#include "kernels/core/quant.h"

/* Buffers for one token. The longest row has H or 2I values. */
struct buffers {
    float *x, *w;
    void *scratch;
    double *g, *h;
};

static double dot(const float *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void make_h(const struct mf_layer_data *d, const struct mf_reference *r, int64_t slot, bool quantise_h,
                   struct buffers *o)
{
    const struct mf_shape *s = &d->shape;
    size_t I = (size_t)s->inter_dim;
    const float *b1 = s->has_b1 ? d->b1 + mf_shape_local_expert(s, d->ids[slot]) * mf_gemm1_cols(s) : NULL;
    double factor = s->doweight_stage1 ? (double)d->weights[slot] : 1;
    for (int64_t i = 0; i < mf_gemm1_cols(s); i++)
        o->g[i] = o->g[i] * factor + (b1 ? (double)b1[i] : 0);
    for (size_t i = 0; i < I; i++)
        o->h[i] = s->use_g1u1 ? mf_activate(s, o->g[i], o->g[I + i]) : mf_activate_gate(s, o->g[i]);
    if (!quantise_h)
        return;
    struct mf_tensor_spec a = mf_plain_h(s, 1);
    for (size_t i = 0; i < I; i++)
        o->w[i] = mf_bf16_to_float(mf_bf16_from_float((float)o->h[i]));
    mf_reference_requantise(r, &a, o->w, I, o->scratch);
    for (size_t i = 0; i < I; i++)
        o->h[i] = (double)o->w[i];
}

static void add_slot(const struct mf_layer_data *d, const struct mf_reference *r, int64_t slot,
                     bool quantise_h, struct buffers *o, double *y)
{
    const struct mf_shape *s = &d->shape;
    int32_t expert = mf_shape_local_expert(s, d->ids[slot]);
    if (expert < 0)
        return;
    for (int64_t n = 0; n < mf_gemm1_cols(s); n++) {
        mf_reference_weight_row(d, MF_TENSOR_W1, expert, n, o->w);
        double sum = 0;
        for (int32_t k = 0; k < s->model_dim; k++)
            sum += (double)o->x[k] * (double)o->w[k];
        o->g[n] = sum;
    }
    make_h(d, r, slot, quantise_h, o);
    double weight = s->doweight_stage1 ? 1 : (double)d->weights[slot];
    for (int64_t n = 0; n < s->model_dim; n++) {
        mf_reference_weight_row(d, MF_TENSOR_W2, expert, n, o->w);
        double bias = s->has_b2 ? (double)d->b2[(int64_t)expert * s->model_dim + n] : 0;
        y[n] += weight * (dot(o->w, o->h, (size_t)s->inter_dim) + bias);
    }
}

int mf_reference_row_double(const struct mf_layer_data *data, const struct mf_reference *r, int64_t token,
                            bool quantise_h, double *y)
{
    const struct mf_shape *s = &data->shape;
    size_t n = (size_t)MF_MAX(s->model_dim, 2 * s->inter_dim);
    _cleanup_(mf_freep) float *x = calloc(n, sizeof(*x)), *w = calloc(n, sizeof(*w));
    _cleanup_(mf_freep) void *scratch = calloc(n + 32, 8);
    _cleanup_(mf_freep) double *g = calloc(n, sizeof(*g)), *h = calloc(n, sizeof(*h));
    if (!x || !w || !scratch || !g || !h)
        return -ENOMEM;
    struct buffers o = {x, w, scratch, g, h};
    struct mf_tensor_spec a = mf_plain_x(s);
    for (int32_t i = 0; i < s->model_dim; i++) {
        x[i] = mf_bf16_to_float(data->x[token * s->model_dim + i]);
        y[i] = 0;
    }
    mf_reference_requantise(r, &a, x, (size_t)s->model_dim, scratch);
    for (int32_t k = 0; k < s->topk; k++)
        add_slot(data, r, token * s->topk + k, quantise_h, &o, y);
    return 0;
}
