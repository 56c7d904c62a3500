/* Rows where they lie. Looked at: a reference's arrays are copied to the device once, what differs from call to call each time. And
 * made there, of z or of the same in another order: what steps are fed. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/limits.h"
#include "kernels/gpu/host/device_data_private.h"

#define ROWS_OF_BLOCK 8
#define SHARE         8 /* of the device's memory one part at most is for copies: the rest is the steps' */

/* Is it of plain bf16, of which there is a reference? */
static bool can_look(const struct mf_tensor_spec *a)
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
    if (!can_look(a) || mf_tensor_spec_parts(a, s, parts) != 1)
        return false;
    struct mf_device_data_rows rows = {
        .rows = parts[0].rows, .cols = parts[0].cols, .poison = MF_MAKER_NO_POISON};
    bool own_z = mf_reference_lacks(r, a);
    const float *row = mf_reference_row(data, r, a, 0, &factor);
    if (!row && !own_z)
        return false;
    if (!a->zeroed) {
        rows.reference = row;
        rows.data = own_z ? data : NULL;
        rows.r = own_z ? r : NULL;
        rows.n_reference = a->tensor == MF_TENSOR_Y ? s->token : s->token * s->topk;
        rows.factors = a->tensor == MF_TENSOR_GW || a->tensor == MF_TENSOR_ZW ? data->weights : NULL;
        rows.poison = mf_part_poison(a, 0, &is_value) & 0xffff;
    }
    *ret = rows;
    return true;
}

uint64_t mf_device_data_most_kept(const struct mf_device_data *m)
{
    return m->device->info.memory_bytes / SHARE;
}

bool mf_device_data_may_keep(const struct mf_device_data *m, size_t bytes)
{
    for (size_t i = 0; i < m->n_copies; i++)
        bytes += m->copies[i].bytes;
    return m->n_copies < MF_ARRAY_LEN(m->copies) && bytes <= mf_device_data_most_kept(m);
}

const void *mf_device_data_kept(const struct mf_device_data *m, const void *of)
{
    for (size_t i = 0; i < m->n_copies; i++) {
        if (m->copies[i].of == of)
            return m->copies[i].at;
    }
    return NULL;
}

/* The device's copy, made on the first call. */
static int copy_of(struct mf_device_data *m, const void *of, size_t bytes, const void **ret)
{
    struct mf_device *d = m->device;
    *ret = mf_device_data_kept(m, of);
    if (*ret)
        return 0;
    if (!mf_device_data_may_keep(m, bytes))
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

static void release_room(struct mf_device_data *m)
{
    if (m->room)
        m->device->ops->release(m->device, m->room, m->room_bytes);
    m->room = NULL;
    m->room_bytes = 0;
}

bool mf_device_data_forget(struct mf_device_data *m)
{
    bool had_any = m->n_copies > 0 || m->room;
    release_room(m);
    while (m->n_copies > 0) {
        const struct mf_device_data_copy *c = &m->copies[--m->n_copies];
        m->device->ops->release(m->device, c->at, c->bytes);
    }
    return had_any;
}

/* Memory for a call, good until the next one. */
static int take_room(struct mf_device_data *m, size_t bytes)
{
    if (m->room_bytes >= bytes)
        return 0;
    release_room(m);
    m->room = m->device->ops->alloc(m->device, bytes);
    if (!m->room)
        return -ENOMEM;
    m->room_bytes = bytes;
    return 0;
}

/* What a call has there: results, then sources and factors where there are any. */
struct room {
    uint8_t *at;
    size_t source, factors;
};

static int fill_room(struct mf_device_data *m, const struct mf_device_data_rows *rows, struct room *ret)
{
    struct mf_device *d = m->device;
    struct room o = {.source = (size_t)rows->rows * sizeof(struct mf_hip_row)};
    size_t source_bytes = rows->source ? (size_t)rows->rows * sizeof(*rows->source) : 0;
    size_t factor_bytes = rows->factors ? (size_t)rows->n_reference * sizeof(*rows->factors) : 0;
    o.factors = o.source + source_bytes;
    int r = take_room(m, o.factors + factor_bytes);
    o.at = m->room;
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
    struct room room;
    int r = fill_room(m, rows, &room);
    if (r < 0)
        return r;
    l.grid = mf_device_data_grid(m, (rows->rows + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK);
    l.args.rows = (struct mf_hip_rows_args){
        .values = rows->at,
        .other = other,
        .source = rows->source ? (const void *)(room.at + room.source) : NULL,
        .factors = rows->factors ? (const void *)(room.at + room.factors) : NULL,
        .out = (void *)room.at,
        .rows = rows->rows,
        .cols = (mf_i32)rows->cols,
        .poison = rows->poison,
        .tolerance = (float)MF_TOLERANCE,
    };
    r = mf_device_data_run(m, &l, 1);
    if (r == 0)
        r = d->ops->copy(d, ret, room.at, room.source);
    return r;
}

int mf_device_data_look(struct mf_device_data *m, const struct mf_device_data_rows *rows,
                        struct mf_hip_row *ret)
{
    const void *should = NULL;
    size_t bytes = (size_t)(rows->n_reference * rows->cols) * sizeof(*rows->reference);
    int r = 0;
    if (rows->data)
        r = mf_device_data_own_z(m, rows->data, rows->r, &should);
    else if (rows->reference)
        r = copy_of(m, rows->reference, bytes, &should);
    return r < 0 ? r : run(m, MF_MAKER_LOOK, rows, should, ret);
}

int mf_device_data_plain_z(struct mf_device_data *m, const struct mf_layer_data *data,
                           const struct mf_reference *r, const struct mf_tensor_spec *a, void *to)
{
    struct mf_device *d = m->device;
    struct mf_device_data_rows rows;
    if (!mf_device_data_rows_of(data, r, a, &rows) || !rows.data || strcmp(a->order, "slot") != 0 ||
        data->shape.ep_experts > 0)
        return -ENOTSUP;
    (void)mf_device_data_forget(
        m); /* steps may have written to it: what they are fed is not what they left */
    struct mf_device_data_launch l = {.function = &m->functions[MF_MAKER_ROUND],
                                      .bytes = sizeof(l.args.round)};
    size_t factor_bytes = (size_t)rows.rows * sizeof(*rows.factors);
    const void *z = NULL;
    int made = mf_device_data_own_z(m, data, r, &z);
    if (made == 0 && rows.factors)
        made = take_room(m, factor_bytes);
    if (made == 0 && rows.factors)
        made = d->ops->copy(d, m->room, rows.factors, factor_bytes);
    l.args.round = (struct mf_hip_round_args){.from = z,
                                              .factors = rows.factors ? (const void *)m->room : NULL,
                                              .to = to,
                                              .rows = rows.rows,
                                              .cols = (mf_i32)rows.cols};
    l.grid = mf_device_data_grid(m, (rows.rows + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK);
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
        bool is_rows = parts[i].rows == parts[0].rows; /* and not what all rows share */
        struct mf_device_data_launch *l = &launches[i];
        *l = (struct mf_device_data_launch){.function = &m->functions[MF_MAKER_GATHER],
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
        l->grid = mf_device_data_grid(m, (parts[i].rows + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK);
    }
    return mf_device_data_run(m, launches, (size_t)n);
}

int mf_device_data_apart(struct mf_device_data *m, const struct mf_device_data_rows *rows, const void *second,
                         struct mf_hip_row *ret)
{
    struct mf_device_data_rows plain = *rows;
    plain.factors = NULL;
    return run(m, MF_MAKER_APART, &plain, second, ret);
}
