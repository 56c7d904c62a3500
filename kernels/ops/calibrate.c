#include "kernels/ops/calibrate.h"

#include <errno.h>
#include <math.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

int mf_calibration_add(struct mf_calibration *c, int64_t tokens, float x_amax, float h_amax, char *why,
                       size_t why_cap)
{
    if (!isfinite(x_amax) || !isfinite(h_amax)) {
        mf_format(why, why_cap, "%s of batch %lld holds a value that is not finite",
                  isfinite(x_amax) ? "the intermediate h" : "x", (long long)c->batches);
        return -EINVAL;
    }
    c->x_amax = MF_MAX(c->x_amax, x_amax);
    c->h_amax = MF_MAX(c->h_amax, h_amax);
    c->batches++;
    c->tokens += tokens;
    return 0;
}

int mf_calibration_factors(const struct mf_calibration *c, const struct mf_codec *codec, float margin,
                           float ret[2], char *why, size_t why_cap)
{
    if (c->batches == 0 || !(margin > 0)) {
        mf_format(why, why_cap,
                  c->batches == 0 ? "no calibration batch: calibrate at least once (margin %g)"
                                  : "margin %g: expected a number above 0",
                  (double)margin);
        return c->batches == 0 ? -ENODATA : -EINVAL;
    }
    ret[0] = mf_codec_global(codec, c->x_amax * margin);
    ret[1] = mf_codec_global(codec, c->h_amax * margin);
    return 0;
}
