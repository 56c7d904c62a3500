/* Judges whether the rerun of a race's winner can be reported. Pure functions.
 *
 * A disturbance of the host or device during the rerun makes its median wrong while the race, which compares
 * pipelines within rounds, still picks the right winner. So the rerun must agree with the race:
 *
 *   scatter    the median absolute deviation of the rerun is at most 10 % of its median
 *   modes      the samples do not fall into two groups that lie apart
 *   interval   the confidence intervals of the two medians overlap, with 5 % for changes of the clock rate
 *              between race and rerun. If the samples of the race scatter, too, the rerun must not lie above
 *              the fastest quarter of these samples instead */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/moe/status.h"

/* Samples of one pipeline in microseconds. */
struct mf_rerun {
    const double *rounds; /* from the rounds of the race */
    size_t n_rounds;      /* at least 1 */
    const double *fresh;  /* from the rerun */
    size_t n_fresh;       /* 0: no rerun; always accepted */
};
/* Returns true if the rerun is accepted. Otherwise returns false with a sentence in why. The
 * sentence has no comma, because it is stored in tables. scratch: space for
 * the larger of n_rounds and n_fresh values. */
bool mf_rerun_accepts(const struct mf_rerun *r, double *scratch, char why[MF_REASON_MAX]);
