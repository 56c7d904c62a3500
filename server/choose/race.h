/* Selects the finalists of a race, schedules its rounds, and picks its winner. Pure functions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/moe/pipeline_search.h"
#include "common/moe/status.h"

#define MF_FINALISTS_MAX 32
#define MF_FINALISTS_MIN 8

/* A ranked pipeline. Its forecast is corrected by the times of its structure in earlier batches. */
struct mf_ranked {
    const struct mf_path *path;
    double forecast_us;
    double log_spread; /* spread of log(time / forecast) for its structure; 0 if unknown */
    bool required;     /* must be a finalist, whatever its forecast */
    bool finalist;
};
/* Sorts by forecast and marks the finalists, at most max_finalists (MF_FINALISTS_MAX, or a layout's share of
 * it). Equal forecasts keep the order of the paths, which is by names. Returns the number of finalists.
 *
 * Finalists are selected by these rules, in this order, until the limit is reached:
 *
 *   1. the cheapest pipeline of all
 *   2. required pipelines
 *   3. the cheapest pipeline with both GEMMs in one kernel (FLAT, one stage, one launch) or, if the first
 *      finalist is such a pipeline, the cheapest pipeline with two stages
 *   4. the cheapest pipeline of each structure with one kernel for both GEMMs
 *   5. the cheapest pipeline of each structure
 *   6. the cheapest pipeline of each block_m
 *   7. the topk cheapest pipelines
 *   8. pipelines whose forecast is within the spread of the best forecast
 *
 * Rules 3 and 4 exist because only a race, not a sum of step times, can decide between one kernel and two
 * stages. There is no rule for pairs of structure and block_m, because the pairs of a few structures would
 * fill the race. */
size_t mf_race_finalists(struct mf_ranked *ranked, size_t n, int topk, size_t max_finalists);
/* Returns the maximum number of finalists for a race of about budget_s, if the best forecast is best_us. Each
 * racer runs at least twice, and one of these runs is verified. If these minimum runs of all racers would
 * take more than three quarters of the budget, the number is below MF_FINALISTS_MAX, but at least
 * MF_FINALISTS_MIN and topk. */
size_t mf_race_finalist_limit(double best_us, double budget_s, int topk);

struct mf_race_rounds {
    int rounds, keep;
};
#define MF_RACE_STAGES_MAX 3
struct mf_race_schedule {
    struct mf_race_rounds stages[MF_RACE_STAGES_MAX];
    int n_stages;
    int fresh;
    double alpha;
};
/* Schedules rounds so that the race takes about its budget. The race has at least MF_RACE_ROUNDS_MIN rounds,
 * because a paired test needs that many. forecast_us holds the forecasts of group 0, then those of group 1
 * and so on; group k has n[k] forecasts, cheapest first. A stage keeps `keep` racers of each group. If there
 * are several groups, `keep` is lower, but at least two. */
#define MF_RACE_ROUNDS_MIN 6
struct mf_race_budget {
    double s;
    /* maximum rerun samples per racer; 0: no rerun, and all racers are verified before they race */
    int fresh;
};
#define MF_RACE_FRESH_MAX 20
void mf_race_schedule(const double *forecast_us, const size_t *n, size_t n_groups,
                      const struct mf_race_budget *budget, struct mf_race_schedule *ret);
int mf_race_schedule_print(const struct mf_race_schedule *s, struct mf_buf *out);

/* Result of a race for one pipeline. */
struct mf_racer_result {
    int64_t pipeline;
    enum mf_status status;
    double us, mad;
    bool reported;
    int verified; /* verified runs */
};
/* Returns the index of the winning pipeline: the named winner, or the fastest pipeline if the named
 * winner does not qualify. A pipeline qualifies with a valid result and two verified runs. Returns -1 if
 * none does. */
int mf_race_pick(const struct mf_racer_result *racers, size_t n, int64_t winner);
