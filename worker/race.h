/* The race: finalists timed in interleaved rounds on one device, dropped by paired differences to the leader,
 * the winner and its ties re-measured afresh (design section 7):
 * Wilcoxon signed-rank with a
 * family-wise (Holm) bound. Knows no kernel: a sample comes from a callback. */
#pragma once

#include "worker/unit.h"

struct mf_race_stage {
    int rounds;                 /* rounds of everything still in */
    int keep;                   /* at most so many go on */
};

struct mf_race_plan {
    struct mf_race_stage stages[8];
    int n_stages;
    int fresh;                  /* samples of the winner's re-measurement */
    double alpha;               /* family-wise error of dropping */
};
int mf_race_plan_parse(const cJSON *json, struct mf_race_plan *ret, const char **ret_field);

struct mf_racer {
    int64_t id;
    double *samples;            /* by round, room for the plan's rounds plus fresh */
    size_t n_samples;
    int dropped_at;
    enum mf_status status;      /* a racer that fails is out with its status and reason */
    char reason[MF_REASON_MAX];
};

/* One sample of racer i in that round, in microseconds; negative errno or a status > 0 ends the racer, reason set. */
typedef int (*mf_race_sample_fn)(void *context, size_t racer, int round, double *ret_us, char reason[MF_REASON_MAX]);

/* Runs the plan over n racers. The order within a round is shuffled by the seed. The winner is picked among the
 * ties by a stable rule: less spread, then fewer steps (given by weight[i]), then the smaller id. */
int mf_race_run(const struct mf_race_plan *plan, uint64_t seed, struct mf_racer *racers, const int *weight, size_t n,
                mf_race_sample_fn sample, void *context, struct mf_race_outcome *ret);
