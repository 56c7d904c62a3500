/* Compares, converts and gathers rows in device memory. Arrays of the reference are cached on the device;
 * sources and factors are copied per call. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/limits.h"
#include "kernels/gpu/host/device_data_private.h"

#define ROWS_PER_BLOCK 8
/* the cache takes at most 1/CACHE_SHARE of device memory, because steps need the rest */
#define CACHE_SHARE 8

/* True for plain bf16 tensors that have a reference. */
static bool has_reference(const struct mf_tensor_spec *a)
{
    return a->format == MF_FORMAT_BF16 && a->scale == MF_SCALE_NONE && a->tensor != MF_TENSOR_X &&
           !mf_tensor_spec_is_decoded(a);
}

bool mf_device_data_rows_of(const struct mf_layer_data *data, const struct mf_reference *r,
                            const struct mf_tensor_spec *a, struct mf_device_data_rows *ret)
{
    const struct mf_shape *s = &data->shape;
    struct mf_part parts[MF_PARTS_MAX];
    bool is_value;
    float factor;
    if (!has_reference(a) || mf_tensor_spec_parts(a, s, parts) != 1)
        return false;
    struct mf_device_data_rows rows = {
        .rows = parts[0].rows, .cols = parts[0].cols, .poison = MF_DEVICE_DATA_NO_POISON};
    bool device_z = mf_reference_lacks_z(r, a);
    const float *row = mf_reference_row(data, r, a, 0, &factor);
    if (!row && !device_z)
        return false;
    if (!a->zeroed) {
        rows.reference = row;
        rows.data = device_z ? data : NULL;
        rows.r = device_z ? r : NULL;
        rows.n_reference = a->tensor == MF_TENSOR_Y ? s->token : s->token * s->topk;
        rows.factors = a->tensor == MF_TENSOR_GW || a->tensor == MF_TENSOR_ZW ? data->weights : NULL;
        rows.poison = mf_part_poison(a, 0, &is_value) & 0xffff;
    }
    *ret = rows;
    return true;
}

uint64_t mf_device_data_cache_limit(const struct mf_device_data *m)
{
    return m->device->info.memory_bytes / CACHE_SHARE;
}

bool mf_device_data_cache_fits(const struct mf_device_data *m, size_t bytes)
{
    for (size_t i = 0; i < m->n_copies; i++)
        bytes += m->copies[i].bytes;
    return m->n_copies < MF_ARRAY_LEN(m->copies) && bytes <= mf_device_data_cache_limit(m);
}

const void *mf_device_data_cached(const struct mf_device_data *m, const void *of)
{
    for (size_t i = 0; i < m->n_copies; i++) {
        if (m->copies[i].of == of)
            return m->copies[i].at;
    }
    return NULL;
}

/* Returns the device's copy of a host array. Creates the copy on the first call. */
static int cached_copy(struct mf_device_data *m, const void *of, size_t bytes, const void **ret)
{
    struct mf_device *d = m->device;
    *ret = mf_device_data_cached(m, of);
    if (*ret)
        return 0;
    if (!mf_device_data_cache_fits(m, bytes))
        return -ENOMEM;
    struct mf_device_data_copy c = {of, d->ops->alloc(d, bytes), bytes};
    if (!c.at)
        return -ENOMEM;
    int r = d->ops->copy(d, c.at, of, bytes);
    if (r < 0) {
        d->ops->release(d, c.at, bytes);
        return r;
    }
    m->copies[m->n_copies++] = c;
    *ret = c.at;
    return 0;
}

static void scratch_free(struct mf_device_data *m)
{
    if (m->scratch)
        m->device->ops->release(m->device, m->scratch, m->scratch_bytes);
    m->scratch = NULL;
    m->scratch_bytes = 0;
}

bool mf_device_data_drop_cache(struct mf_device_data *m)
{
    bool had_any = m->n_copies > 0 || m->scratch;
    scratch_free(m);
    while (m->n_copies > 0) {
        const struct mf_device_data_copy *c = &m->copies[--m->n_copies];
        m->device->ops->release(m->device, c->at, c->bytes);
    }
    return had_any;
}

/* Reserves scratch memory, which is valid until the next call. */
static int scratch_reserve(struct mf_device_data *m, size_t bytes)
{
    if (m->scratch_bytes >= bytes)
        return 0;
    scratch_free(m);
    m->scratch = m->device->ops->alloc(m->device, bytes);
    if (!m->scratch)
        return -ENOMEM;
    m->scratch_bytes = bytes;
    return 0;
}

/* Layout of the scratch memory of a call: results, then sources and factors if they are present. */
struct scratch {
    uint8_t *at;
    size_t source, factors;
};

static int scratch_fill(struct mf_device_data *m, const struct mf_device_data_rows *rows, struct scratch *ret)
{
    struct mf_device *d = m->device;
    struct scratch o = {.source = (size_t)rows->rows * sizeof(struct mf_hip_row)};
    size_t source_bytes = rows->source ? (size_t)rows->rows * sizeof(*rows->source) : 0;
    size_t factor_bytes = rows->factors ? (size_t)rows->n_reference * sizeof(*rows->factors) : 0;
    o.factors = o.source + source_bytes;
    int r = scratch_reserve(m, o.factors + factor_bytes);
    o.at = m->scratch;
    if (r == 0 && source_bytes > 0)
        r = d->ops->copy(d, o.at + o.source, rows->source, source_bytes);
    if (r == 0 && factor_bytes > 0)
        r = d->ops->copy(d, o.at + o.factors, rows->factors, factor_bytes);
    *ret = o;
    return r;
}

static int run(struct mf_device_data *m, enum mf_device_data_kernel kernel,
               const struct mf_device_data_rows *rows, const void *other, struct mf_hip_row *ret)
{
    struct mf_device *d = m->device;
    struct mf_device_data_launch l = {.function = &m->functions[kernel], .bytes = sizeof(l.args.rows)};
    struct scratch scratch;
    int r = scratch_fill(m, rows, &scratch);
    if (r < 0)
        return r;
    l.grid = mf_device_data_grid(m, (rows->rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK);
    l.args.rows = (struct mf_hip_rows_args){
        .values = rows->at,
        .other = other,
        .source = rows->source ? (const void *)(scratch.at + scratch.source) : NULL,
        .factors = rows->factors ? (const void *)(scratch.at + scratch.factors) : NULL,
        .out = (void *)scratch.at,
        .rows = rows->rows,
        .cols = (mf_i32)rows->cols,
        .poison = rows->poison,
        .tolerance = (float)MF_TOLERANCE,
    };
    r = mf_device_data_run(m, &l, 1);
    if (r == 0)
        r = d->ops->copy(d, ret, scratch.at, scratch.source);
    return r;
}

int mf_device_data_compare_reference(struct mf_device_data *m, const struct mf_device_data_rows *rows,
                                     struct mf_hip_row *ret)
{
    const void *expected = NULL;
    size_t bytes = (size_t)(rows->n_reference * rows->cols) * sizeof(*rows->reference);
    int r = 0;
    if (rows->data)
        r = mf_device_data_cached_z(m, rows->data, rows->r, &expected);
    else if (rows->reference)
        r = cached_copy(m, rows->reference, bytes, &expected);
    return r < 0 ? r : run(m, MF_DEVICE_DATA_COMPARE_REFERENCE, rows, expected, ret);
}

int mf_device_data_plain_z(struct mf_device_data *m, const struct mf_layer_data *data,
                           const struct mf_reference *r, const struct mf_tensor_spec *a, void *to)
{
    struct mf_device *d = m->device;
    struct mf_device_data_rows rows;
    if (!mf_device_data_rows_of(data, r, a, &rows) || !rows.data || strcmp(a->order, "slot") != 0 ||
        data->shape.ep_experts > 0)
        return -ENOTSUP;
    (void)mf_device_data_drop_cache(m); /* steps may have overwritten the cached z, so compute it again */
    struct mf_device_data_launch l = {.function = &m->functions[MF_DEVICE_DATA_ROUND],
                                      .bytes = sizeof(l.args.round)};
    size_t factor_bytes = (size_t)rows.rows * sizeof(*rows.factors);
    const void *z = NULL;
    int made = mf_device_data_cached_z(m, data, r, &z);
    if (made == 0 && rows.factors)
        made = scratch_reserve(m, factor_bytes);
    if (made == 0 && rows.factors)
        made = d->ops->copy(d, m->scratch, rows.factors, factor_bytes);
    l.args.round = (struct mf_hip_round_args){.from = z,
                                              .factors = rows.factors ? (const void *)m->scratch : NULL,
                                              .to = to,
                                              .rows = rows.rows,
                                              .cols = (mf_i32)rows.cols};
    l.grid = mf_device_data_grid(m, (rows.rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK);
    return made < 0 ? made : mf_device_data_run(m, &l, 1);
}

int mf_device_data_gather(struct mf_device_data *m, const struct mf_tensor_spec *a,
                          const struct mf_tensor_ref *sorted, const struct mf_tensor_ref *from,
                          const struct mf_tensor_ref *to)
{
    const struct mf_tensor_spec plain = mf_gathered_from(a);
    struct mf_part parts[MF_PARTS_MAX], of[MF_PARTS_MAX];
    struct mf_device_data_launch launches[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, &m->shape, parts);
    if (n < 0 || mf_tensor_spec_parts(&plain, &m->shape, of) != n)
        return -EINVAL;
    for (int i = 0; i < n; i++) {
        bool is_rows = parts[i].rows == parts[0].rows; /* false for a part that all rows share */
        struct mf_device_data_launch *l = &launches[i];
        *l = (struct mf_device_data_launch){.function = &m->functions[MF_DEVICE_DATA_GATHER],
                                            .bytes = sizeof(l->args.gather)};
        l->args.gather = (struct mf_hip_gather_args){
            .from = from->part[i],
            .to = to->part[i],
            .ids = is_rows ? sorted->part[0] : NULL,
            .num_valid = sorted->part[3],
            .rows = parts[i].rows,
            .n_from = of[i].rows,
            .row_bytes = parts[i].cols * parts[i].element_bytes,
            .topk = a->tensor == MF_TENSOR_X ? 1 : m->shape.topk,
            .poison = mf_part_poison_word(a, parts, i),
        };
        l->grid = mf_device_data_grid(m, (parts[i].rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK);
    }
    return mf_device_data_run(m, launches, (size_t)n);
}

int mf_device_data_compare_runs(struct mf_device_data *m, const struct mf_device_data_rows *rows,
                                const void *second, struct mf_hip_row *ret)
{
    struct mf_device_data_rows plain = *rows;
    plain.factors = NULL;
    return run(m, MF_DEVICE_DATA_COMPARE_RUNS, &plain, second, ret);
}
