/* Searches a large space of candidates by successive halving: selects which candidates to measure next, from
 * the times of those measured so far. Pure functions.
 *
 *   first round   the hinted points (fastest of similar tasks), and points far from each other
 *   later rounds  the unmeasured points next to the fastest ones (survivors). The second round has eight
 *                 survivors, each later one half as many, at least three
 *   end           no unmeasured point is next to a survivor, or a tenth of the space is measured
 *
 * The survivors of a round are not next to each other, so that several local optima are followed. A search
 * has no state: it depends on the times only, so it goes on after a restart. It may miss a fast point that
 * its neighbours do not hint at. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/choose/points.h"

/* spaces with fewer candidates are measured as a whole */
#define MF_HALVING_LEAST 96

struct mf_halving {
    const struct mf_points *points;
    const double *us;   /* per point: its time; 0: not measured; INFINITY: it failed */
    const bool *hinted; /* per point: true if it is measured first; NULL: no point is hinted */
    uint64_t seed;      /* breaks ties */
};

/* Returns the largest number of points of a space of n that a search measures. */
size_t mf_halving_max(size_t n);
/* Writes the points of the next round, at most `limit`, to ret, and their number to *ret_n. 0 points: the
 * search has ended. Returns -ENOMEM. */
int mf_halving_next(const struct mf_halving *h, size_t limit, size_t *ret, size_t *ret_n);
