#include "measure/verify/verify_on_device.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/cleanup.h"

static bool rows_of(const struct mf_verify_input *v, struct mf_device_data_rows *ret)
{
    if (!mf_device_data_rows_of(v->data, v->ref, &v->out->tensor_spec, ret))
        return false;
    ret->at = v->out->launch_ref.part[0];
    ret->source = v->source;
    if (v->accumulates)
        ret->poison = MF_DEVICE_DATA_NO_POISON;
    return true;
}

bool mf_verify_runs_on_device(const struct mf_verify_input *v)
{
    struct mf_device_data_rows rows;
    return v->out->device_data && rows_of(v, &rows);
}

static int64_t source_of(const struct mf_verify_input *v, int64_t p)
{
    return v->source ? v->source[p] : p;
}

struct conversion {
    const struct mf_verify_input *v;
    const struct mf_hip_row *device_results;
    struct mf_verify_row *rows;
    int64_t n;
};

static void convert_thread(void *context, int thread, int n_threads)
{
    const struct conversion *t = context;
    for (int64_t p = t->n * thread / n_threads; p < t->n * (thread + 1) / n_threads; p++) {
        const struct mf_hip_row *device_results = &t->device_results[p];
        struct mf_verify_row *row = &t->rows[p];
        *row = (struct mf_verify_row){.source = source_of(t->v, p)};
        if (row->source < 0)
            continue;
        row->unwritten = device_results->unwritten;
        row->unwritten_at = device_results->unwritten_at;
        row->bad = device_results->bad;
        row->bad_at = device_results->bad_at;
        row->mismatches = device_results->mismatches;
        row->difference = device_results->difference;
        row->norm = device_results->norm;
        row->size = device_results->size;
    }
}

int mf_verify_rows_on_device(const struct mf_verify_input *v, struct mf_verify_row *rows)
{
    struct mf_device_data_rows device_rows;
    if (!rows_of(v, &device_rows))
        return -EINVAL;
    _cleanup_(mf_freep) struct mf_hip_row *device_results =
        reallocarray(NULL, (size_t)device_rows.rows, sizeof(*device_results));
    if (!device_results)
        return -ENOMEM;
    int r = mf_device_data_compare_reference(v->out->device_data, &device_rows, device_results);
    struct conversion t = {v, device_results, rows, device_rows.rows};
    if (r == 0)
        mf_pool_run(convert_thread, &t, mf_pool_threads_for(device_rows.rows * MF_VERIFY_ROW_WORK));
    return r;
}

int mf_verify_distances_on_device(const struct mf_verify_input *first, const struct mf_guarded *second,
                                  double *distances)
{
    struct mf_device_data_rows device_rows;
    if (!rows_of(first, &device_rows))
        return -EINVAL;
    _cleanup_(mf_freep) struct mf_hip_row *device_results =
        reallocarray(NULL, (size_t)device_rows.rows, sizeof(*device_results));
    if (!device_results)
        return -ENOMEM;
    int r = mf_device_data_compare_runs(first->out->device_data, &device_rows, second->launch_ref.part[0],
                                        device_results);
    for (int64_t p = 0; p < device_rows.rows && r == 0; p++) { /* the device writes nothing for padding */
        bool same = source_of(first, p) < 0 || device_results[p].mismatches == 0;
        distances[p] = same ? -1 : mf_verify_distance(device_results[p].difference, device_results[p].norm);
    }
    return r;
}
