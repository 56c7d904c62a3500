/* Every family over the pairwise-covering set whose weights may take 64 MiB: every step of each. */
#include "family_pairs.h"

#include <limits.h>

int main(void)
{
    return pairs_main("family grid",
                      &(struct pairs_budget){.weight_bytes = 64 << 20, .products = 2e9, .steps = INT_MAX});
}
