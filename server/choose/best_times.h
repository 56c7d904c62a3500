/* The best times so far, by covered ops and worker. Pure functions. */
#pragma once

#include <stdint.h>

#include "common/moe/layer.h"

#define MF_BEST_MAX 128
struct mf_best_times {
    int n;
    struct {
        mf_ops covers;
        int64_t worker;
        double us;
    } entries[MF_BEST_MAX];
};
void mf_best_times_add(struct mf_best_times *b, mf_ops covers, int64_t worker, double us);
/* Finds the best time that applies to a worker: its own, or a time that two workers have reached. Otherwise a
 * worker with false times would make other workers drop all their steps as slow. Returns INFINITY if no time
 * applies. */
double mf_best_times_find(const struct mf_best_times *b, mf_ops covers, int64_t worker);
