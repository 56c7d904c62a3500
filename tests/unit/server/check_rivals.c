/* Pipelines that race against a winner under other routing profiles (server/choose/rivals.h). */
#include "server/choose/race.h"
#include "server/choose/rivals.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"

#include <string.h>

#define SURVIVORS_MAX 8

/* clang-format off */
static const struct {
    const char *what;
    struct mf_entrant survivors[SURVIVORS_MAX]; /* {pipeline, us, block_m}; pipeline 0 ends the list */
    int64_t expected[MF_RIVALS_MAX + 1];        /* besides the winner (pipeline 1, block_m 16); 0: end */
} rows[] = {
    {"no survivor",                {{0}},                                                          {0}},
    {"another block comes first",  {{2, 10, 16}, {3, 20, 32}},                                     {3, 2}},
    {"the fastest of each block",  {{2, 30, 32}, {3, 20, 32}, {4, 25, 64}, {5, 15, 16}},           {3, 4, 5}},
    {"at most three",              {{2, 10, 32}, {3, 11, 64}, {4, 12, 128}, {5, 13, 256}},         {2, 3, 4}},
    {"equal times go by id",       {{7, 10, 16}, {5, 10, 16}, {6, 10, 16}, {8, 10, 16}},           {5, 6, 7}},
};
/* clang-format on */

MF_TEST(picks_rivals, .rows = MF_ARRAY_LEN(rows))
{
    struct mf_entrant survivors[SURVIVORS_MAX], got[MF_RIVALS_MAX + 1] = {{1, 9, 16}};
    size_t n = 0, n_expected = 0;
    while (rows[_i].survivors[n].pipeline)
        n++;
    while (rows[_i].expected[n_expected])
        n_expected++;
    memcpy(survivors, rows[_i].survivors, sizeof(survivors));
    ck_assert_uint_eq(mf_rivals_pick(survivors, n, got), 1 + n_expected);
    ck_assert_int_eq(got[0].pipeline, 1);
    for (size_t i = 0; i < n_expected; i++)
        ck_assert_msg(got[1 + i].pipeline == rows[_i].expected[i], "%s: %ld at %zu", rows[_i].what,
                      (long)got[1 + i].pipeline, i);
}

MF_TEST(keeps_within_the_budget)
{
    const struct mf_entrant e[] = {{1, 1000, 16}, {2, 1000, 32}, {3, 1000, 64}, {4, 1000, 128}};
    const double one_s = 1e-3 * MF_RACE_ROUNDS_MIN;
    ck_assert_uint_eq(mf_rivals_affordable(e, 4, 4.5 * one_s), 4);
    ck_assert_uint_eq(mf_rivals_affordable(e, 4, 3.5 * one_s), 3);
    ck_assert_uint_eq(mf_rivals_affordable(e, 4, 0), MF_ENTRANTS_MIN);
    ck_assert_uint_eq(mf_rivals_affordable(e, 1, 0), 1);
}

int main(void)
{
    return mf_check_main(NULL);
}
