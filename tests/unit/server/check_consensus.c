#include "server/choose/consensus.h"

#include "support/mf_check.h"

#include <math.h>

/* Bound of a value: 10; tolerance: 0.5. */
static const struct {
    double values[5];
    size_t n;
    bool alone, applies;
    double found;
} cases[] = {
    {{0}, 0, true, false, 0},
    {{3}, 1, true, true, 3},
    {{3}, 1, false, false, 0}, /* no other worker confirms it */
    {{3, 3.4}, 2, false, true, 3.2},
    {{3, 9}, 2, false, false, 0}, /* they disagree, and there is no majority */
    {{3, 9, 3.1}, 3, false, true, 3.1},
    {{-9, 3, 3.1}, 3, false, true, 3},
    {{1, 4, 8}, 3, false, false, 0},
    {{3, INFINITY, NAN, -INFINITY, 1e308}, 5, false, false, 0}, /* only 3 counts */
    {{3, 11, 3.2}, 3, false, true, 3.1},                        /* 11 is beyond the bound */
};

MF_TEST(second_worker_confirms, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_consensus c = {.n = 0};
    double found = 0;
    for (size_t i = 0; i < cases[_i].n; i++)
        mf_consensus_add(&c, cases[_i].values[i], 10);
    ck_assert_int_eq(mf_consensus_find(&c, cases[_i].alone, 0.5, &found), cases[_i].applies);
    ck_assert_double_eq_tol(found, cases[_i].found, 1e-9);
}

MF_TEST(number_of_values_is_limited)
{
    struct mf_consensus c = {.n = 0};
    double found;
    for (int i = 0; i < 2 * MF_CONSENSUS_MAX; i++)
        mf_consensus_add(&c, 1, 10);
    ck_assert_uint_eq(c.n, MF_CONSENSUS_MAX);
    ck_assert(mf_consensus_find(&c, false, 0.5, &found));
}

int main(void)
{
    return mf_check_main(NULL);
}
