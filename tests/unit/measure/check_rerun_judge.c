#include "measure/race/rerun_judge.h"

#include <string.h>

#include "common/base/text.h"
#include "support/mf_check.h"

#define N_MAX 20

/* Samples end at the first 0. */
/* clang-format off */
static const struct {
    double rounds[N_MAX], fresh[N_MAX];
    const char *why; /* part of the sentence; NULL: accepted */
} cases[] = {
    /* quiet */
    {{100, 101, 99, 100, 102, 98}, {100, 101, 100, 99, 100}, NULL},
    {{100, 101, 99, 100, 102, 98}, {0}, NULL},
    {{100, 101, 99, 100, 102, 98}, {102}, NULL},
    /* 5 % of drift and an outlier in each */
    {{100, 101, 99, 130, 102, 98}, {105, 105, 104, 106, 150}, NULL},
    /* the public case: 13 samples from 1,513 to 32,788, race 1519 */
    {{1519, 1520, 1518, 1517, 1522, 1519},
     {1513, 1520, 1519, 1522, 2200, 3100, 3628, 4100, 5200, 8800, 12000, 20100, 32788}, "scatter"},
    /* all samples are disturbed alike, in both directions */
    {{1519, 1520, 1518, 1517, 1522, 1519}, {3628, 3630, 3625, 3640, 3620},
     "rerun (3628 us) lies outside the race's confidence interval (151"},
    {{1519, 1520, 1518, 1517, 1522, 1519}, {900, 901, 902, 899, 900}, "outside"},
    {{1519, 1520, 1518, 1517, 1522, 1519}, {3628}, "outside"},
    /* a slow outlier of a short race does not widen its interval */
    {{100, 101, 99, 100, 400, 98}, {300, 301, 299, 302, 298}, "outside"},
    /* the race itself scatters: its fastest quarter is 135 us, so a quiet rerun of 268 us was disturbed, too,
     * and one of 140 us was not */
    {{135, 136, 135, 270, 262, 300, 268, 180, 310, 265}, {268, 262, 270, 275, 266},
     "lies above the fastest quarter of the race's samples (136 us)"},
    {{135, 136, 135, 270, 262, 300, 268, 180, 310, 265}, {140, 139, 140, 141, 140}, NULL},
    {{135, 136, 135, 270, 262, 300, 268, 180, 310, 265}, {120, 121, 120, 119, 120}, NULL},
    /* two clock rates, 15 % apart; the race has seen both */
    {{100, 115, 100, 115, 100, 115}, {100, 115, 101, 115, 100, 116, 101, 115, 100, 115},
     "two modes: 5 near 100 us and 5 near 115 us"},
    /* one outlier in 5 and two in 20 are no mode */
    {{100, 101, 99, 100, 102, 98}, {100, 101, 100, 99, 200}, NULL},
    {{100, 101, 99, 100, 102, 98},
     {100, 101, 100, 99, 100, 101, 100, 99, 100, 101, 100, 99, 100, 101, 100, 99, 100, 101, 200, 220}, NULL},
    /* wide noise without a gap: 8 % deviation */
    {{100, 92, 108, 96, 104, 100}, {100, 92, 108, 96, 104, 90, 110, 94, 106, 100}, NULL},
};
/* clang-format on */

static size_t count(const double *samples)
{
    size_t n = 0;
    while (n < N_MAX && samples[n] > 0)
        n++;
    return n;
}

MF_TEST(judges_rerun, .rows = MF_ARRAY_LEN(cases))
{
    double scratch[N_MAX];
    char why[MF_REASON_MAX] = "";
    const struct mf_rerun r = {.rounds = cases[_i].rounds,
                               .n_rounds = count(cases[_i].rounds),
                               .fresh = cases[_i].fresh,
                               .n_fresh = count(cases[_i].fresh)};
    bool accepted = mf_rerun_accepts(&r, scratch, why);
    ck_assert_msg(accepted == !cases[_i].why, "row %d: %s", _i, why);
    if (cases[_i].why)
        ck_assert_msg(strstr(why, cases[_i].why), "row %d: %s", _i, why);
}

int main(void)
{
    return mf_check_main(NULL);
}
