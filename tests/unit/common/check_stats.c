#include "common/base/stats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#define N_MAX 64

/* clang-format off */
static const struct {
    size_t n;
    double values[8];
    double median, mad;
} medians[] = {
    {1, {3},                       3,   0},
    {2, {4, 1},                    2.5, 1.5},
    {3, {9, 1, 2},                 2,   1},
    {4, {1, 100, 2, 3},            2.5, 1},     /* |x - 2.5| = .5 .5 1.5 97.5 */
    {5, {5, 5, 5, 5, 5},           5,   0},
    {7, {1, 1, 2, 2, 4, 6, 9},     2,   1},
    {8, {-8, -7, -6, -5, 5, 6, 7, 8}, 0, 6.5},
};

/* p is computed by hand: 2 / 2^n times the number of sign patterns whose rank sum is at most the smaller
 * observed rank sum. A pattern is written as the set of its negative ranks.
 *
 *   n = 5, equal signs: only {}, so 2 * 1/32. n = 6: 2 * 1/64.
 *   1 -2 3 4 5: W- = 2; {} {1} {2}: 2 * 3/32. 1 2 -3 4 5: W- = 3; {} {1} {2} {3} {1,2}: 2 * 5/32.
 *   Ties: |d| = 1 1 2 2 3 has the ranks 1.5 1.5 3.5 3.5 5. With one negative 1: {} and {1.5} twice,
 *   so 2 * 3/32.
 *   Five equal values: each has rank 3. With two negative values W- = 6, and the patterns of at most two
 *   values are 1 + 5 + 10 = 16, so 2 * 16/32 = 1. */
static const struct {
    size_t n;
    double difference[12];
    double p;
} exact[] = {
    {0,  {0},                                   1.0},
    {4,  {1, 2, 3, 4},                          1.0},           /* fewer than five pairs */
    {6,  {0, 1, 2, 3, 4, 0},                    1.0},           /* zeros are dropped */
    {5,  {1, 2, 3, 4, 5},                       2.0 / 32},
    {5,  {-1, -2, -3, -4, -5},                  2.0 / 32},
    {7,  {0, 1, 2, -0.0, 3, 4, 5},              2.0 / 32},
    {6,  {6, 5, 4, 3, 2, 1},                    2.0 / 64},
    {5,  {1, -2, 3, 4, 5},                      6.0 / 32},
    {5,  {1, 2, -3, 4, 5},                      10.0 / 32},
    {5,  {-1, 1, 2, 2, 3},                      6.0 / 32},
    {5,  {1, 1, 1, -1, -1},                     1.0},
    {5,  {1, 1, 1, 1, -1},                      12.0 / 32},
    /* W = 16; 108 of 256 patterns have a sum of at most 16 */
    {8,  {1, -2, 3, -4, 5, -6, 7, -8},          0.84375},
    {10, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10},       2.0 / 1024},
    {10, {-1, -2, -3, 4, 5, 6, 7, 8, 9, 10},    28.0 / 1024},   /* 14 patterns have a sum of at most 6 */
};

/* Order statistics of the values 1 … n, from published tables of the sign test's confidence interval for the
 * median. */
static const struct {
    size_t n;
    double confidence, low, mid, high;
} intervals[] = {
    {1,   0.95, 1,  1,    1},
    {5,   0.95, 1,  3,    5},       /* even the whole range covers only 93.75% */
    {6,   0.95, 1,  3.5,  6},
    {8,   0.95, 1,  4.5,  8},
    {9,   0.95, 2,  5,    8},
    {10,  0.95, 2,  5.5,  9},
    {15,  0.95, 4,  8,    12},
    {20,  0.95, 6,  10.5, 15},
    {25,  0.95, 8,  13,   18},
    {30,  0.95, 10, 15.5, 21},
    {50,  0.95, 18, 25.5, 33},
    {20,  0.99, 4,  10.5, 17},
    {50,  0.99, 16, 25.5, 35},
};
/* clang-format on */

MF_TEST(median_and_mad, .rows = MF_ARRAY_LEN(medians))
{
    double values[8];
    memcpy(values, medians[_i].values, sizeof(values));
    ck_assert_double_eq(mf_median(values, medians[_i].n), medians[_i].median);
    memcpy(values, medians[_i].values, sizeof(values));
    ck_assert_double_eq(mf_mad(values, medians[_i].n), medians[_i].mad);
}

/* Values that differ from the median by more than 1.5 scales are clipped to that distance. For two values,
 * the lower value takes the place of the median, so the result for two distant values is near the lower one.
 */
MF_TEST(clipped_mean)
{
    double alone[] = {9}, apart[] = {50, 10}, near[] = {10.5, 10}, five[] = {1e9, 11, 10, 9, -1e9};
    double zero_scale[] = {7, 5, 6};
    ck_assert_double_eq_tol(mf_clipped_mean(alone, 1, 1), 9, 1e-12);
    ck_assert_double_eq_tol(mf_clipped_mean(apart, 2, 1), 10.75, 1e-12);
    ck_assert_double_eq_tol(mf_clipped_mean(near, 2, 1), 10.25, 1e-12);
    ck_assert_double_eq_tol(mf_clipped_mean(five, 5, 2), 10, 1e-12);
    ck_assert_double_eq_tol(mf_clipped_mean(zero_scale, 3, 0), 6, 1e-12);
}

/* Slow drift of twenty values, or one spike among them, has little effect on the estimate. */
MF_TEST(noise_scale)
{
    double alone[] = {3}, drift[20], spike[20];
    for (int i = 0; i < 20; i++) {
        drift[i] = i + (i % 2 ? 10 : 0);
        spike[i] = i == 7 ? 1e9 : i % 2;
    }
    ck_assert_double_eq(mf_noise_scale(alone, 1), 0);
    /* steps of 11 up and 9 down alternate */
    ck_assert_double_eq_tol(mf_noise_scale(drift, 20), 11 / 0.9539, 1e-9);
    ck_assert_double_eq_tol(mf_noise_scale(spike, 20), 1 / 0.9539, 1e-9);
}

MF_TEST(median_of_extremes_does_not_overflow)
{
    double values[] = {1.7e308, 1.6e308};
    ck_assert_double_eq_tol(mf_median(values, 2), 1.65e308, 1e295);
}

MF_TEST(wilcoxon_matches_hand_computation, .rows = MF_ARRAY_LEN(exact))
{
    double scratch[12];
    double p = mf_wilcoxon_p(exact[_i].difference, exact[_i].n, scratch);
    ck_assert_double_eq_tol(p, exact[_i].p, 1e-12);
}

/* Returns twice the average rank of |d[i]| among all |d[j]|. */
static int doubled_rank(const double *d, size_t n, size_t i)
{
    int below = 0, same = 0;
    for (size_t j = 0; j < n; j++) {
        below += fabs(d[j]) < fabs(d[i]);
        same += !(fabs(d[j]) < fabs(d[i])) && !(fabs(d[j]) > fabs(d[i]));
    }
    return 2 * below + same + 1;
}

/* Returns p by enumerating all 2^n sign patterns. */
static double enumerated_p(const double *d, size_t n)
{
    int ranks[16], total = 0, positive = 0;
    for (size_t i = 0; i < n; i++) {
        ranks[i] = doubled_rank(d, n, i);
        total += ranks[i];
        positive += d[i] > 0 ? ranks[i] : 0;
    }
    int smaller = MF_MIN(positive, total - positive), hits = 0;
    for (unsigned signs = 0; signs < 1u << n; signs++) {
        int sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += signs >> i & 1 ? ranks[i] : 0;
        hits += sum <= smaller;
    }
    return fmin(1.0, 2.0 * hits / (double)(1u << n));
}

/* The differences are small integers, so that ties are frequent. */
MF_TEST(wilcoxon_matches_enumeration)
{
    unsigned seed = (unsigned)time(NULL);
    printf("seed %u\n", seed);
    for (int round = 0; round < 200; round++) {
        double d[12], scratch[12];
        size_t n = 5 + (size_t)(rand_r(&seed) % 8);
        for (size_t i = 0; i < n; i++) {
            int magnitude = 1 + rand_r(&seed) % 9;
            d[i] = rand_r(&seed) % 3 ? magnitude : -magnitude;
        }
        ck_assert_double_eq_tol(mf_wilcoxon_p(d, n, scratch), enumerated_p(d, n), 1e-12);
    }
}

/* For up to twenty pairs the distribution is exact. For twenty pairs, W = 52 is the largest value with p <=
 * 0.05 (tables of the signed-rank test). For twenty-one or more pairs, the normal approximation returns a
 * consistent value. */
MF_TEST(wilcoxon_exact_and_approximate)
{
    double d[21], scratch[21];
    for (int i = 0; i < 21; i++)
        d[i] = i + 1;
    d[19] = -20, d[18] = -19, d[12] = -13; /* 20 + 19 + 13 = 52 */
    ck_assert_double_eq_tol(mf_wilcoxon_p(d, 20, scratch), 0.048441, 5e-7);
    d[0] = -1; /* W = 53 */
    double above = mf_wilcoxon_p(d, 20, scratch);
    ck_assert_double_gt(above, 0.05);

    d[0] = 1, d[12] = 13, d[18] = -19, d[19] = -20, d[20] = -21;
    /* W- = 60 of 231: z = (55.5 - 0.5) / sqrt(827.75), erfc(z / sqrt 2) */
    ck_assert_double_eq_tol(mf_wilcoxon_p(d, 21, scratch), 0.0559184, 5e-7);
}

MF_TEST(wilcoxon_of_many_ties_is_a_probability)
{
    double d[N_MAX], scratch[N_MAX];
    for (int i = 0; i < N_MAX; i++)
        d[i] = 1;
    /* one tie of 64 values: W = 2080, variance 64 * 65 * 129 / 24 - (64^3 - 64) / 48 = 16900 */
    ck_assert_double_eq_tol(mf_wilcoxon_p(d, N_MAX, scratch), erfc(1039.5 / 130 / sqrt(2)), 1e-18);
    for (int i = 0; i < N_MAX; i++)
        d[i] = i % 2 ? 1 : -1;
    ck_assert_double_eq(mf_wilcoxon_p(d, N_MAX, scratch), 1.0);
}

MF_TEST(wilcoxon_keeps_its_input)
{
    const double d[] = {5, -4, 3, -2, 1, 0};
    double copy[6], scratch[6];
    memcpy(copy, d, sizeof(d));
    (void)mf_wilcoxon_p(copy, 6, scratch);
    ck_assert_mem_eq(copy, d, sizeof(d));
}

MF_TEST(interval_matches_published_tables, .rows = MF_ARRAY_LEN(intervals))
{
    double d[N_MAX];
    size_t n = intervals[_i].n;
    for (size_t i = 0; i < n; i++)
        d[i] = (double)((i * 7) % n + 1); /* a permutation, because n is not a multiple of 7 */
    struct mf_interval interval = mf_median_interval(d, n, intervals[_i].confidence);
    ck_assert_double_eq(interval.low, intervals[_i].low);
    ck_assert_double_eq(interval.mid, intervals[_i].mid);
    ck_assert_double_eq(interval.high, intervals[_i].high);
}

/* With 10001 values, 2^-n underflows a double. */
MF_TEST(interval_of_10001_values)
{
    enum { N = 10001 };
    static double d[N];
    for (int i = 0; i < N; i++)
        d[i] = (double)((i * 7LL) % N + 1);
    struct mf_interval interval = mf_median_interval(d, N, 0.95);
    /* expected value: (n - 1.96 sqrt n) / 2 */
    ck_assert_double_eq_tol(interval.low, 4902.5, 1.5);
    ck_assert_double_eq(interval.mid, 5001);
    ck_assert_double_eq(interval.low + interval.high, N + 1);
}

int main(void)
{
    return mf_check_main(NULL);
}
