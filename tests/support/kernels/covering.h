/* Pairwise covering sets: rows of values for several factors that contain every pair of values of any two
 * factors that some legal row contains. Greedy: each row starts from a missing pair and takes, factor by
 * factor in random order, the value that adds the most missing pairs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COVERING_FACTORS 12
#define COVERING_VALUES  32

struct covering {
    int n_factors;
    int n_values[COVERING_FACTORS]; /* of each factor */
    /* Returns whether a row is legal. Values not chosen yet are -1: false only if no choice of them makes the
     * row legal. */
    bool (*legal)(const int *row);
};

/* A value of each of two factors. */
struct covering_pair {
    int f, v, g, u;
};

struct covering_set {
    int (*rows)[COVERING_FACTORS];
    int n, cap;
    struct covering_pair *impossible; /* pairs in no legal row, found by exhaustive search; may be NULL */
    int n_impossible, cap_impossible; /* n_impossible may exceed the capacity; the excess is not stored */
};

/* Adds rows to the set until they contain every pair of some legal row, or the capacity is reached. Replaces
 * the list of impossible pairs. Deterministic for a seed. */
void covering_add(const struct covering *c, uint64_t seed, struct covering_set *set);
