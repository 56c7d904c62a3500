#include "measure/race/rerun_judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/paired.h"
#include "common/base/stats.h"
#include "common/base/text.h"

/* 95 % interval of a median: 1.96 standard errors; 1.2533 and 1.4826 convert from mean and standard
 * deviation */
#define MADS_OF_INTERVAL (1.96 * 1.2533 * 1.4826)
#define SAME_LEVEL       0.05 /* fraction by which race and rerun may differ besides their noise */
#define JUDGED_MIN       3    /* fewer samples have no meaningful spread */
#define MODE_SHARE       0.2  /* minimum fraction of the samples in the smaller mode */
#define MODE_MIN         2    /* minimum number of samples in the smaller mode */
#define MODE_GAP         0.10 /* minimum gap between two modes, as a fraction of the lower one */
#define MODE_SPREADS     3.0  /* minimum gap between two modes, as a multiple of the spread within each */

static bool is_scattered(const struct mf_rerun *r, double *scratch, char why[MF_REASON_MAX])
{
    memcpy(scratch, r->fresh, r->n_fresh * sizeof(*scratch));
    double median = mf_median(scratch, r->n_fresh), mad = mf_mad(scratch, r->n_fresh);
    if (mad <= MF_SCATTER_MAX * median)
        return false;
    mf_format(why, MF_REASON_MAX,
              "the %zu samples of the rerun scatter: their median absolute deviation is %.0f%% of the median "
              "(limit %.0f%%)",
              r->n_fresh, 100 * mad / median, 100 * MF_SCATTER_MAX);
    return true;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of sorted values. */
static double middle(const double *sorted, size_t n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Half the interquartile range of sorted values, which estimates their median absolute deviation. */
static double half_width(const double *sorted, size_t n)
{
    return (sorted[n - 1 - n / 4] - sorted[n / 4]) / 2;
}

static bool are_modes(const double *low, size_t n_low, const double *high, size_t n_high)
{
    double gap = high[0] - low[n_low - 1];
    return gap > MODE_GAP * low[n_low - 1] &&
           gap >= MODE_SPREADS * fmax(half_width(low, n_low), half_width(high, n_high));
}

static bool has_two_modes(const struct mf_rerun *r, double *scratch, char why[MF_REASON_MAX])
{
    size_t n = r->n_fresh;
    size_t least = (size_t)fmax(MODE_MIN, ceil(MODE_SHARE * (double)n));
    memcpy(scratch, r->fresh, n * sizeof(*scratch));
    qsort(scratch, n, sizeof(*scratch), by_value);
    for (size_t k = least; k + least <= n; k++) {
        if (!are_modes(scratch, k, scratch + k, n - k))
            continue;
        mf_format(why, MF_REASON_MAX,
                  "the samples of the rerun have two modes: %zu near %.4g us and %zu near %.4g us", k,
                  middle(scratch, k), n - k, middle(scratch + k, n - k));
        return true;
    }
    return false;
}

/* Confidence interval of the median, from the median absolute deviation. A few outliers do not widen it,
 * while the order statistics of fewer than ten samples are the outliers. */
static struct mf_interval robust_interval(const double *samples, size_t n, double *scratch)
{
    memcpy(scratch, samples, n * sizeof(*scratch));
    double median = mf_median(scratch, n);
    double half = MADS_OF_INTERVAL * mf_mad(scratch, n) / sqrt((double)n);
    return (struct mf_interval){median - half, median, median + half};
}

/* A race whose samples scatter was disturbed, too, so its median proves nothing. A disturbance only makes a
 * call longer, so the fastest quarter of its samples bounds the undisturbed time. */
static bool is_above_fastest(const struct mf_rerun *r, const struct mf_interval *rerun, double *scratch,
                             char why[MF_REASON_MAX])
{
    memcpy(scratch, r->rounds, r->n_rounds * sizeof(*scratch));
    qsort(scratch, r->n_rounds, sizeof(*scratch), by_value);
    double fastest = scratch[r->n_rounds / 4];
    if (rerun->low <= fastest * (1 + SAME_LEVEL))
        return false;
    mf_format(
        why, MF_REASON_MAX,
        "the median of the rerun (%.4g us) lies above the fastest quarter of the race's samples (%.4g us) "
        "and the race scatters",
        rerun->mid, fastest);
    return true;
}

static bool is_outside_race(const struct mf_rerun *r, double *scratch, char why[MF_REASON_MAX])
{
    struct mf_interval rerun = robust_interval(r->fresh, r->n_fresh, scratch);
    struct mf_interval race = robust_interval(r->rounds, r->n_rounds, scratch);
    double slack = SAME_LEVEL * race.mid;
    memcpy(scratch, r->rounds, r->n_rounds * sizeof(*scratch));
    if (r->n_rounds >= JUDGED_MIN && mf_mad(scratch, r->n_rounds) > MF_SCATTER_MAX * race.mid)
        return is_above_fastest(r, &rerun, scratch, why);
    if (rerun.low <= race.high + slack && rerun.high >= race.low - slack)
        return false;
    mf_format(
        why, MF_REASON_MAX,
        "the median of the rerun (%.4g us) lies outside the race's confidence interval (%.4g to %.4g us)",
        rerun.mid, race.low, race.high);
    return true;
}

bool mf_rerun_accepts(const struct mf_rerun *r, double *scratch, char why[MF_REASON_MAX])
{
    if (r->n_fresh == 0)
        return true;
    if (r->n_fresh >= JUDGED_MIN && (is_scattered(r, scratch, why) || has_two_modes(r, scratch, why)))
        return false;
    return !is_outside_race(r, scratch, why);
}
