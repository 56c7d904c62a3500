/* Every family over the pairwise-covering set whose weights may take 64 MiB: every step of each. */
#include "support/kernels/family_pairs.h"

#include <limits.h>

int main(int argc, char **argv)
{
    return pairs_main(
        "family grid",
        &(struct pairs_plan){.budgets = {{64 << 20, 3e8}}, .steps = INT_MAX, .all_cores_every = 4}, argc,
        argv);
}
