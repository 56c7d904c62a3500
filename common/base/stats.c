#include "common/base/stats.h"

#include <math.h>

#include "common/base/cleanup.h"

typedef bool (*less_fn)(double a, double b);

static bool less_value(double a, double b)
{
    return a < b;
}

static bool less_magnitude(double a, double b)
{
    return fabs(a) < fabs(b);
}

/* Heapsort, because qsort may allocate memory. */
static void sift_down(double *v, size_t root, size_t n, less_fn less)
{
    double value = v[root];
    for (size_t child = 2 * root + 1; child < n; child = 2 * root + 1) {
        if (child + 1 < n && less(v[child], v[child + 1]))
            child++;
        if (!less(value, v[child]))
            break;
        v[root] = v[child];
        root = child;
    }
    v[root] = value;
}

static void sort(double *v, size_t n, less_fn less)
{
    for (size_t i = n / 2; i > 0; i--)
        sift_down(v, i - 1, n, less);
    for (size_t end = n; end > 1; end--) {
        double top = v[0];
        v[0] = v[end - 1];
        v[end - 1] = top;
        sift_down(v, 0, end - 1, less);
    }
}

static double sorted_median(const double *v, size_t n)
{
    return n % 2 ? v[n / 2] : v[n / 2 - 1] + (v[n / 2] - v[n / 2 - 1]) / 2;
}

double mf_median(double *values, size_t n)
{
    sort(values, n, less_value);
    return sorted_median(values, n);
}

#define CLIP 1.5 /* maximum deviation in units of the scale; larger deviations are clipped to it */

double mf_clipped_mean(double *values, size_t n, double scale)
{
    double sum = 0, limit = CLIP * scale;
    sort(values, n, less_value);
    double start = values[(n - 1) / 2];
    for (size_t i = 0; i < n; i++)
        sum += fmin(fmax(values[i] - start, -limit), limit);
    return start + sum / (double)n;
}

/* Median of |a - b| for two independent standard normal values a and b. */
#define MEDIAN_DIFFERENCE 0.9539

double mf_noise_scale(double *series, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++)
        series[i] = fabs(series[i + 1] - series[i]);
    return n > 1 ? mf_median(series, n - 1) / MEDIAN_DIFFERENCE : 0;
}

double mf_mad(double *values, size_t n)
{
    double median = mf_median(values, n);
    for (size_t i = 0; i < n; i++)
        values[i] = fabs(values[i] - median);
    return mf_median(values, n);
}

#define EXACT_PAIRS 20
#define EXACT_SUM   (EXACT_PAIRS * (EXACT_PAIRS + 1))

/* Doubled ranks, so that the average rank of a tie is an integer. */
struct ranks {
    size_t n;                      /* pairs with a difference */
    double positive;               /* doubled rank sum of the positive differences */
    double tie_term;               /* sum of t^3 - t over all groups of t tied values */
    unsigned doubled[EXACT_PAIRS]; /* doubled rank of each pair; set only if n is at most EXACT_PAIRS */
};

static struct ranks rank_differences(const double *difference, size_t n, double *scratch)
{
    struct ranks ranks = {0};
    for (size_t i = 0; i < n; i++) {
        if (fabs(difference[i]) > 0)
            scratch[ranks.n++] = difference[i];
    }
    sort(scratch, ranks.n, less_magnitude);

    for (size_t first = 0, end; first < ranks.n; first = end) {
        end = first + 1;
        while (end < ranks.n && !less_magnitude(scratch[first], scratch[end]))
            end++;
        double tied = (double)(end - first), doubled = (double)(first + 1 + end);
        ranks.tie_term += tied * tied * tied - tied;
        for (size_t i = first; i < end; i++) {
            if (scratch[i] > 0)
                ranks.positive += doubled;
            if (ranks.n <= EXACT_PAIRS)
                ranks.doubled[i] = (unsigned)doubled;
        }
    }
    return ranks;
}

/* Returns the exact p value. Counts how many of the sign patterns (at most 2^20) give each rank sum. */
static double exact_p(const struct ranks *ranks)
{
    uint32_t ways[EXACT_SUM + 1] = {1};
    unsigned reach = 0;
    for (size_t i = 0; i < ranks->n; i++) {
        unsigned rank = ranks->doubled[i];
        reach += rank;
        for (unsigned sum = reach; sum >= rank; sum--)
            ways[sum] += ways[sum - rank];
    }

    /* The distribution is symmetric, so the upper tail of the larger sum equals the lower tail of the smaller
     * sum. */
    unsigned positive = (unsigned)ranks->positive, smaller = MF_MIN(positive, reach - positive);
    double tail = 0;
    for (unsigned sum = 0; sum <= smaller; sum++)
        tail += ways[sum];
    return fmin(1.0, 2 * ldexp(tail, -(int)ranks->n));
}

static double normal_p(const struct ranks *ranks)
{
    double n = (double)ranks->n;
    double variance = n * (n + 1) * (2 * n + 1) / 24 - ranks->tie_term / 48;
    double distance = fabs(ranks->positive / 2 - n * (n + 1) / 4) - 0.5;
    return distance > 0 ? erfc(distance / sqrt(variance) / sqrt(2.0)) : 1.0;
}

double mf_wilcoxon_p(const double *difference, size_t n, double *scratch)
{
    struct ranks ranks = rank_differences(difference, n, scratch);
    if (ranks.n < 5)
        return 1.0;
    return ranks.n <= EXACT_PAIRS ? exact_p(&ranks) : normal_p(&ranks);
}

/* Returns the largest k for which the interval from the k-th smallest to the k-th largest value covers the
 * median with this confidence; 1 if no k does. The interval misses the median if fewer than k values lie on
 * one side of the median; the probability of this is 2 P(Binomial(n, 1/2) < k). Uses logarithms, because 2^-n
 * underflows for large n. */
static size_t interval_rank(size_t n, double confidence)
{
    double log_p = -(double)n * log(2.0), tail = 0, allowed = (1 - confidence) / 2;
    size_t k = 0;
    for (; k < n / 2; k++) {
        tail += exp(log_p);
        if (tail > allowed)
            break;
        log_p += log((double)(n - k)) - log((double)(k + 1));
    }
    return MF_MAX(k, (size_t)1);
}

struct mf_interval mf_median_interval(double *difference, size_t n, double confidence)
{
    size_t k = interval_rank(n, confidence);
    sort(difference, n, less_value);
    return (struct mf_interval){
        .low = difference[k - 1], .mid = sorted_median(difference, n), .high = difference[n - k]};
}
