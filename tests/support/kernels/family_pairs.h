/* The contract of every family over a pairwise-covering set of shapes: tokens, widths, experts, topk, activation, its
 * limit, where the routing weight goes, biases, format and instruction set; and over named corners. The quick set and the long
 * grid differ by what most cases may cost and how many steps of each are checked. */
#pragma once

#include <stdint.h>

struct pairs_budget {
    int64_t weight_bytes; /* of a case, both weights */
    double products;      /* multiplications of a case's layer, a tenth of it without vectors */
};

#define PAIRS_BUDGETS 2
struct pairs_plan {
    /* Cases are made for the first; pairs that are in no shape of it have cases of the next. */
    struct pairs_budget budgets[PAIRS_BUDGETS];
    int steps; /* of each family and case: so many of those that it offers, in turn */
    /* Each so many cases one runs on all cores; the others on one, where threads wait for none that a busy machine keeps. */
    int all_cores_every;
};

/* Runs as main() of a test. An argument "2/3" is the second third of the cases. */
int pairs_main(const char *name, const struct pairs_plan *plan, int argc, char **argv);
