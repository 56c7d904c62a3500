/* Paired comparison: is the new time lower than the old one? The two series are measured in the same rounds.
 * Drift between rounds affects both, so the test uses the ratio of each round.
 *
 *   change     median of new / old - 1 with its confidence interval (base/stats.h). -0.1 means 10% less
 *   FASTER     the interval lies below zero, and the median is at or below -least_effect
 *   SLOWER     the interval lies above zero, and the median is at or above least_effect
 *   SAME       the interval lies between -least_effect and least_effect; it may contain zero
 *   AMBIGUOUS  otherwise, or if there are too few rounds for the confidence; more rounds may decide */
#pragma once

#include "common/base/names.h"
#include "common/base/stats.h"

/* clang-format off */
#define MF_PAIRED_MAP(X, P) \
    X(P, SAME, "SAME")      \
    X(P, FASTER, "FASTER")  \
    X(P, SLOWER, "SLOWER")  \
    X(P, AMBIGUOUS, "AMBIGUOUS")
/* clang-format on */
MF_NAMES_DECLARE(mf_paired_verdict, MF_PAIRED_, MF_PAIRED_MAP);

/* Maximum number of racers that a race reruns, divided equally among the race's groups; each group's winner
 * is always rerun. Used by the coordinator, which budgets the race, and by the worker, which runs the race.
 */
#define MF_RACE_RERUN_MAX 4
/* Maximum number of measurements of a race's winner. A measurement that is not accepted is repeated after the
 * device is calm again; after the last one, the row is stored as unstable. Limits the reruns of one race (the
 * worker judges measure/race/rerun_judge.h) and of one task (the coordinator judges
 * common/moe/token_order.h). */
#define MF_RERUN_TRIES_MAX 3
/* Maximum median absolute deviation of an accepted measurement, as a fraction of its median. */
#define MF_SCATTER_MAX 0.10

struct mf_paired_rule {
    double least_effect; /* fraction in [0, 1); 0.03 means 3% */
    double confidence;   /* in (0, 1) */
};
#define MF_PAIRED_CONFIDENCE 0.99

struct mf_paired {
    enum mf_paired_verdict verdict;
    struct mf_interval change;
};

/* Returns the minimum number of rounds for an interval of this confidence: 6 at 0.95, 8 at 0.99. */
size_t mf_paired_min_rounds(double confidence);
/* Computes the confidence interval of the change. scratch: space for n values. -EINVAL: n is 0, or a time is
 * not finite and positive. */
int mf_paired_interval(const double *old_us, const double *new_us, size_t n, double confidence,
                       double *scratch, struct mf_interval *ret);
/* Like mf_paired_interval, and also decides the verdict. A caller that judges a growing series repeatedly and
 * stops at the first verdict must divide 1 - confidence among the judgements. */
int mf_paired_judge(const double *old_us, const double *new_us, size_t n, const struct mf_paired_rule *rule,
                    double *scratch, struct mf_paired *ret);
