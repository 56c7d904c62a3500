/* Is the new one faster than the old one? The verdict of two series of times that were taken in the same rounds: what drifts
 * from round to round drifts for both, so each round gives one ratio, and the ratios are judged.
 *
 *   change     new / old - 1: its median, and the interval that holds it with the confidence (common/base/stats.h). -0.1: the new
 *              one takes a tenth less.
 *   FASTER     the interval lies below zero, and the median is at or below -least_effect
 *   SLOWER     the interval lies above zero, and the median is at or above least_effect
 *   SAME       the interval lies wholly between -least_effect and least_effect, whether it holds zero or not
 *   AMBIGUOUS  anything else: more rounds may tell. Also where there are too few rounds for the confidence at all. */
#pragma once

#include "common/base/names.h"
#include "common/base/stats.h"

/* clang-format off */
#define MF_PAIRED_MAP(X, P)      \
    X(P, SAME, "SAME")           \
    X(P, FASTER, "FASTER")       \
    X(P, SLOWER, "SLOWER")       \
    X(P, AMBIGUOUS, "AMBIGUOUS")
/* clang-format on */
MF_NAMES_DECLARE(mf_paired_verdict, MF_PAIRED_, MF_PAIRED_MAP);

/* Racers at most that a race measures afresh when it is decided, of all its groups, each of which has the same share; though the winner
 * of each is. A race is planned by who sums up its calls, and run by another. */
#define MF_RACE_REMEASURED 4

struct mf_paired_rule {
    double least_effect; /* in [0, 1): 0.03 is three percent */
    double confidence;   /* in (0, 1) */
};
#define MF_PAIRED_LEAST_EFFECT 0.03
#define MF_PAIRED_CONFIDENCE   0.99

struct mf_paired {
    enum mf_paired_verdict verdict;
    struct mf_interval change;
};

/* Rounds below which no interval has that confidence: 6 at 0.95, 8 at 0.99. */
size_t mf_paired_least_rounds(double confidence);
/* The interval of the change. scratch holds n values. -EINVAL, for n = 0 or a time that is not finite and above zero. */
int mf_paired_interval(const double *old_us, const double *new_us, size_t n, double confidence,
                       double *scratch, struct mf_interval *ret);
/* The same with the verdict. Who looks at the samples more than once while they come in and stops at a verdict has to share
 * 1 - confidence among the looks. */
int mf_paired_judge(const double *old_us, const double *new_us, size_t n, const struct mf_paired_rule *rule,
                    double *scratch, struct mf_paired *ret);
