/* Applies the correctness gates to one output of one run.
 *
 * Order: guard bands intact; poison overwritten in every valid row; outputs finite; mismatch ratio; worst
 * expert; worst row. Index tensor specs are checked against their contract instead of the last four gates.
 * The limits are in kernels/core/limits.h, where no family can change them:
 *
 *   row      ‖out − ref‖ / max(‖ref‖, 1/20 of the typical row norm) <= max(floor of the format,
 *            4 × the row's error in the plain quantised pipeline, if the step quantises h)
 *   expert   median error of its rows <= half the median limit of its rows; for experts with at least 4 rows
 *   mismatch share of elements with |out − ref| > 0.01 + 0.01·|ref| (ROCm/aiter, checkAllclose) <= err_ratio
 *            + the share in the plain pipeline at the same scale (mismatch_share.h); shapes with a scale per
 *            32 or 16 elements use the cosine distance and err_ratio alone instead (mf_err_by_cosine) */
#pragma once

#include "measure/verify/verdict.h"

/* Returns 0 if every gate passed, 1 if a gate failed (reason has the cause), or a negative errno. If the
 * device can inspect the values itself, copies only the guard bands from the device; otherwise copies the
 * whole output. If the device finds a failure, copies the output and confirms the failure on the host.
 * Returns -ENODATA if the host must compare the output with z and its reference lacks z. */
int mf_verify(const struct mf_verify_input *v, struct mf_verdict *ret);

/* Compares the outputs of two runs: bitwise, or by row within the step's declared tolerance. Both outputs
 * must have passed the guard and poison gates. Returns the same values as mf_verify. */
int mf_verify_stable(const struct mf_verify_input *first, const struct mf_guarded *second, double tolerance,
                     struct mf_verdict *ret);
/* Applies only the guard and poison gates; used for the second run. Returns the same values as mf_verify. */
int mf_verify_written(const struct mf_verify_input *v, struct mf_verdict *ret);
