/* Makes pairwise covering sets. A row has one value for each of several factors. The set contains a row for
 * every pair of values of two factors, if any legal row has that pair. The algorithm is greedy: each row
 * starts from a missing pair; the other factors follow in random order and get the value that adds the most
 * missing pairs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COVERING_FACTORS 12
#define COVERING_VALUES  32

struct covering {
    int n_factors;
    int n_values[COVERING_FACTORS]; /* number of values of each factor */
    /* True if a row is legal. A value of -1 is not chosen yet; such a row is illegal only if no choice of the
     * missing values makes it legal. */
    bool (*legal)(const int *row);
};

/* A pair: value v of factor f together with value u of factor g. */
struct covering_pair {
    int f, v, g, u;
};

struct covering_set {
    int (*rows)[COVERING_FACTORS];
    int n, cap;
    /* pairs that no legal row has, found by exhaustive search; may be NULL */
    struct covering_pair *impossible;
    /* n_impossible may exceed cap_impossible; the excess pairs are not stored */
    int n_impossible, cap_impossible;
};

/* Adds rows to the set until it contains every pair that a legal row has, or until it has `cap` rows.
 * Replaces the list of impossible pairs. The same seed gives the same rows. */
void covering_add(const struct covering *c, uint64_t seed, struct covering_set *set);
