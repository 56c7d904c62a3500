/* Computes the large products of the reference on the device. Processes a few experts at a time: generates
 * their decoded weights, computes the products and discards the weights. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/gpu/host/device_data_private.h"

/* maximum bytes of decoded weights at a time; an expert with more bytes is processed alone */
#define WEIGHT_BYTES  (UINT64_C(1) << 30)
#define LANES_PER_ROW 16 /* lanes per row in mf_differences */

/* Device memory for one half of the reference. All allocations are released together. */
struct scratch {
    struct mf_device *device;
    struct {
        void *at;
        size_t bytes;
    } all[16];
    int n;
};

static void *scratch_alloc(struct scratch *r, size_t bytes)
{
    void *p =
        (size_t)r->n < MF_ARRAY_LEN(r->all) ? r->device->ops->alloc(r->device, MF_MAX(bytes, 64)) : NULL;
    if (p) {
        r->all[r->n].at = p;
        r->all[r->n++].bytes = MF_MAX(bytes, 64);
    }
    return p;
}

/* Allocates scratch memory and copies host data into it. */
static void *scratch_upload(struct scratch *r, const void *from, size_t bytes)
{
    void *p = scratch_alloc(r, bytes);
    return p && (bytes == 0 || r->device->ops->copy(r->device, p, from, bytes) == 0) ? p : NULL;
}

/* Removes an allocation from the scratch, so that scratch_free does not release the allocation. */
static void scratch_detach(struct scratch *r, const void *at)
{
    for (int i = 0; i < r->n; i++) {
        if (r->all[i].at == at) {
            r->all[i] = r->all[--r->n];
            return;
        }
    }
}

static void scratch_free(struct scratch *r)
{
    while (r->n > 0) {
        r->n--;
        r->device->ops->release(r->device, r->all[r->n].at, r->all[r->n].bytes);
    }
}

/* ---- assignment of slots to experts ---- */

struct work {
    mf_i32 *slots, *experts; /* `slots` are grouped by expert; `experts` are those with at least one slot */
    struct mf_hip_dots_tile *tiles;
    int64_t n_slots, n_experts, n_tiles;
    int64_t *first_tile; /* [n_experts + 1]: first tile of each expert in `experts`, then n_tiles */
};

static void release_work(struct work *w)
{
    free(w->slots);
    free(w->experts);
    free(w->tiles);
    free(w->first_tile);
}

static int plan_tiles(const struct mf_shape *s, const struct mf_reference_slots *slots,
                      int64_t experts_per_pass, struct work *ret)
{
    struct work w = {.n_slots = slots->first[s->expert]};
    size_t max_tiles = (size_t)(w.n_slots / MF_DOTS_TILE + s->expert);
    w.slots = reallocarray(NULL, (size_t)w.n_slots + 1, sizeof(*w.slots));
    w.experts = reallocarray(NULL, (size_t)s->expert, sizeof(*w.experts));
    w.tiles = reallocarray(NULL, max_tiles, sizeof(*w.tiles));
    w.first_tile = reallocarray(NULL, (size_t)s->expert + 1, sizeof(*w.first_tile));
    if (!w.slots || !w.experts || !w.tiles || !w.first_tile) {
        release_work(&w);
        return -ENOMEM;
    }
    for (int64_t i = 0; i < w.n_slots; i++)
        w.slots[i] = (mf_i32)slots->slots[i];
    for (int32_t e = 0; e < s->expert; e++) {
        int64_t last = slots->first[e + 1];
        w.first_tile[w.n_experts] = w.n_tiles;
        for (int64_t i = slots->first[e]; i < last; i += MF_DOTS_TILE)
            w.tiles[w.n_tiles++] =
                (struct mf_hip_dots_tile){(mf_i32)(w.n_experts % experts_per_pass), e, (mf_i32)i,
                                          (mf_i32)MF_MIN((int64_t)MF_DOTS_TILE, last - i)};
        if (slots->first[e] < last)
            w.experts[w.n_experts++] = e;
    }
    w.first_tile[w.n_experts] = w.n_tiles;
    *ret = w;
    return 0;
}

/* ---- product of slot rows with a weight ---- */

struct product {
    enum mf_tensor w;
    int64_t n, k;      /* size of the weight of one expert */
    const float *a[2]; /* in device memory: one or two left operands */
    float *out[2];     /* in device memory, zeroed: [T·k, n] */
    int n_a;
    mf_i32 slots_of_row;
    const float *bias; /* in host memory; NULL: no bias */
};

static struct mf_device_data_launch dots(const struct mf_device_data *m, const struct mf_hip_dots_args *args)
{
    struct mf_device_data_launch l = {.function = &m->functions[MF_DEVICE_DATA_DOTS], .bytes = sizeof(*args)};
    l.grid = mf_device_data_grid(m, args->n_tiles * ((args->n + MF_DOTS_TILE - 1) / MF_DOTS_TILE));
    l.args.dots = *args;
    return l;
}

/* Adds the launches of a whole product, in passes. Each pass uses the weights of experts_per_pass experts.
 * Returns the number of launches. */
static int64_t add_product(struct mf_device_data *m, const struct product *p, const struct work *work,
                           int64_t experts_per_pass, struct mf_device_data_matrices *matrices, float *decoded,
                           const struct mf_hip_dots_args *all, struct mf_device_data_launch *launches)
{
    const mf_i32 *indices = matrices->indices;
    int64_t n = 0;
    for (int64_t i = 0; i < work->n_experts; i += experts_per_pass) {
        int64_t first = work->first_tile[i];
        matrices->n = MF_MIN(experts_per_pass, work->n_experts - i);
        matrices->indices = indices + i;
        n += mf_device_data_add_data(m, matrices, launches + n);
        launches[n - 1].args.data.out = decoded;
        for (int a = 0; a < p->n_a; a++) {
            struct mf_hip_dots_args args = *all;
            args.a = p->a[a];
            args.out = p->out[a];
            args.tiles += first;
            args.n_tiles = (mf_i32)(work->first_tile[i + matrices->n] - first);
            launches[n++] = dots(m, &args);
        }
    }
    return n;
}

static int multiply(struct mf_device_data *m, const struct mf_reference_slots *slots, const struct product *p,
                    struct scratch *scratch)
{
    const struct mf_shape *s = &m->shape;
    const struct mf_codec *c = m->codecs.w;
    int64_t expert_bytes = p->n * p->k * (int64_t)sizeof(float);
    int64_t experts_per_pass = MF_MIN(MF_MAX((int64_t)WEIGHT_BYTES / expert_bytes, 1), (int64_t)s->expert);
    struct mf_device_data_matrices matrices = {
        .tensor = p->w, .codec = c, .n = experts_per_pass, .rows = p->n, .cols = p->k};
    struct work work;
    int r = plan_tiles(s, slots, experts_per_pass, &work);
    if (r < 0)
        return r;
    float *decoded = scratch_alloc(scratch, (size_t)(experts_per_pass * expert_bytes));
    if (mf_device_data_needs_amax(c))
        matrices.amax = scratch_alloc(scratch, (size_t)mf_device_data_groups(&matrices) * sizeof(float));
    matrices.indices = scratch_upload(scratch, work.experts, (size_t)work.n_experts * sizeof(*work.experts));
    struct mf_hip_dots_args all = {
        .w = decoded,
        .slots = scratch_upload(scratch, work.slots, (size_t)work.n_slots * sizeof(*work.slots)),
        .tiles = scratch_upload(scratch, work.tiles, (size_t)work.n_tiles * sizeof(*work.tiles)),
        .n = (mf_i32)p->n,
        .k = (mf_i32)p->k,
        .slots_of_row = p->slots_of_row,
    };
    if (p->bias)
        all.bias = scratch_upload(scratch, p->bias, (size_t)(s->expert * p->n) * sizeof(float));
    size_t max_launches = (size_t)(work.n_experts / experts_per_pass + 1) * 4;
    _cleanup_(mf_freep) struct mf_device_data_launch *launches = calloc(max_launches, sizeof(*launches));
    bool allocated = decoded && matrices.indices && all.slots && all.tiles && (all.bias || !p->bias) &&
                     (matrices.amax || !mf_device_data_needs_amax(c)) && launches;
    r = allocated ? 0 : -ENOMEM;
    if (r == 0)
        r = mf_device_data_run(
            m, launches,
            (size_t)add_product(m, p, &work, experts_per_pass, &matrices, decoded, &all, launches));
    release_work(&work);
    return r;
}

/* ---- reference engine ---- */

struct engine {
    struct mf_reference_engine engine; /* must be first */
    struct mf_device_data *m;
};

/* Decodes the quantised x to float [T,H] in device memory. */
static int decode_x(struct mf_device_data *m, struct scratch *scratch, float **ret)
{
    struct mf_device_data_matrices x = {.tensor = MF_TENSOR_X,
                                        .codec = m->codecs.a,
                                        .n = 1,
                                        .rows = m->shape.token,
                                        .cols = m->shape.model_dim};
    struct mf_device_data_launch launches[2];
    float *decoded = scratch_alloc(scratch, (size_t)(x.rows * x.cols) * sizeof(float));
    if (mf_device_data_needs_amax(x.codec)) {
        x.amax = scratch_alloc(scratch, (size_t)mf_device_data_groups(&x) * sizeof(float));
        if (!x.amax)
            return -ENOMEM;
    }
    if (!decoded)
        return -ENOMEM;
    int n = mf_device_data_add_data(m, &x, launches);
    launches[n - 1].args.data.out = decoded;
    *ret = decoded;
    return mf_device_data_run(m, launches, (size_t)n);
}

static int gemm1(struct mf_reference_engine *base, const struct mf_layer_data *data,
                 const struct mf_reference_slots *slots, struct mf_reference *out)
{
    struct mf_device_data *m = ((struct engine *)base)->m;
    const struct mf_shape *s = &data->shape;
    struct scratch scratch = {.device = m->device};
    size_t bytes = (size_t)(s->token * s->topk * mf_gemm1_cols(s)) * sizeof(float);
    float *x = NULL, *g = scratch_alloc(&scratch, bytes);
    int r = g ? decode_x(m, &scratch, &x) : -ENOMEM;
    if (r == 0) {
        struct product p = {.w = MF_TENSOR_W1,
                            .n = mf_gemm1_cols(s),
                            .k = s->model_dim,
                            .a = {x},
                            .out = {g},
                            .n_a = 1,
                            .slots_of_row = s->topk};
        r = multiply(m, slots, &p, &scratch);
    }
    if (r == 0)
        r = m->device->ops->copy(m->device, out->g, g, bytes);
    scratch_free(&scratch);
    return r;
}

static struct mf_device_data_launch sum_slots(const struct mf_device_data *m, const float *z,
                                              const float *weights, float *y)
{
    struct mf_device_data_launch l = {.function = &m->functions[MF_DEVICE_DATA_SLOTS],
                                      .bytes = sizeof(struct mf_hip_slots_args)};
    int64_t values = m->shape.token * m->shape.model_dim;
    l.grid = mf_device_data_grid(m, (values + MF_DEVICE_DATA_THREADS - 1) / MF_DEVICE_DATA_THREADS);
    l.args.slots = (struct mf_hip_slots_args){.z = z,
                                              .weights = weights,
                                              .y = y,
                                              .token = (mf_i32)m->shape.token,
                                              .topk = m->shape.topk,
                                              .cols = m->shape.model_dim};
    return l;
}

static struct mf_device_data_launch differences(const struct mf_device_data *m, const float *a,
                                                const float *b, int64_t rows, double *to)
{
    struct mf_device_data_launch l = {.function = &m->functions[MF_DEVICE_DATA_DIFFERENCES],
                                      .bytes = sizeof(struct mf_hip_difference_args)};
    l.grid =
        mf_device_data_grid(m, (rows * LANES_PER_ROW + MF_DEVICE_DATA_THREADS - 1) / MF_DEVICE_DATA_THREADS);
    l.args.difference =
        (struct mf_hip_difference_args){.a = a, .b = b, .out = to, .rows = rows, .cols = m->shape.model_dim};
    return l;
}

/* Converts the sums that the device computed for each row to row errors. */
static int copy_errors(struct mf_device *d, const double *from, int64_t rows, float *to)
{
    _cleanup_(mf_freep) double *sums = reallocarray(NULL, (size_t)rows, 2 * sizeof(*sums));
    int r = sums ? d->ops->copy(d, sums, from, (size_t)rows * 2 * sizeof(*sums)) : -ENOMEM;
    for (int64_t i = 0; i < rows && r == 0; i++)
        to[i] = mf_reference_error(sums[2 * i], sums[2 * i + 1]);
    return r;
}

/* Outputs of gemm2 in device memory: [0] computed from h, [1] computed from h before quantisation. */
struct gemm2_outputs {
    float *z[2], *y[2];
    double *z_sums, *y_sums; /* NULL if h is not quantised */
};

static int sum_and_compare(struct mf_device_data *m, const struct mf_layer_data *data,
                           const struct gemm2_outputs *o, struct scratch *scratch)
{
    const struct mf_shape *s = &data->shape;
    struct mf_device_data_launch launches[4];
    size_t n = 0;
    float *weights = NULL;
    if (!s->doweight_stage1) {
        weights = scratch_upload(scratch, data->weights, (size_t)(s->token * s->topk) * sizeof(float));
        if (!weights)
            return -ENOMEM;
    }
    launches[n++] = sum_slots(m, o->z[0], weights, o->y[0]);
    if (o->z_sums) {
        launches[n++] = sum_slots(m, o->z[1], weights, o->y[1]);
        launches[n++] = differences(m, o->z[0], o->z[1], s->token * s->topk, o->z_sums);
        launches[n++] = differences(m, o->y[0], o->y[1], s->token, o->y_sums);
    }
    return mf_device_data_run(m, launches, n);
}

static int alloc_gemm2_outputs(struct scratch *scratch, const struct mf_shape *s, bool quantise,
                               struct gemm2_outputs *ret)
{
    size_t rows = (size_t)(s->token * s->topk), H = (size_t)s->model_dim, T = (size_t)s->token;
    bool all = true;
    *ret = (struct gemm2_outputs){0};
    for (int i = 0; i <= quantise; i++) {
        ret->z[i] = scratch_alloc(scratch, rows * H * sizeof(float));
        ret->y[i] = scratch_alloc(scratch, T * H * sizeof(float));
        all &= ret->z[i] && ret->y[i];
    }
    if (quantise) {
        ret->z_sums = scratch_alloc(scratch, rows * 2 * sizeof(double));
        ret->y_sums = scratch_alloc(scratch, T * 2 * sizeof(double));
        all &= ret->z_sums && ret->y_sums;
    }
    return all ? 0 : -ENOMEM;
}

static size_t z_bytes(const struct mf_shape *s)
{
    return (size_t)(s->token * s->topk * s->model_dim) * sizeof(float);
}

static int download_gemm2(struct mf_device *d, const struct mf_shape *s, const struct gemm2_outputs *o,
                          struct mf_reference *out)
{
    int r = d->ops->copy(d, out->y, o->y[0], (size_t)(s->token * s->model_dim) * sizeof(float));
    if (r == 0 && out->z)
        r = d->ops->copy(d, out->z, o->z[0], z_bytes(s));
    if (r == 0 && o->z_sums)
        r = copy_errors(d, o->z_sums, s->token * s->topk, out->z_error);
    if (r == 0 && o->y_sums)
        r = copy_errors(d, o->y_sums, s->token, out->y_error);
    return r;
}

static struct product gemm2_product(const struct mf_layer_data *data, float *z, float *z_exact)
{
    const struct mf_shape *s = &data->shape;
    return (struct product){.w = MF_TENSOR_W2,
                            .n = s->model_dim,
                            .k = s->inter_dim,
                            .out = {z, z_exact},
                            .n_a = 1 + (z_exact != NULL),
                            .slots_of_row = 1,
                            .bias = s->has_b2 ? data->b2 : NULL};
}

/* Moves z from the scratch to the cache. */
static void keep_z(struct mf_device_data *m, struct scratch *scratch, float *z)
{
    scratch_detach(scratch, z);
    m->copies[m->n_copies++] = (struct mf_device_data_copy){m, z, MF_MAX(z_bytes(&m->shape), 64)};
}

bool mf_device_data_keeps_z(const struct mf_device_data *m)
{
    return z_bytes(&m->shape) <= mf_device_data_cache_limit(m);
}

/* Computes z of a reference from h in host memory. The scratch owns z. */
static int make_z(struct mf_device_data *m, const struct mf_layer_data *data, const struct mf_reference *ref,
                  struct scratch *scratch, float **ret)
{
    const struct mf_shape *s = &data->shape;
    size_t h_bytes = (size_t)(s->token * s->topk * s->inter_dim) * sizeof(float);
    struct mf_reference_slots slots;
    float *z = scratch_alloc(scratch, z_bytes(s));
    struct product p = gemm2_product(data, z, NULL);
    p.a[0] = scratch_upload(scratch, ref->h, h_bytes);
    int r = mf_reference_group(data, &slots);
    if (r == 0)
        r = z && p.a[0] ? multiply(m, &slots, &p, scratch) : -ENOMEM;
    mf_reference_ungroup(&slots);
    if (r == 0)
        *ret = z;
    return r;
}

int mf_device_data_cached_z(struct mf_device_data *m, const struct mf_layer_data *data,
                            const struct mf_reference *r, const void **ret)
{
    struct scratch scratch = {.device = m->device};
    const void *kept = mf_device_data_cached(m, m);
    float *z;
    if (kept) {
        *ret = kept;
        return 0;
    }
    if (!mf_device_data_cache_fits(m, z_bytes(&m->shape)))
        return -ENOMEM;
    int made = make_z(m, data, r, &scratch, &z);
    if (made == 0) {
        keep_z(m, &scratch, z);
        *ret = z;
    }
    scratch_free(&scratch);
    return made;
}

int mf_device_data_z(struct mf_device_data *m, const struct mf_layer_data *data, const struct mf_reference *r,
                     float *to)
{
    struct scratch scratch = {.device = m->device};
    float *z;
    (void)mf_device_data_drop_cache(m);
    int made = make_z(m, data, r, &scratch, &z);
    if (made == 0)
        made = m->device->ops->copy(m->device, to, z, z_bytes(&m->shape));
    scratch_free(&scratch);
    return made;
}

static int gemm2(struct mf_reference_engine *base, const struct mf_layer_data *data,
                 const struct mf_reference_slots *slots, const float *h_exact, struct mf_reference *out)
{
    struct mf_device_data *m = ((struct engine *)base)->m;
    const struct mf_shape *s = &data->shape;
    struct scratch scratch = {.device = m->device};
    size_t h_bytes = (size_t)(s->token * s->topk * s->inter_dim) * sizeof(float);
    bool quantise = out->h_error != NULL;
    struct gemm2_outputs o;
    int r = alloc_gemm2_outputs(&scratch, s, quantise, &o);
    struct product p = gemm2_product(data, o.z[0], o.z[1]);
    for (int i = 0; i < p.n_a && r == 0; i++) {
        p.a[i] = scratch_upload(&scratch, i ? h_exact : out->h, h_bytes);
        r = p.a[i] ? 0 : -ENOMEM;
    }
    if (r == 0)
        r = multiply(m, slots, &p, &scratch);
    if (r == 0)
        r = sum_and_compare(m, data, &o, &scratch);
    if (r == 0)
        r = download_gemm2(m->device, s, &o, out);
    if (r == 0 && !out->z)
        keep_z(m, &scratch, o.z[0]);
    scratch_free(&scratch);
    return r;
}

int mf_device_data_reference(struct mf_device_data *m, const struct mf_layer_data *data, void *block,
                             struct mf_reference *out)
{
    struct engine e = {{mf_device_data_keeps_z(m), gemm1, gemm2}, m};
    (void)mf_device_data_drop_cache(m); /* cached data may belong to another routing */
    return mf_reference_make_in(data, &e.engine, block, out);
}
