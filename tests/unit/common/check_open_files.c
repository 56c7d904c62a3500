/* common/base/open_files.c: the soft limit is raised up to the hard limit and never lowered. */
#include "common/base/open_files.h"

#include <sys/resource.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

static const struct {
    rlim_t soft, hard, expect;
} limits[] = {
    {64, 1000, 1000},   /* hard limit below MF_DESCRIPTORS */
    {1000, 1000, 1000}, /* already at the hard limit */
    {64, 0, 0},         /* the test keeps the current hard limit */
};

MF_TEST(raises_soft_limit, .rows = MF_ARRAY_LEN(limits))
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlim_t hard = limits[_i].hard ? MF_MIN(limits[_i].hard, limit.rlim_max) : limit.rlim_max;
    rlim_t expect = limits[_i].expect ? MF_MIN(limits[_i].expect, hard) : MF_MIN(hard, MF_DESCRIPTORS);
    limit = (struct rlimit){.rlim_cur = MF_MIN(limits[_i].soft, hard), .rlim_max = hard};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(mf_open_files_raise(), 0);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_uint_eq(limit.rlim_cur, expect);
    ck_assert_uint_eq(limit.rlim_max, hard);
}

int main(void)
{
    return mf_check_main(NULL);
}
