#include "server/choose/race_times.h"

#include "common/base/cleanup.h"
#include "common/base/stats.h"

#include <errno.h>
#include <string.h>

int mf_race_time_pair(const double *winner, size_t n_winner, const double *samples, size_t n, double *scratch,
                      struct mf_race_time *ret)
{
    size_t rounds = MF_MIN(n_winner, n);
    if (rounds == 0)
        return -EINVAL;
    memcpy(scratch, winner, n_winner * sizeof(*scratch));
    double median = mf_median(scratch, n_winner);
    for (size_t i = 0; i < rounds; i++) {
        if (!(winner[i] > 0) || !(samples[i] > 0))
            return -EINVAL;
        scratch[i] = samples == winner ? samples[i] : samples[i] / winner[i] * median;
    }
    ret->us = mf_median(scratch, rounds);
    ret->mad = mf_mad(scratch, rounds);
    return 0;
}
