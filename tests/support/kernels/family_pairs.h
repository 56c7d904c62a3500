/* The contract of every family over a pairwise covering set of shapes (tokens, widths, experts, topk,
 * activation and its limit, place of the routing weight, biases, format, instruction set), and over named
 * corner cases. The quick set and the long grid differ in the maximum cost of a case and in the number of
 * steps per case. */
#pragma once

#include <stdint.h>

struct pairs_budget {
    int64_t weight_bytes; /* of a case, for both weights */
    double products;      /* multiplications of a case's layer; a tenth of it without vector instructions */
};

#define PAIRS_BUDGETS 2
struct pairs_plan {
    /* Cases are generated within the first budget; the next budget covers the pairs that do not fit the
     * first. */
    struct pairs_budget budgets[PAIRS_BUDGETS];
    int steps; /* maximum steps per family and case */
    /* Every all_cores_every-th case runs on all cores. The others run on one core, where no thread waits for
     * a busy core. */
    int all_cores_every;
    int drawn_every; /* mf_draw.h; 1: every case runs */
};

/* The main function of a test. The argument "2/3" runs the second third of the cases. */
int pairs_main(const struct pairs_plan *plan, int argc, char **argv);
