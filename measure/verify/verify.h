/* The gates on one output of one run, in this order: guard bands intact; poison overwritten in every valid row;
 * outputs finite; mismatch ratio; worst expert; worst row. Index tensor specs are held against their contract instead of
 * the last four. Limits are in kernels/core/limits.h, where no family can loosen them:
 *
 *   row      ‖out − ref‖ / max(‖ref‖, 1/20 of the typical row norm) <= max(floor of the format,
 *            4 × that row's error in the plain quantised pipeline, when the step quantises h on its way)
 *   expert   the median of its rows' errors <= half the median of their limits; experts of four rows or more
 *   mismatch share of elements with |out − ref| > 0.01 + 0.01·|ref| <= err_ratio (ROCm/aiter, checkAllclose); of shapes
 *            with scales of 32 or 16 the cosine distance in its place (mf_err_by_cosine) */
#pragma once

#include "common/moe/layer.h"
#include "common/moe/status.h"
#include "kernels/reference/reference.h"
#include "measure/session/guard.h"

struct mf_verify_input {
    const struct mf_layer_data *data;
    const struct mf_reference *ref;
    struct mf_guarded *out;
    const int64_t *source; /* row p holds that slot row (token for x), -1 padding; NULL: row p is p */
    mf_ops covers;         /* of the step or pipeline */
    double err_ratio;
    bool accumulates; /* was zeroed, not poisoned */
};

struct mf_verdict {
    double err, row_err, row_limit; /* worst row by error over limit */
    char reason[MF_REASON_MAX];     /* empty: passed */
};

/* 0 when every gate passed, 1 when one refused and reason says why; negative errno. Takes what the host has to have of it from the
 * device: all of it, or, of what the device looks at itself, the bands. What it refuses is pulled, and the host decides: -ENODATA
 * when that takes a z that the host's reference does not have. */
int mf_verify(const struct mf_verify_input *v, struct mf_verdict *ret);

/* A second run's output beside the first's: bitwise, or rows within the tolerance that the step declares. Same
 * returns. Both have been verified, guard and poison at least. */
int mf_verify_stable(const struct mf_verify_input *first, const struct mf_guarded *second, double tolerance,
                     struct mf_verdict *ret);
/* Guard and poison alone, for the second run. Same returns. */
int mf_verify_written(const struct mf_verify_input *v, struct mf_verdict *ret);
