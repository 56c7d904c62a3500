/* Finalists, the plan of their race, and what is made of its outcome. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/moe/pipeline_search.h"
#include "common/moe/status.h"

#define MF_FINALISTS_MAX   32
#define MF_FINALISTS_LEAST 8

/* A ranked pipeline: its forecast is corrected by what its structure took in earlier batches. */
struct mf_ranked {
    const struct mf_path *path;
    double forecast_us;
    double log_spread; /* of its structure's ratios; 0 when unknown */
    bool finalist;
};
/* Sorts by forecast (ties keep the order of the paths, which is by names) and marks the finalists, at most n_places
 * (MF_FINALISTS_MAX, or a layout's share of them): the cheapest of every structure and of every block_m, the K cheapest, and
 * more where the spread of the forecasts is wider than the gap. Where there are too many, the cheapest of two stages and of one
 * kernel that does both GEMMs (FLAT, one stage, one launch), then the cheapest of each structure of the latter have their place right
 * behind the first of all: whether such a one beats two stages is decided by a race, never by a sum. Not of every pair of
 * structure and block_m: that would fill the race with the pairs of the first structures, and leave whole structures out.
 * Returns how many. */
size_t mf_race_finalists(struct mf_ranked *ranked, size_t n, int topk, size_t n_places);
/* Places of a race that is to take about budget_s, where the best forecast is best_us. Each racer is run twice at
 * least, and checked in one of these: where that alone would take three quarters of the budget, there are fewer places than
 * MF_FINALISTS_MAX, though never fewer than MF_FINALISTS_LEAST or topk. */
size_t mf_race_places(double best_us, double budget_s, int topk);

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
/* Rounds for finalists of these forecasts such that the race takes about its budget; never fewer than
 * MF_RACE_ROUNDS_MIN in all, so that a paired test can tell anything. The forecasts of each of n_groups groups follow each other,
 * its cheapest first: n[k] of group k. What a stage keeps, it keeps of each
 * group: of several less, but two at least. */
#define MF_RACE_ROUNDS_MIN 6
struct mf_race_budget {
    double s;
    int fresh; /* samples, at most, of each that is measured afresh; 0: none is, and all are checked before they race */
};
#define MF_RACE_FRESH_MOST 20
void mf_race_schedule(const double *forecast_us, const size_t *n, size_t n_groups,
                      const struct mf_race_budget *budget, struct mf_race_schedule *ret);
int mf_race_schedule_print(const struct mf_race_schedule *s, struct mf_buf *out);

/* What a race gave for one pipeline. */
struct mf_racer_result {
    int64_t pipeline;
    enum mf_status status;
    double us, mad;
    bool reported;
    int verified; /* runs that were checked */
};
/* Index of the pipeline that wins: the named winner if it is right, else the fastest right one of those that were checked twice, as
 * every winner is; -1: none is. */
int mf_race_pick(const struct mf_racer_result *racers, size_t n, int64_t winner);
