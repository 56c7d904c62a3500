/* Input and result of the correctness gates (measure/verify/verify.h). */
#pragma once

#include "common/moe/layer.h"
#include "common/moe/status.h"
#include "kernels/reference/reference.h"
#include "measure/session/guard.h"

struct mf_verify_input {
    const struct mf_layer_data *data;
    const struct mf_reference *ref;
    struct mf_guarded *out;
    /* source row of each output row (a token for x, otherwise a slot or weight row; -1: padding). NULL: row p
     * has source row p */
    const int64_t *source;
    mf_ops covers; /* ops covered by the step or pipeline */
    double err_ratio;
    bool accumulates; /* true: the output was zeroed before the run; false: it was poisoned */
};

struct mf_verdict {
    /* row_err and row_limit belong to the row with the largest ratio of error to limit */
    double err, row_err, row_limit;
    char reason[MF_REASON_MAX]; /* empty if all gates passed */
};
