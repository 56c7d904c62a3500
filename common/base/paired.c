#include "common/base/paired.h"

#include <math.h>

MF_NAMES_DEFINE(mf_paired_verdict, MF_PAIRED_, MF_PAIRED_MAP)

/* The interval from the smallest to the largest of n values misses the median only if all values lie on the
 * same side of the median. The probability of this is 2^(1-n). */
size_t mf_paired_min_rounds(double confidence)
{
    size_t n = 1;
    while (ldexp(1, 1 - (int)n) > 1 - confidence)
        n++;
    return n;
}

static bool is_time(double us)
{
    return isfinite(us) && us > 0;
}

int mf_paired_interval(const double *old_us, const double *new_us, size_t n, double confidence,
                       double *scratch, struct mf_interval *ret)
{
    if (n == 0)
        return -EINVAL;
    /* Logarithms make the ratios r and 1/r symmetric around zero. */
    for (size_t i = 0; i < n; i++) {
        if (!is_time(old_us[i]) || !is_time(new_us[i]))
            return -EINVAL;
        scratch[i] = log(new_us[i] / old_us[i]);
    }
    struct mf_interval ratio = mf_median_interval(scratch, n, confidence);
    *ret = (struct mf_interval){.low = expm1(ratio.low), .mid = expm1(ratio.mid), .high = expm1(ratio.high)};
    return 0;
}

static enum mf_paired_verdict verdict_of(const struct mf_interval *change, double least)
{
    if (change->high < 0 && change->mid <= -least)
        return MF_PAIRED_FASTER;
    if (change->low > 0 && change->mid >= least)
        return MF_PAIRED_SLOWER;
    if (change->low > -least && change->high < least)
        return MF_PAIRED_SAME;
    return MF_PAIRED_AMBIGUOUS;
}

int mf_paired_judge(const double *old_us, const double *new_us, size_t n, const struct mf_paired_rule *rule,
                    double *scratch, struct mf_paired *ret)
{
    struct mf_paired p = {.verdict = MF_PAIRED_AMBIGUOUS};
    int r = mf_paired_interval(old_us, new_us, n, rule->confidence, scratch, &p.change);
    if (r < 0)
        return r;
    if (n >= mf_paired_min_rounds(rule->confidence))
        p.verdict = verdict_of(&p.change, rule->least_effect);
    *ret = p;
    return 0;
}
