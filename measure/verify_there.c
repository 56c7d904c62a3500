#include "measure/verify_there.h"

#include <errno.h>
#include <math.h>

#include "common/cleanup.h"

static bool rows_of(const struct mf_verify_input *v, struct mf_maker_rows *ret)
{
    if (!mf_maker_rows_of(v->data, v->ref, &v->out->artifact, ret))
        return false;
    ret->at = v->out->seen.part[0];
    ret->source = v->source;
    if (v->accumulates)
        ret->poison = MF_MAKER_NO_POISON;
    return true;
}

bool mf_verify_is_there(const struct mf_verify_input *v)
{
    struct mf_maker_rows rows;
    return v->out->maker && rows_of(v, &rows);
}

static int64_t source_of(const struct mf_verify_input *v, int64_t p)
{
    return v->source ? v->source[p] : p;
}

int mf_verify_look_there(const struct mf_verify_input *v, struct mf_verify_row *rows)
{
    struct mf_maker_rows there;
    if (!rows_of(v, &there))
        return -EINVAL;
    _cleanup_(mf_freep) struct mf_hip_row *seen = calloc((size_t)there.rows, sizeof(*seen));
    if (!seen)
        return -ENOMEM;
    int r = mf_maker_look(v->out->maker, &there, seen);
    for (int64_t p = 0; p < there.rows && r == 0; p++) {
        rows[p] = (struct mf_verify_row){.source = source_of(v, p)};
        if (rows[p].source < 0)
            continue;
        rows[p].unwritten = seen[p].unwritten;
        rows[p].unwritten_at = seen[p].unwritten_at;
        rows[p].bad = seen[p].bad;
        rows[p].bad_at = seen[p].bad_at;
        rows[p].mismatches = seen[p].mismatches;
        rows[p].difference = seen[p].difference;
        rows[p].norm = seen[p].norm;
        rows[p].size = seen[p].size;
    }
    return r;
}

int mf_verify_apart_there(const struct mf_verify_input *first, const struct mf_guarded *second,
                          double *distances)
{
    struct mf_maker_rows there;
    if (!rows_of(first, &there))
        return -EINVAL;
    _cleanup_(mf_freep) struct mf_hip_row *seen = calloc((size_t)there.rows, sizeof(*seen));
    if (!seen)
        return -ENOMEM;
    int r = mf_maker_apart(first->out->maker, &there, second->seen.part[0], seen);
    for (int64_t p = 0; p < there.rows && r == 0; p++)
        distances[p] = seen[p].mismatches == 0 ? -1 : mf_verify_distance(seen[p].difference, seen[p].norm);
    return r;
}
