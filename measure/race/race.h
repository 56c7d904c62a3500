/* Race: times finalists in interleaved rounds on one device.
 *
 * Racers that are slower than the leader by a paired Wilcoxon signed-rank test with Holm's correction are
 * dropped; far slower ones already after the first two rounds. The winner and its nearest ties are rerun.
 * Samples come from a callback: this module knows no kernels.
 *
 * Racers may belong to several groups, for example weight layouts. All groups run in the same rounds, so that
 * their times are paired, but a racer competes within its group only, and each group has a winner. The caller
 * chooses among the groups.
 *
 * A racer's score is the clipped mean (common/base/stats.h) over the rounds of its time divided by the
 * round's median time. Drift between rounds affects all racers alike, and a disturbed call has limited
 * weight. Racers whose paired interval to the leader reaches zero are its ties. */
#pragma once

#include "measure/session/unit.h"

struct mf_race_stage {
    int rounds; /* rounds that all remaining racers run */
    int keep;   /* maximum number of racers per group that remain */
};

struct mf_race_plan {
    struct mf_race_stage stages[8];
    int n_stages;
    int fresh;    /* rerun samples per racer */
    double alpha; /* family-wise error rate of dropping */
    bool all;     /* drop no racer by time: every racer runs all rounds unless it fails */
};
int mf_race_plan_parse(const cJSON *json, struct mf_race_plan *ret, const char **ret_field);

struct mf_racer {
    int64_t id;
    int group;       /* 0 to MF_RACE_GROUPS_MAX - 1 */
    double *samples; /* by round; capacity: all rounds of the plan plus fresh */
    size_t n_samples;
    size_t n_rounds;       /* samples from rounds; the others are rerun samples */
    int dropped_at;        /* rounds run when dropped; round of the failure; 0: never dropped */
    enum mf_status status; /* a failed racer is out; reason has the cause */
    char reason[MF_REASON_MAX];
};

/* Takes one sample of a racer in microseconds. round: from 0, MF_RACE_FRESH in a rerun. A negative errno
 * (status unsupported) or a status > 0 ends the racer; a reason is made if the callback sets none. */
#define MF_RACE_FRESH (-1)
typedef int (*mf_race_sample_fn)(void *context, size_t racer, int round, double *ret_us,
                                 char reason[MF_REASON_MAX]);

/* Runs the plan over the racers with status ok. The seed shuffles the order within each round; the outcome
 * depends on samples and seed only.
 *
 * The winner is picked among the ties within 0.05% of the leader: first racers whose spread is at most twice
 * the smallest, then the fewest steps (weight[i]; weight may be NULL), then the smallest id. The winner and
 * its nearest ties are rerun, interleaved: MF_RACE_RERUN_MAX racers, shared equally by the groups.
 *
 * -ENOENT: no racer is left, and ret is unchanged. -ENOMEM. */
int mf_race_run(const struct mf_race_plan *plan, uint64_t seed, struct mf_racer *racers, const int *weight,
                size_t n, mf_race_sample_fn sample, void *context, struct mf_race_outcome *ret);
