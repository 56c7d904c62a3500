#include "measure/verify/verify_on_device.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/cleanup.h"

static bool rows_of(const struct mf_verify_input *v, struct mf_device_data_rows *ret)
{
    if (!mf_device_data_rows_of(v->data, v->ref, &v->out->tensor_spec, ret))
        return false;
    ret->at = v->out->seen.part[0];
    ret->source = v->source;
    if (v->accumulates)
        ret->poison = MF_MAKER_NO_POISON;
    return true;
}

bool mf_verify_is_there(const struct mf_verify_input *v)
{
    struct mf_device_data_rows rows;
    return v->out->maker && rows_of(v, &rows);
}

static int64_t source_of(const struct mf_verify_input *v, int64_t p)
{
    return v->source ? v->source[p] : p;
}

struct take {
    const struct mf_verify_input *v;
    const struct mf_hip_row *seen;
    struct mf_verify_row *rows;
    int64_t n;
};

static void take_thread(void *context, int thread, int n_threads)
{
    const struct take *t = context;
    for (int64_t p = t->n * thread / n_threads; p < t->n * (thread + 1) / n_threads; p++) {
        const struct mf_hip_row *seen = &t->seen[p];
        struct mf_verify_row *row = &t->rows[p];
        *row = (struct mf_verify_row){.source = source_of(t->v, p)};
        if (row->source < 0)
            continue;
        row->unwritten = seen->unwritten;
        row->unwritten_at = seen->unwritten_at;
        row->bad = seen->bad;
        row->bad_at = seen->bad_at;
        row->mismatches = seen->mismatches;
        row->difference = seen->difference;
        row->norm = seen->norm;
        row->size = seen->size;
    }
}

int mf_verify_look_there(const struct mf_verify_input *v, struct mf_verify_row *rows)
{
    struct mf_device_data_rows there;
    if (!rows_of(v, &there))
        return -EINVAL;
    _cleanup_(mf_freep) struct mf_hip_row *seen = reallocarray(NULL, (size_t)there.rows, sizeof(*seen));
    if (!seen)
        return -ENOMEM;
    int r = mf_device_data_look(v->out->maker, &there, seen);
    struct take t = {v, seen, rows, there.rows};
    if (r == 0)
        mf_pool_run(take_thread, &t, mf_pool_threads_for(there.rows * MF_VERIFY_ROW_WORK));
    return r;
}

int mf_verify_apart_there(const struct mf_verify_input *first, const struct mf_guarded *second,
                          double *distances)
{
    struct mf_device_data_rows there;
    if (!rows_of(first, &there))
        return -EINVAL;
    _cleanup_(mf_freep) struct mf_hip_row *seen = reallocarray(NULL, (size_t)there.rows, sizeof(*seen));
    if (!seen)
        return -ENOMEM;
    int r = mf_device_data_apart(first->out->maker, &there, second->seen.part[0], seen);
    for (int64_t p = 0; p < there.rows && r == 0; p++) { /* of what is nobody's nothing was noted */
        bool same = source_of(first, p) < 0 || seen[p].mismatches == 0;
        distances[p] = same ? -1 : mf_verify_distance(seen[p].difference, seen[p].norm);
    }
    return r;
}
