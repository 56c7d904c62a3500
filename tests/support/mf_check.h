/* The main function of every check_*.c, and reporting of skipped tests.
 *
 * A test that may lack a resource (a compiler, root, a browser) goes into a TCase of its own with the tag
 * "optional" and calls mf_check_skip() before it returns. mf_add_test(… OPTIONAL) makes a second ctest entry
 * of these cases, so that a skip is an exit code of 77 in an entry of its own. */
#pragma once

#include <check.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MF_CHECK_SKIPPED 77
#define MF_CHECK_REASONS 32
#define MF_CHECK_REASON  256

/* Shared with the forked tests. */
struct mf_check_skips {
    atomic_int n;
    char reasons[MF_CHECK_REASONS][MF_CHECK_REASON];
};

static struct mf_check_skips *mf_check_skips __attribute__((unused));

/* Records why the running test is skipped; the test returns next. */
__attribute__((unused, format(printf, 1, 2))) static void mf_check_skip(const char *format, ...)
{
    va_list args;
    int i = atomic_fetch_add(&mf_check_skips->n, 1);
    if (i >= MF_CHECK_REASONS)
        return;
    va_start(args, format);
    (void)vsnprintf(mf_check_skips->reasons[i], MF_CHECK_REASON, format, args);
    va_end(args);
}

static inline void mf_check_print_skips(void)
{
    int n = atomic_load(&mf_check_skips->n);
    for (int i = 0; i < n && i < MF_CHECK_REASONS; i++) {
        int before = 0;
        while (strcmp(mf_check_skips->reasons[before], mf_check_skips->reasons[i]) != 0)
            before++;
        if (before == i)
            (void)printf("skipped: %s\n", mf_check_skips->reasons[i]);
    }
}

/* Runs the suite as configured by the environment (CK_VERBOSITY, CK_RUN_CASE, CK_FORK). Returns the exit
 * code: 77 if no test failed and at least one was skipped. */
static inline int mf_check_main(Suite *suite)
{
    mf_check_skips =
        mmap(NULL, sizeof(*mf_check_skips), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mf_check_skips == MAP_FAILED)
        return EXIT_FAILURE;
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    mf_check_print_skips();
    if (failed > 0)
        return EXIT_FAILURE;
    return atomic_load(&mf_check_skips->n) > 0 ? MF_CHECK_SKIPPED : EXIT_SUCCESS;
}

/* Adds a TCase for tests that may be skipped to the suite. timeout_s: 0 for the default of libcheck. */
__attribute__((unused)) static TCase *mf_check_optional(Suite *suite, double timeout_s)
{
    TCase *ret = tcase_create("optional");
    tcase_set_tags(ret, "optional");
    if (timeout_s > 0)
        tcase_set_timeout(ret, timeout_s);
    suite_add_tcase(suite, ret);
    return ret;
}
