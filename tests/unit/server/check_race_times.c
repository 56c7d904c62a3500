#include "server/choose/race_times.h"

#include <errno.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#define N_MAX 8

/* Series end at the first 0. */
/* clang-format off */
static const struct {
    double winner[N_MAX], racer[N_MAX];
    double us, mad; /* us 0: refused */
} cases[] = {
    /* a racer that is always 10 % slower, on a device that becomes slower: the plain median of its two
     * rounds, 110, would be below the winner's 130 */
    {{100, 100, 130, 140, 150}, {110, 110}, 143, 0},
    /* on a device that becomes faster, its plain median would be 220 */
    {{200, 100, 100, 100, 100}, {220}, 110, 0},
    {{100, 110, 90, 100}, {100, 110, 90, 100}, 100, 0},
    {{100, 100, 100}, {101, 103, 108}, 103, 2},
    /* a racer may have run more rounds than the winner */
    {{100}, {120, 500}, 120, 0},
    {{0}, {100}, 0, 0},
    {{100}, {0}, 0, 0},
    {{100, 100}, {100, -1}, 0, 0},
};
/* clang-format on */

static size_t count(const double *series)
{
    size_t n = 0;
    while (n < N_MAX && series[n] != 0)
        n++;
    return n;
}

MF_TEST(pairs_by_round, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_race_time time = {0, 0};
    double scratch[N_MAX];
    int r = mf_race_time_pair(cases[_i].winner, count(cases[_i].winner), cases[_i].racer,
                              count(cases[_i].racer), scratch, &time);
    ck_assert_int_eq(r, cases[_i].us > 0 ? 0 : -EINVAL);
    ck_assert_double_eq_tol(time.us, cases[_i].us, 1e-9);
    ck_assert_double_eq_tol(time.mad, cases[_i].mad, 1e-9);
}

/* The winner keeps its own median and deviation. */
MF_TEST(winner_keeps_its_time)
{
    static const double winner[] = {100, 110, 90, 104};
    struct mf_race_time time;
    double scratch[4];
    ck_assert_int_eq(mf_race_time_pair(winner, 4, winner, 4, scratch, &time), 0);
    ck_assert_double_eq(time.us, 102);
    ck_assert_double_eq(time.mad, 5);
}

int main(void)
{
    return mf_check_main(NULL);
}
