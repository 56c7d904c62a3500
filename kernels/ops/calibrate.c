#include "kernels/ops/calibrate.h"

#include <errno.h>
#include <math.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

int mf_calibrate(struct mf_calibration *c, const struct mf_layer_data *batch, char *why, size_t why_cap)
{
    struct mf_reference r;
    int result = mf_reference_make(batch, &r);
    if (result < 0) {
        mf_format(why, why_cap,
                  result == -ENOMEM ? "out of memory for a batch of %lld tokens"
                                    : "unsupported combination of formats in a shape of %lld tokens",
                  (long long)batch->shape.token);
        return result;
    }
    if (!isfinite(r.x_amax) || !isfinite(r.h_amax)) {
        mf_format(why, why_cap, "%s of batch %lld holds a value that is not finite",
                  isfinite(r.x_amax) ? "the intermediate h" : "x", (long long)c->batches);
        result = -EINVAL;
    } else {
        c->x_amax = MF_MAX(c->x_amax, r.x_amax);
        c->h_amax = MF_MAX(c->h_amax, r.h_amax);
        c->batches++;
        c->tokens += batch->shape.token;
    }
    mf_reference_release(&r);
    return result;
}

int mf_calibration_factors(const struct mf_calibration *c, const struct mf_codec *codec, float margin,
                           float ret[2], char *why, size_t why_cap)
{
    if (c->batches == 0 || !(margin > 0)) {
        mf_format(why, why_cap,
                  c->batches == 0 ? "no calibration batch: call mf_calibrate at least once (margin %g)"
                                  : "margin %g: expected a number above 0",
                  (double)margin);
        return c->batches == 0 ? -ENODATA : -EINVAL;
    }
    ret[0] = mf_codec_global(codec, c->x_amax * margin);
    ret[1] = mf_codec_global(codec, c->h_amax * margin);
    return 0;
}
