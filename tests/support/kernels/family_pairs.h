/* Checks the contract of every family on a pairwise covering set of shapes, and on named corner cases. The
 * factors are token count, widths, experts, top-k, activation and its limit, place of the routing weight,
 * biases, format, and instruction set. The quick set and the long grid differ in the maximum cost of a case
 * and in the number of steps per case. */
#pragma once

#include <stdint.h>

struct pairs_budget {
    int64_t weight_bytes; /* maximum size of both weights of a case */
    /* maximum number of multiplications in a case's layer; on machines without vector instructions, a tenth
     * of this number */
    double products;
};

#define PAIRS_BUDGETS 2
struct pairs_plan {
    /* First, cases are generated within the first budget. The second budget is for the pairs that do not fit
     * the first budget. */
    struct pairs_budget budgets[PAIRS_BUDGETS];
    int steps; /* maximum number of steps per family and case */
    /* One in all_cores_every cases runs on all cores. Other cases run on one core, so that no thread waits
     * for a busy core. */
    int all_cores_every;
    int drawn_every; /* one in drawn_every cases runs (mf_draw.h); 1: every case runs */
};

/* Main function of a test program. With the argument "2/3" it runs the second third of the cases. */
int pairs_main(const struct pairs_plan *plan, int argc, char **argv);
