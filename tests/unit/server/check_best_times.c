#include "server/choose/best_times.h"

#include "support/mf_check.h"

#include <math.h>

#define GEMM1 MF_OP_BIT(MF_OP_GEMM1)
#define GEMM2 MF_OP_BIT(MF_OP_GEMM2)

/* A time counts for the worker that measured it, and for all workers once a second worker has reached it. */
MF_TEST(one_worker_does_not_decide_for_others)
{
    struct mf_best_times b = {0};
    mf_best_times_add(&b, GEMM1, 1, 20);
    mf_best_times_add(&b, GEMM1, 1, 10);
    mf_best_times_add(&b, GEMM1, 1, 15);
    ck_assert_double_eq(mf_best_times_find(&b, GEMM1, 1), 10);
    ck_assert(isinf(mf_best_times_find(&b, GEMM1, 2)));
    ck_assert(isinf(mf_best_times_find(&b, GEMM2, 1)));
    mf_best_times_add(&b, GEMM1, 2, 12);
    ck_assert_double_eq(mf_best_times_find(&b, GEMM1, 1), 10);
    ck_assert_double_eq(mf_best_times_find(&b, GEMM1, 2), 12);
    ck_assert_double_eq(mf_best_times_find(&b, GEMM1, 3), 12);
}

/* Times beyond the limit are dropped; listed ones can still improve. */
MF_TEST(entries_are_bounded)
{
    struct mf_best_times b = {0};
    for (int64_t worker = 1; worker <= MF_BEST_MAX + 1; worker++)
        mf_best_times_add(&b, GEMM1, worker, 100);
    ck_assert_int_eq(b.n, MF_BEST_MAX);
    mf_best_times_add(&b, GEMM1, MF_BEST_MAX, 50);
    ck_assert_double_eq(mf_best_times_find(&b, GEMM1, MF_BEST_MAX), 50);
}

int main(void)
{
    return mf_check_main(NULL);
}
