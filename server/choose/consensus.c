#include "server/choose/consensus.h"

#include "common/base/stats.h"

#include <math.h>

void mf_consensus_add(struct mf_consensus *c, double value, double bound)
{
    if (isfinite(value) && fabs(value) <= bound && c->n < MF_CONSENSUS_MAX)
        c->values[c->n++] = value;
}

bool mf_consensus_find(struct mf_consensus *c, bool alone, double tolerance, double *ret)
{
    size_t n_near = 0;
    if (c->n == 0 || (c->n == 1 && !alone))
        return false;
    double median = mf_median(c->values, c->n);
    for (size_t i = 0; i < c->n; i++)
        n_near += fabs(c->values[i] - median) <= tolerance;
    if (c->n > 1 && n_near < 2)
        return false;
    *ret = median;
    return true;
}
