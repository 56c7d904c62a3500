/* A covering set: rows of values for several factors that between them hold every pair of values of any two factors
 * which some legal row holds. Greedy: each row starts from a pair that is still missing and takes, factor by factor in
 * random order, the value that brings the most missing pairs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COVERING_FACTORS 12
#define COVERING_VALUES  32

struct covering {
    int n_factors;
    int n_values[COVERING_FACTORS]; /* of each factor */
    /* May such a row be? Factors that are not chosen yet are -1; legal as far as can be said. */
    bool (*legal)(const int *row);
};

/* -> rows written, at most cap; *ret_dropped: pairs for which no legal row was found. The same seed gives the same. */
int covering_make(const struct covering *c, uint64_t seed, int (*rows)[COVERING_FACTORS], int cap,
                  int *ret_dropped);
