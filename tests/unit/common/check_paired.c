#include "common/base/paired.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#define MAX_ROUNDS 64

/* clang-format off */
static const struct {
    /* lowest and highest change; the changes between them have equal steps in the logarithm of the ratio */
    double low, high;
    size_t n;
    double least_effect, confidence;
    enum mf_paired_verdict verdict;
} cases[] = {
    {-0.10, -0.08, 20, 0.03, 0.99, MF_PAIRED_FASTER},
    { 0.08,  0.10, 20, 0.03, 0.99, MF_PAIRED_SLOWER},
    {-0.01,  0.01, 20, 0.03, 0.99, MF_PAIRED_SAME},
    /* the interval excludes zero, but all of it is smaller than the least effect: the change is too small to
     * matter */
    {-0.02, -0.01, 20, 0.03, 0.99, MF_PAIRED_SAME},
    { 0.01,  0.02, 20, 0.03, 0.99, MF_PAIRED_SAME},
    /* the median reaches the least effect, but the interval contains zero */
    {-0.30,  0.15, 20, 0.03, 0.99, MF_PAIRED_AMBIGUOUS},
    {-0.15,  0.30, 20, 0.03, 0.99, MF_PAIRED_AMBIGUOUS},
    /* the interval excludes zero, but the median is below the least effect */
    {-0.049, -0.001, 20, 0.03, 0.99, MF_PAIRED_AMBIGUOUS},
    { 0.001, 0.049, 20, 0.03, 0.99, MF_PAIRED_AMBIGUOUS},
    /* the same times with a smaller least effect */
    {-0.049, -0.001, 20, 0.02, 0.99, MF_PAIRED_FASTER},
    { 0.001, 0.049, 20, 0.02, 0.99, MF_PAIRED_SLOWER},
    /* with a least effect of 0, the interval alone decides, so the verdict cannot be SAME */
    { 0.001, 0.002, 20, 0.00, 0.99, MF_PAIRED_SLOWER},
    {-0.002, -0.001, 20, 0.00, 0.99, MF_PAIRED_FASTER},
    {-0.001, 0.001, 20, 0.00, 0.99, MF_PAIRED_AMBIGUOUS},
    /* the interval contains the least effect in both directions */
    {-0.10,  0.10, 20, 0.03, 0.99, MF_PAIRED_AMBIGUOUS},
    /* seven rounds have equal signs by chance once in 64 runs, which is enough for confidence 0.95 but not
     * for 0.99 */
    {-0.10, -0.08,  7, 0.03, 0.99, MF_PAIRED_AMBIGUOUS},
    {-0.10, -0.08,  8, 0.03, 0.99, MF_PAIRED_FASTER},
    {-0.10, -0.08,  5, 0.03, 0.95, MF_PAIRED_AMBIGUOUS},
    {-0.10, -0.08,  6, 0.03, 0.95, MF_PAIRED_FASTER},
    {-0.01,  0.01,  7, 0.03, 0.99, MF_PAIRED_AMBIGUOUS},
};
/* clang-format on */

/* The old times increase by half over the rounds, and the new times drift with them. */
static void fill(double low, double high, size_t n, double *old_us, double *new_us)
{
    for (size_t i = 0; i < n; i++) {
        /* with seven rounds, every change is `low` */
        double at = n > 1 ? (double)((i * 7) % n) / (double)(n - 1) : 0;
        old_us[i] = 50 * (1 + (double)i / (double)n / 2);
        new_us[i] = old_us[i] * exp(log1p(low) + at * (log1p(high) - log1p(low)));
    }
}

MF_TEST(verdicts, .rows = MF_ARRAY_LEN(cases))
{
    double old_us[MAX_ROUNDS], new_us[MAX_ROUNDS], scratch[MAX_ROUNDS];
    struct mf_paired_rule rule = {cases[_i].least_effect, cases[_i].confidence};
    struct mf_paired p;

    fill(cases[_i].low, cases[_i].high, cases[_i].n, old_us, new_us);
    ck_assert_int_eq(mf_paired_judge(old_us, new_us, cases[_i].n, &rule, scratch, &p), 0);
    ck_assert_msg(p.verdict == cases[_i].verdict, "verdict %s, expected %s; change %g, %g, %g",
                  mf_paired_verdict_name(p.verdict), mf_paired_verdict_name(cases[_i].verdict), p.change.low,
                  p.change.mid, p.change.high);
}

/* Computed by hand: for 8 rounds at confidence 0.99 the interval is the whole range of ratios, 0.8 to 1.6.
 * The median ratio is sqrt(1.1 * 1.2). */
MF_TEST(interval_by_hand)
{
    const double ratio[] = {1.1, 0.8, 1.6, 1.0, 1.25, 1.2, 0.9, 1.3};
    double old_us[8], new_us[8], scratch[8];
    struct mf_interval change;

    for (int i = 0; i < 8; i++) {
        old_us[i] = 10 * (i + 1);
        new_us[i] = old_us[i] * ratio[i];
    }
    ck_assert_int_eq(mf_paired_interval(old_us, new_us, 8, 0.99, scratch, &change), 0);
    ck_assert_double_eq_tol(change.low, -0.2, 1e-12);
    ck_assert_double_eq_tol(change.mid, sqrt(1.1 * 1.2) - 1, 1e-12);
    ck_assert_double_eq_tol(change.high, 0.6, 1e-12);
    ck_assert_int_eq(mf_paired_interval(old_us, new_us, 7, 0.95, scratch, &change), 0);
    ck_assert_double_eq_tol(change.mid, 0.1, 1e-12);
}

MF_TEST(rejects_invalid_times)
{
    const double bad[] = {0, -1, NAN, INFINITY};
    double good[] = {1, 2, 3}, scratch[3];
    struct mf_interval change = {7, 7, 7};
    struct mf_paired p = {.verdict = MF_PAIRED_N_};
    const struct mf_paired_rule rule = {0.03, 0.99};

    ck_assert_int_eq(mf_paired_interval(good, good, 0, 0.99, scratch, &change), -EINVAL);
    for (size_t i = 0; i < MF_ARRAY_LEN(bad); i++) {
        double times[] = {1, bad[i], 3};
        ck_assert_int_eq(mf_paired_interval(good, times, 3, 0.99, scratch, &change), -EINVAL);
        ck_assert_int_eq(mf_paired_interval(times, good, 3, 0.99, scratch, &change), -EINVAL);
        ck_assert_int_eq(mf_paired_judge(times, good, 3, &rule, scratch, &p), -EINVAL);
    }
    ck_assert_double_eq(change.mid, 7);
    ck_assert_int_eq(p.verdict, MF_PAIRED_N_);
}

MF_TEST(min_rounds)
{
    ck_assert_uint_eq(mf_paired_min_rounds(0.5), 2);
    ck_assert_uint_eq(mf_paired_min_rounds(0.95), 6);
    ck_assert_uint_eq(mf_paired_min_rounds(0.99), 8);
    ck_assert_uint_eq(mf_paired_min_rounds(0.999), 11);
}

/* If both series are equally fast and share their drift, the interval excludes zero about as often as its
 * confidence permits. */
MF_TEST(false_positive_rate)
{
    enum { TRIALS = 4000, N = 24 };
    unsigned seed = (unsigned)time(NULL);
    int missed = 0;

    printf("seed %u\n", seed);
    for (int trial = 0; trial < TRIALS; trial++) {
        double old_us[N], new_us[N], scratch[N], drift = 1;
        struct mf_interval change;
        for (int i = 0; i < N; i++) {
            drift *= 1 + 0.2 * ((double)rand_r(&seed) / RAND_MAX - 0.5);
            old_us[i] = drift * (1 + 0.1 * (double)rand_r(&seed) / RAND_MAX);
            new_us[i] = drift * (1 + 0.1 * (double)rand_r(&seed) / RAND_MAX);
        }
        ck_assert_int_eq(mf_paired_interval(old_us, new_us, N, 0.95, scratch, &change), 0);
        missed += change.low > 0 || change.high < 0;
    }
    /* With 24 rounds the interval reaches from rank 7 to rank 18 and misses zero with probability 2.3%, in 91
     * of 4000 trials. The bounds add 5 standard deviations, so that one run in a million fails by chance. */
    ck_assert_int_le(missed, 91 + 48);
    ck_assert_int_ge(missed, 91 - 48);
}

int main(void)
{
    return mf_check_main(NULL);
}
