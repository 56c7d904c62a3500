#include "cli/verdict.h"

#include <math.h>

#include "kernels/limits.h"
#include "kernels/quant.h"

MF_NAMES_DEFINE(mf_verdict, MF_VERDICT_, MF_VERDICT_MAP)

struct mf_output_check mf_output_compare(const struct mf_shape *shape, const uint16_t *y,
                                         const float *reference, const float *plain_error)
{
    int64_t rows = shape->token, cols = shape->model_dim;
    const double floor = mf_row_floor(MF_FORMAT_BF16);
    struct mf_output_check c = {.row_limit = floor};
    int64_t mismatches = 0;
    double worst = -1, differences = 0, sizes = 0;

    for (int64_t t = 0; t < rows; t++) {
        double difference = 0, norm = 0, limit = floor, error;

        for (int64_t i = 0; i < cols; i++) {
            double a = (double)mf_bf16_to_float(y[t * cols + i]), b = (double)reference[t * cols + i];

            c.bad_values += !isfinite(a);
            /* Written so that a NaN is a mismatch */
            mismatches += !(fabs(a - b) <= MF_TOLERANCE + MF_TOLERANCE * fabs(b));
            difference += (a - b) * (a - b);
            norm += b * b;
            sizes += a * a + b * b;
        }
        differences += difference;
        if (plain_error)
            limit = fmax(limit, MF_ROW_TIMES * (double)plain_error[t]);
        error = norm > 0 ? sqrt(difference / norm) : (difference == 0 ? 0 : HUGE_VAL);
        if (isnan(error))
            error = HUGE_VAL;
        if (error / limit > worst) {
            worst = error / limit;
            c.row = t;
            c.row_error = error;
            c.row_limit = limit;
        }
    }
    if (mf_err_by_cosine(shape))
        c.mismatch = sizes > 0 ? differences / sizes : differences;
    else
        c.mismatch = rows * cols > 0 ? (double)mismatches / ((double)rows * (double)cols) : 0;
    return c;
}

enum mf_verdict mf_verdict_of(const struct mf_output_check *check, double err_ratio, double measured_us,
                              double row_us, double slack)
{
    if (check->bad_values > 0 || !(check->mismatch <= err_ratio) || !(check->row_error <= check->row_limit))
        return MF_VERDICT_WRONG;
    return measured_us <= row_us * slack ? MF_VERDICT_OK : MF_VERDICT_SLOWER;
}
