/* Every family over the quick pairwise-covering set: a few steps of each. */
#include "family_pairs.h"

int main(void)
{
    return pairs_main("family pairs",
                      &(struct pairs_budget){.weight_bytes = 4 << 20, .products = 3e7, .steps = 3});
}
