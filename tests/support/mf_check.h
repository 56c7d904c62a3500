/* What every check_*.c repeats otherwise: the main function. */
#pragma once

#include <check.h>
#include <stdlib.h>

/* Runs the suite as CK_ENV asks (CK_VERBOSITY, CK_RUN_CASE, CK_FORK); the exit code counts failures. */
static inline int mf_check_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
