/* The race: finalists timed in interleaved rounds on one device, dropped by paired differences to the leader
 * (Wilcoxon signed-rank with Holm's family-wise bound; before there are rounds enough for that, those that the first two
 * show to be far behind), the winner and its nearest ties re-measured afresh. Knows no
 * kernel: a sample comes from a callback.
 *
 * Racers may be of several groups. All of them run in the same rounds, so that times of one group are paired with those of another,
 * but each is held against the leader of its own group alone, and each group has a winner: groups are what somebody else
 * chooses among, such as layouts of a layer model's weights.
 *
 * A racer's score is the clipped mean (common/base/stats.h), over the rounds, of its time by the median time of its round: what drifts
 * from round to round drifts for all, and a call that somebody disturbed counts for no more than a slow one. Racers whose
 * paired interval to the leader reaches zero are its ties. */
#pragma once

#include "measure/session/unit.h"

struct mf_race_stage {
    int rounds; /* rounds of everything still in */
    int keep;   /* at most so many go on */
};

struct mf_race_plan {
    struct mf_race_stage stages[8];
    int n_stages;
    int fresh;    /* samples of the winner's re-measurement */
    double alpha; /* family-wise error of dropping */
    bool all;     /* nobody is dropped: every racer that does not fail runs every round */
};
int mf_race_plan_parse(const cJSON *json, struct mf_race_plan *ret, const char **ret_field);

struct mf_racer {
    int64_t id;
    int group;       /* 0 … MF_RACE_GROUPS_MAX - 1 */
    double *samples; /* by round, room for the plan's rounds plus fresh */
    size_t n_samples;
    size_t n_rounds;       /* samples of rounds; those behind them are its fresh re-measurement */
    int dropped_at;        /* rounds it had run when it was dropped; 0 for those in the race to its end */
    enum mf_status status; /* a racer that fails is out with its status and reason */
    char reason[MF_REASON_MAX];
};

/* One sample of racer i in that round (from 0; MF_RACE_FRESH in its re-measurement), in microseconds. A negative errno
 * (status unsupported) or a status > 0 ends the racer; the reason may be set, otherwise one is made. */
#define MF_RACE_FRESH (-1)
typedef int (*mf_race_sample_fn)(void *context, size_t racer, int round, double *ret_us,
                                 char reason[MF_REASON_MAX]);

/* Runs the plan over those of n racers whose status is ok. The order within a round is shuffled by the seed, and the
 * outcome is a function of the samples and the seed. The winner is picked among the ties within 0.05% of the leader by
 * a stable rule: not twice the least spread, then fewer steps (given by weight[i], may be NULL), then the smaller id.
 *
 * The winner and its nearest ties, MF_RACE_REMEASURED of them (common/base/paired.h), or of several groups each's share, have a fresh
 * re-measurement, in turns. -ENOENT: no racer is left; ret is then untouched. -ENOMEM. */
int mf_race_run(const struct mf_race_plan *plan, uint64_t seed, struct mf_racer *racers, const int *weight,
                size_t n, mf_race_sample_fn sample, void *context, struct mf_race_outcome *ret);
