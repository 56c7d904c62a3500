/* Every family over the pairwise-covering set whose weights may take 64 MiB, most cases of it small: a few steps of each. */
#include "support/kernels/family_pairs.h"

int main(int argc, char **argv)
{
    return pairs_main(
        "family pairs",
        &(struct pairs_plan){.budgets = {{4 << 20, 3e7}, {64 << 20, 2e9}}, .steps = 3, .all_cores_every = 2},
        argc, argv);
}
