#include "server/choose/rivals.h"

#include "server/choose/race.h"

#include <stdbool.h>
#include <stdlib.h>

static int compare(const void *va, const void *vb)
{
    const struct mf_entrant *a = va, *b = vb;
    if (a->us != b->us)
        return a->us < b->us ? -1 : 1;
    return a->pipeline < b->pipeline ? -1 : a->pipeline > b->pipeline;
}

static bool has_block(const struct mf_entrant *e, size_t n, int block_m)
{
    for (size_t i = 0; i < n; i++) {
        if (e[i].block_m == block_m)
            return true;
    }
    return false;
}

static bool has_pipeline(const struct mf_entrant *e, size_t n, int64_t pipeline)
{
    for (size_t i = 0; i < n; i++) {
        if (e[i].pipeline == pipeline)
            return true;
    }
    return false;
}

size_t mf_rivals_pick(struct mf_entrant *rivals, size_t n_rivals, struct mf_entrant *ret)
{
    size_t n = 1;
    qsort(rivals, n_rivals, sizeof(rivals[0]), compare);
    for (int any_block = 0; any_block < 2; any_block++) {
        for (size_t i = 0; i < n_rivals && n <= MF_RIVALS_MAX; i++) {
            if (!has_pipeline(ret, n, rivals[i].pipeline) &&
                (any_block || !has_block(ret, n, rivals[i].block_m)))
                ret[n++] = rivals[i];
        }
    }
    return n;
}

size_t mf_rivals_affordable(const struct mf_entrant *entrants, size_t n, double budget_s)
{
    double spent_s = 0;
    size_t in = 0;
    while (in < n &&
           (in < MF_ENTRANTS_MIN || spent_s + entrants[in].us * 1e-6 * MF_RACE_ROUNDS_MIN <= budget_s))
        spent_s += entrants[in++].us * 1e-6 * MF_RACE_ROUNDS_MIN;
    return in;
}
