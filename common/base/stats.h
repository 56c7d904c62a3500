/* Statistics of measured times. The functions allocate no memory. Functions with a non-const array parameter
 * reorder or overwrite that array. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the median of n >= 1 values; reorders the values. */
double mf_median(double *values, size_t n);
/* Returns a robust mean of values with a heavy upper tail, such as times: the lower median plus the mean
 * deviation from the lower median, where each deviation is clipped to 1.5 * scale. scale is the standard
 * deviation. (One step of Huber's estimator; without outliers its standard error is within 10% of the
 * mean's.) With scale 0 the result is the lower median. n >= 1; reorders the values. */
double mf_clipped_mean(double *values, size_t n, double scale);
/* Standard deviation of the noise of a series, estimated from differences of neighbours, so slow drift does
 * not count as noise. 0 for a single value. n >= 1; overwrites the values with these differences. */
double mf_noise_scale(double *series, size_t n);
/* Median absolute deviation from the median. n >= 1; overwrites the values. */
double mf_mad(double *values, size_t n);

/* Returns the p value of the two-sided Wilcoxon signed-rank test of paired differences. Zero differences are
 * dropped, ties get average ranks. The distribution is exact up to 20 pairs; for more pairs it is the normal
 * approximation with continuity correction. Returns 1.0 for fewer than 5 non-zero pairs. scratch: space for n
 * values. */
double mf_wilcoxon_p(const double *difference, size_t n, double *scratch);

struct mf_interval {
    double low, mid, high;
};
/* Returns the confidence interval of the median (typical confidence: 0.95). Its ends are two of the values,
 * at ranks that the binomial distribution gives. If n is too small for the confidence (n < 6 at 0.95), the
 * interval is the whole range. n >= 1; reorders the values. */
struct mf_interval mf_median_interval(double *difference, size_t n, double confidence);
