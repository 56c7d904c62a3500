/* Declares the tests of a check_*.c program and runs them.
 *
 *     MF_TEST(parses_names, .rows = MF_ARRAY_LEN(names))
 *     {
 *         ck_assert_int_eq(parse(names[_i].text), names[_i].value);
 *     }
 *
 * The linker collects every MF_TEST of a program in one table (section mf_tests), so every declared test also
 * runs. Each test runs in its own process. The order of the tests is arbitrary.
 *
 * A test that needs a resource which may be missing (a compiler, root, a browser) is in an optional group. If
 * the resource is missing, the test calls mf_check_skip() and returns. mf_add_test(… OPTIONAL) gives the
 * optional groups a ctest entry of their own, so that ctest reports a skip (exit code 77) for this entry
 * only. */
#pragma once

#include "common/base/cleanup.h" /* for MF_ARRAY_LEN in .rows */

#include <check.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Properties that the tests of a group share. A field of 0 means the default of libcheck. */
struct mf_test_group {
    const char *name; /* name for CK_RUN_CASE; NULL: the program's name without "check_" */
    double timeout_s;
    /* run before and after each test, in the process of the test */
    void (*setup)(void), (*teardown)(void);
    /* run before and after all tests of the group, in the parent process */
    void (*setup_all)(void), (*teardown_all)(void);
    bool optional;
};

struct mf_test {
    TTest libcheck;
    /* the test runs once for each _i from 0 to rows - 1; 0: the test runs once, with _i = 0 */
    int rows;
    int (*count_rows)(void);           /* returns the number of rows if it is not a constant */
    const struct mf_test_group *group; /* NULL: the group that mf_check_main() is called with */
};

/* The table holds pointers because the compiler may pad between structs. */
#define MF_TEST(test, ...)                                                                         \
    static void test##_fn(int _i);                                                                 \
    static const struct mf_test test##_test = {.libcheck = {#test, test##_fn, __FILE__, __LINE__}, \
                                               __VA_ARGS__};                                       \
    static const struct mf_test *const test##_entry __attribute__((section("mf_tests"), used)) =   \
        &test##_test;                                                                              \
    static void test##_fn(int _i CK_ATTRIBUTE_UNUSED)

#define MF_CHECK_SKIPPED 77
#define MF_CHECK_REASONS 32
#define MF_CHECK_REASON  256

/* Skips of all tests, in memory that the forked tests share. */
struct mf_check_skips {
    atomic_int n;
    char reasons[MF_CHECK_REASONS][MF_CHECK_REASON];
};

static struct mf_check_skips *mf_check_skips __attribute__((unused));

/* Records why the running test is skipped. The test must then return. */
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

static inline TCase *mf_check_case(const struct mf_test_group *group, const char *suite_name)
{
    TCase *ret = tcase_create(group->name ? group->name : suite_name);
    if (group->optional)
        tcase_set_tags(ret, "optional");
    if (group->timeout_s > 0)
        tcase_set_timeout(ret, group->timeout_s);
    if (group->setup || group->teardown)
        tcase_add_checked_fixture(ret, group->setup, group->teardown);
    if (group->setup_all || group->teardown_all)
        tcase_add_unchecked_fixture(ret, group->setup_all, group->teardown_all);
    return ret;
}

/* Bounds of the table, defined by the linker. */
extern const struct mf_test *const __start_mf_tests[], *const __stop_mf_tests[];

static inline bool mf_check_starts_group(const struct mf_test *const *entry)
{
    const struct mf_test *const *first = __start_mf_tests;
    while ((*first)->group != (*entry)->group)
        first++;
    return first == entry;
}

static inline void mf_check_add_group(Suite *suite, const struct mf_test *const *first,
                                      const struct mf_test_group *group, const char *suite_name)
{
    TCase *tcase = mf_check_case(group, suite_name);
    for (const struct mf_test *const *p = first; p < __stop_mf_tests; p++) {
        int rows = (*p)->count_rows ? (*p)->count_rows() : (*p)->rows > 0 ? (*p)->rows : 1;
        if ((*p)->group == (*first)->group)
            tcase_add_loop_test(tcase, &(*p)->libcheck, 0, rows);
    }
    suite_add_tcase(suite, tcase);
}

static inline Suite *mf_check_suite(const struct mf_test_group *main_group)
{
    const char *program = program_invocation_short_name,
               *name = strncmp(program, "check_", 6) == 0 ? program + 6 : program;
    Suite *ret = suite_create(name);
    for (const struct mf_test *const *p = __start_mf_tests; p < __stop_mf_tests; p++)
        if (mf_check_starts_group(p))
            mf_check_add_group(ret, p, (*p)->group ? (*p)->group : main_group, name);
    return ret;
}

/* Runs all tests, as configured by environment variables of libcheck (CK_VERBOSITY, CK_RUN_CASE, CK_FORK).
 * group: group of the tests that name no group; NULL: the defaults of libcheck. Returns the exit code: 77 if
 * no test failed and at least one test was skipped. */
static inline int mf_check_main(const struct mf_test_group *group)
{
    static const struct mf_test_group none;
    mf_check_skips =
        mmap(NULL, sizeof(*mf_check_skips), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mf_check_skips == MAP_FAILED)
        return EXIT_FAILURE;
    SRunner *runner = srunner_create(mf_check_suite(group ? group : &none));
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    mf_check_print_skips();
    if (failed > 0)
        return EXIT_FAILURE;
    return atomic_load(&mf_check_skips->n) > 0 ? MF_CHECK_SKIPPED : EXIT_SUCCESS;
}
