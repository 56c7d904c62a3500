/* Is a layer's output right, and as fast as its row says? The numbers that run-config judges by. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/names.h"
#include "common/shape.h"

/* clang-format off */
#define MF_VERDICT_MAP(X, P) \
    X(P, OK, "OK")           \
    X(P, SLOWER, "SLOWER")   \
    X(P, WRONG, "WRONG")
/* clang-format on */
MF_NAMES_DECLARE(mf_verdict, MF_VERDICT_, MF_VERDICT_MAP);

struct mf_output_check {
    int64_t bad_values; /* not finite, or never written */
    double mismatch;  /* share of the values beyond MF_TOLERANCE, or the cosine distance (kernels/limits.h) */
    double row_error; /* of the row nearest to its limit, or farthest beyond: |a - b| / |b| over the row */
    double row_limit; /* of that row */
    int64_t row;      /* its token */
};

/* y: bf16 [T, H] of the shape. reference: fp32 [T, H]. plain_error: each row's relative error by quantisation alone, NULL
 * for none. */
struct mf_output_check mf_output_compare(const struct mf_shape *shape, const uint16_t *y,
                                         const float *reference, const float *plain_error);
/* slack: how many times the row's time is still as fast. */
enum mf_verdict mf_verdict_of(const struct mf_output_check *check, double err_ratio, double measured_us,
                              double row_us, double slack);
