/* The statistics that times are judged by. All work on copies or in place as said; none allocates. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Median of n >= 1 values; reorders them. */
double mf_median(double *values, size_t n);
/* Where values lie whose noise is heavy above, as times have it: the lower median, moved by the mean of what all differ
 * from it, each difference counted up to 1.5 times the scale (a standard deviation; Huber's estimate of location in one step, which is
 * within a tenth of the mean's certainty where no value is an outlier). Scale 0: the lower median. n >= 1; reorders the values. */
double mf_clipped_mean(double *values, size_t n, double scale);
/* Scale of the noise of a series, from what its neighbours differ, so that slow drift is no noise; 0 for a single value.
 * Replaces the values by those differences. n >= 1. */
double mf_noise_scale(double *series, size_t n);
/* Median absolute deviation from the median; reorders the values. n >= 1. */
double mf_mad(double *values, size_t n);

/* Two-sided Wilcoxon signed-rank test of paired differences, zeros dropped, average ranks for ties, normal
 * approximation with continuity correction above 20 pairs and the exact distribution up to 20.
 * Returns the p value, 1.0 when fewer than 5 non-zero pairs are left. scratch holds n values. */
double mf_wilcoxon_p(const double *difference, size_t n, double *scratch);

struct mf_interval {
    double low, mid, high;
};
/* Bootstrap-free interval of the median of paired differences: order statistics at the confidence given
 * (0.95), by the binomial distribution of their ranks. Where the whole range is short of the confidence
 * (n < 6 at 0.95) the interval is the whole range. n >= 1. Reorders the values. */
struct mf_interval mf_median_interval(double *difference, size_t n, double confidence);
