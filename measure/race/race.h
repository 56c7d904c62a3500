/* Race: times finalists in interleaved rounds on one device.
 *
 * A racer is dropped if a paired Wilcoxon signed-rank test with Holm's correction finds it slower than the
 * leader. Far slower racers are dropped after their first or second round without a test. The winner and its
 * nearest ties are rerun. Samples come from a callback, so this module is independent of kernels.
 *
 * Racers may belong to several groups, for example weight layouts. All groups run in the same rounds, so that
 * their times are paired. A racer competes only within its group, and each group has a winner. The caller
 * chooses among the groups.
 *
 * In each round, a racer's time is divided by the median time of the round. The racer's score is the clipped
 * mean (common/base/stats.h) of these ratios. Drift between rounds therefore affects all racers alike, and a
 * disturbed call has limited weight. A racer is tied with the leader if the confidence interval of their
 * paired difference includes zero. */
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
    bool all;     /* true: drop no racer by its time, so that every racer runs all rounds unless it fails */
};
int mf_race_plan_parse(const cJSON *json, struct mf_race_plan *ret, const char **ret_field);

struct mf_racer {
    int64_t id;
    int group;       /* 0 to MF_RACE_GROUPS_MAX - 1 */
    double *samples; /* one sample per round; capacity: all rounds of the plan plus `fresh` */
    size_t n_samples;
    size_t n_rounds;       /* number of samples from rounds; the samples after these are from reruns */
    int dropped_at;        /* round after which the racer was dropped, or in which it failed; 0: neither */
    enum mf_status status; /* if not OK, the racer has failed and left the race; reason has the cause */
    char reason[MF_REASON_MAX];
};

/* Takes one sample of a racer, in microseconds. `round` counts from 0; in a rerun it is MF_RACE_FRESH. A
 * racer leaves the race if the callback returns a negative errno (status unsupported) or a status > 0. If the
 * callback then sets no reason, the race supplies one. */
#define MF_RACE_FRESH (-1)
typedef int (*mf_race_sample_fn)(void *context, size_t racer, int round, double *ret_us,
                                 char reason[MF_REASON_MAX]);

/* The device on which a race runs. */
struct mf_race_device {
    mf_race_sample_fn sample;
    /* Runs the canary. Returns false if the device is throttled or disturbed. NULL: it is always calm. */
    bool (*is_calm)(void *context);
    /* Waits for a limited time until the canary is calm. NULL: no wait. */
    void (*settle)(void *context);
    void *context;
};

/* Runs the plan over the racers with status ok. The seed shuffles the order within each round. The outcome
 * depends only on the samples and the seed.
 *
 * Each group's winner is picked among the ties within 0.05% of the leader. Racers whose spread is at most
 * twice the smallest spread come first. Among these, the racer with the fewest steps (weight[i]; weight may
 * be NULL) wins, then the racer with the smallest id. The winners and their nearest ties are rerun,
 * interleaved. At most MF_RACE_RERUN_MAX racers are rerun, shared equally by the groups.
 *
 * The canary runs after each round. If it is slow, the samples of the round are discarded and the round is
 * repeated, at most MF_RACE_REPEATS_MAX times per race. If the rerun of a winner is not accepted
 * (measure/race/rerun_judge.h), the rerun is repeated, at most MF_RERUN_TRIES_MAX times; then the outcome has
 * the reason in `unstable`.
 *
 * Returns -ENOENT if no racer is left (ret is then unchanged), or -ENOMEM. */
#define MF_RACE_REPEATS_MAX 10
int mf_race_run(const struct mf_race_plan *plan, uint64_t seed, struct mf_racer *racers, const int *weight,
                size_t n, const struct mf_race_device *device, struct mf_race_outcome *ret);
