#include "common/moe/token_order.h"

#include <inttypes.h>
#include <math.h>

#include "common/base/text.h"

#define SLACK         0.05
#define NOISE_MADS    3.0  /* noise of a time, as a multiple of its median absolute deviation */
#define NOISE_UNKNOWN 0.05 /* noise of a time without a known deviation, as a fraction of the time */

static double noise_us(const struct mf_rung *rung)
{
    return isfinite(rung->mad) ? NOISE_MADS * rung->mad : NOISE_UNKNOWN * rung->us;
}

const struct mf_rung *mf_token_order_breach(const struct mf_rung *rung, const struct mf_rung *others,
                                            size_t n)
{
    const struct mf_rung *fastest = NULL;
    for (size_t i = 0; i < n; i++) {
        if (others[i].token > rung->token && others[i].us > 0 && (!fastest || others[i].us < fastest->us))
            fastest = &others[i];
    }
    if (!fastest || !(rung->us > 0))
        return NULL;
    double limit = fastest->us * (1 + SLACK) + noise_us(rung) + noise_us(fastest);
    return rung->us > limit ? fastest : NULL;
}

void mf_token_order_explain(const struct mf_rung *rung, const struct mf_rung *faster, char ret[MF_REASON_MAX])
{
    mf_format(ret, MF_REASON_MAX,
              "%.4g us for %" PRId64 " tokens but %.4g us for %" PRId64
              " tokens of this layer (%.0f%% less): "
              "more tokens cannot be faster",
              rung->us, rung->token, faster->us, faster->token, 100 * (1 - faster->us / rung->us));
}
