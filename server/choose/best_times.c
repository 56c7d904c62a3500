#include "server/choose/best_times.h"

#include <math.h>

void mf_best_times_add(struct mf_best_times *b, mf_ops covers, int64_t worker, double us)
{
    for (int i = 0; i < b->n; i++) {
        if (b->entries[i].covers == covers && b->entries[i].worker == worker) {
            if (us < b->entries[i].us)
                b->entries[i].us = us;
            return;
        }
    }
    if (b->n < MF_BEST_MAX) {
        b->entries[b->n].covers = covers;
        b->entries[b->n].worker = worker;
        b->entries[b->n++].us = us;
    }
}

double mf_best_times_find(const struct mf_best_times *b, mf_ops covers, int64_t worker)
{
    double own = INFINITY, best = INFINITY, second = INFINITY;
    for (int i = 0; i < b->n; i++) {
        double us = b->entries[i].us;
        if (b->entries[i].covers != covers)
            continue;
        if (b->entries[i].worker == worker)
            own = us;
        second = fmin(second, fmax(best, us));
        best = fmin(best, us);
    }
    return fmin(own, second);
}
