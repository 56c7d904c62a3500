/* A few steps of every family on a pairwise-covering set of shapes, most of them small, with weights up to 64
 * MiB. */
#include "support/kernels/family_pairs.h"

int main(int argc, char **argv)
{
    return pairs_main(&(struct pairs_plan){.budgets = {{4 << 20, 3e7}, {64 << 20, 2e9}},
                                           .steps = 3,
                                           .all_cores_every = 2,
                                           .drawn_every = 10},
                      argc, argv);
}
