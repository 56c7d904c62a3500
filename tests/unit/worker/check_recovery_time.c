/* worker/agent/recovery_time.c: what counts as context, data and step, in whatever order things happen. */
#include "support/mf_check.h"
#include "worker/agent/recovery_time.h"

/* D died, R ready, A asked, B begun, E a result; each is one step of a clock of ten milliseconds, . is one without anything. */
static const struct {
    const char *events;
    double context, data, step; /* of the last E; context < 0: it says nothing */
} cases[] = {
    {"DRABE", 10, 10, 10},      {"DR.....AB..E", 10, 10, 30}, /* nothing to do meanwhile */
    {"D...RA..BE", 40, 30, 10}, {"DRABDR.A.BE", 10, 20, 10},  /* it dies again */
    {"DRABEABE", -1, 0, 0},                                   /* the second result is like any other */
    {"RABE", -1, 0, 0},                                       /* nobody died */
    {"ABDE", -1, 0, 0},                                       /* a result on its way when its runner died */
    {"DRAE", -1, 0, 0},                                       /* the result of no step: an enumeration's */
    {"DRABABE", 10, 10, 30},                                  /* a step without a result, and the next */
};

START_TEST(is_told_once)
{
    struct mf_recovery_time c = {0};
    struct mf_recovery_time_ms ms = {0};
    uint64_t now = 5;
    bool told = false;

    for (const char *e = cases[_i].events; *e; e++, now += 10000000) {
        if (*e == 'D')
            mf_recovery_time_died(&c, now);
        else if (*e == 'R')
            mf_recovery_time_ready(&c, now);
        else if (*e == 'A')
            mf_recovery_time_asked(&c, now);
        else if (*e == 'B')
            mf_recovery_time_begun(&c, now);
        else if (*e == 'E')
            told = mf_recovery_time_result(&c, now, &ms);
    }
    ck_assert(told == (cases[_i].context >= 0));
    if (!told)
        return;
    ck_assert_double_eq_tol(ms.context, cases[_i].context, 1e-6);
    ck_assert_double_eq_tol(ms.data, cases[_i].data, 1e-6);
    ck_assert_double_eq_tol(ms.step, cases[_i].step, 1e-6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recovery_time");
    TCase *tests = tcase_create("recovery_time");

    tcase_add_loop_test(tests, is_told_once, 0, sizeof(cases) / sizeof(cases[0]));
    suite_add_tcase(suite, tests);
    return mf_check_main(suite);
}
