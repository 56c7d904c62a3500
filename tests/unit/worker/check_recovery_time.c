/* worker/agent/recovery_time.c: context, data and step times for different orders of events. */
#include "support/mf_check.h"
#include "worker/agent/recovery_time.h"

/* D: runner died, R: ready, A: unit sent, B: step begun, E: result. Each event advances the clock by 10 ms;
 * '.' advances the clock by 10 ms without an event. */
static const struct {
    const char *events;
    double context, data, step; /* expected at the last E; context < 0: no times */
} cases[] = {
    {"DRABE", 10, 10, 10},      {"DR.....AB..E", 10, 10, 30}, /* no unit to send for a while */
    {"D...RA..BE", 40, 30, 10}, {"DRABDR.A.BE", 10, 20, 10},  /* the runner dies again */
    {"DRABEABE", -1, 0, 0},                                   /* the second result has no times */
    {"RABE", -1, 0, 0},                                       /* no death */
    {"ABDE", -1, 0, 0},                                       /* a result sent before its runner died */
    {"DRAE", -1, 0, 0},                                       /* the result of an enumeration: no step */
    {"DRABABE", 10, 10, 30},                                  /* a step without a result, then another */
};

MF_TEST(reported_once, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_recovery_time c = {0};
    struct mf_recovery_time_ms ms = {0};
    uint64_t now = 5;
    bool reported = false;

    for (const char *e = cases[_i].events; *e; e++, now += 10000000) {
        if (*e == 'D')
            mf_recovery_time_died(&c, now);
        else if (*e == 'R')
            mf_recovery_time_ready(&c, now);
        else if (*e == 'A')
            mf_recovery_time_unit_sent(&c, now);
        else if (*e == 'B')
            mf_recovery_time_begun(&c, now);
        else if (*e == 'E')
            reported = mf_recovery_time_result(&c, now, &ms);
    }
    ck_assert(reported == (cases[_i].context >= 0));
    if (!reported)
        return;
    ck_assert_double_eq_tol(ms.context, cases[_i].context, 1e-6);
    ck_assert_double_eq_tol(ms.data, cases[_i].data, 1e-6);
    ck_assert_double_eq_tol(ms.step, cases[_i].step, 1e-6);
}

int main(void)
{
    return mf_check_main(NULL);
}
