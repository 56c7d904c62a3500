/* Combines a statistic that the workers of a device model report. The statistic of one worker does not apply
 * to the other workers until a second worker confirms it, so a worker with false numbers harms only itself.
 * Pure functions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Statistics of one worker are ignored beyond this number of workers. */
#define MF_CONSENSUS_MAX 64

/* Values of the workers, in any order. Values that are compared by ratio are logarithms. */
struct mf_consensus {
    double values[MF_CONSENSUS_MAX];
    size_t n;
};

/* Adds the value, unless it is not finite or its magnitude exceeds `bound`. */
void mf_consensus_add(struct mf_consensus *c, double value, double bound);
/* Finds the value that applies to the model. alone: the only value is of the model's only worker, to which it
 * applies without confirmation. Otherwise the value is the median, if two values, one of them next to or at
 * the median, differ from it by at most `tolerance`. Returns false if no value applies. */
bool mf_consensus_find(struct mf_consensus *c, bool alone, double tolerance, double *ret);
