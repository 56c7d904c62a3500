/* Every step of every family on a pairwise-covering set of shapes with weights up to 64 MiB. */
#include "support/kernels/family_pairs.h"

#include <limits.h>

int main(int argc, char **argv)
{
    return pairs_main(
        &(struct pairs_plan){
            .budgets = {{64 << 20, 3e8}}, .steps = INT_MAX, .all_cores_every = 4, .drawn_every = 1},
        argc, argv);
}
