/* The contract of every family over a pairwise-covering set of shapes: tokens, widths, experts, topk, activation, its
 * limit, where the routing weight goes, biases, format and instruction set; and over named corners. The quick set and the long
 * grid differ by what a case may cost. */
#pragma once

#include <stdint.h>

struct pairs_budget {
    int64_t weight_bytes; /* of a case, both weights */
    double products;      /* multiplications of a case's layer, a fifth of it without vectors */
    int steps;            /* of each family and case: so many of those that it offers, in turn */
};

/* Runs as main() of a test. */
int pairs_main(const char *name, const struct pairs_budget *budget);
