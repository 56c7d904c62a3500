/* Times of raced pipelines that can be compared with each other. Pure functions.
 *
 * A racer that dropped out early has samples of the first rounds only. If the device was slower or faster in
 * these rounds, its plain median cannot be compared with that of a racer that ran all rounds. So each sample
 * is divided by the sample of the race's winner in the same round, and multiplied by the winner's median. */
#pragma once

#include <stddef.h>

struct mf_race_time {
    double us, mad; /* median and median absolute deviation of the paired samples */
};
/* Pairs the first n samples of a racer with the samples of the winner in the same rounds. The winner paired
 * with itself keeps its own median and deviation. scratch: space for n_winner values. -EINVAL: there is no
 * common round, or a time is not positive. */
int mf_race_time_pair(const double *winner, size_t n_winner, const double *samples, size_t n, double *scratch,
                      struct mf_race_time *ret);
