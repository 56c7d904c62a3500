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
    /* May such a row be? Factors that are not chosen yet are -1: false only when no choice of theirs makes it legal. */
    bool (*legal)(const int *row);
};

/* A value of each of two factors. */
struct covering_pair {
    int f, v, g, u;
};

struct covering_set {
    int (*rows)[COVERING_FACTORS];
    int n, cap;
    struct covering_pair
        *impossible; /* no legal row holds them: every row was searched for each; may be NULL */
    int n_impossible, cap_impossible; /* n may be above cap, where the rest is left out */
};

/* Adds rows to those of the set, until these hold every pair that some legal row holds or cap is reached, and says anew
 * which pairs are left. The same seed gives the same. */
void covering_add(const struct covering *c, uint64_t seed, struct covering_set *set);
