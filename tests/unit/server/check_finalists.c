#include "server/choose/race.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/paired.h"

#include <math.h>
#include <string.h>

#define N 100

static struct mf_path paths[N];
static struct mf_ranked ranked[N];

/* Makes n pipelines. Each forecast is 1 % higher than the forecast before it, and the pipelines alternate
 * between `kinds` structures. */
static void make(size_t n, uint64_t kinds, double log_spread)
{
    for (size_t i = 0; i < n; i++) {
        paths[i] = (struct mf_path){.structure = i % kinds + 1, .block_m = i % 2 ? 32 : 64};
        /* shuffles the pipelines */
        size_t at = (i * 37) % n;
        ranked[at] = (struct mf_ranked){
            .path = &paths[i], .forecast_us = 100 * pow(1.01, (double)i), .log_spread = log_spread};
    }
}

static const struct {
    size_t n;
    uint64_t kinds;
    double log_spread;
    int topk;
    size_t n_finalists;
} finals[] = {
    {1, 1, 0, 8, 1}, /* even a single finalist races, because its time must be measured again */
    {20, 1, 0, 8, 8},
    {20, 1, 0, 1, 2}, /* the best pipeline, and the best pipeline with the other block_m */
    {97, 5, 0, 4, 5}, /* five structures, which include both values of block_m */
    {97, 40, 0, 4, MF_FINALISTS_MAX},
    /* both forecasts have a spread of 0.05, so any pipeline within a factor of exp(0.1) of the best may be
     * the fastest */
    {97, 1, 0.05, 4, 11},
    {97, 1, 9, 4, MF_FINALISTS_MAX},
    {97, 97, 0, 4, MF_FINALISTS_MAX},
};

MF_TEST(finalists, .rows = MF_ARRAY_LEN(finals))
{
    make(finals[_i].n, finals[_i].kinds, finals[_i].log_spread);
    ck_assert_uint_eq(mf_race_finalists(ranked, finals[_i].n, finals[_i].topk, MF_FINALISTS_MAX),
                      finals[_i].n_finalists);
    for (size_t i = 0; i < finals[_i].n; i++) {
        ck_assert(i == 0 || ranked[i - 1].forecast_us <= ranked[i].forecast_us);
        ck_assert(i >= (size_t)finals[_i].topk || ranked[i].finalist);
    }
}

/* If several layouts race, each has fewer places. The best pipeline of each structure and block_m gets a
 * place, then the cheapest of the other pipelines. */
MF_TEST(fewer_places)
{
    make(60, 3, 0);
    ck_assert_uint_eq(mf_race_finalists(ranked, 60, 8, 10), 8);
    ck_assert_uint_eq(mf_race_finalists(ranked, 60, 30, 10), 10);
    ck_assert_uint_eq(mf_race_finalists(ranked, 60, 30, 2), 2);
    ck_assert(ranked[0].finalist && ranked[1].finalist);
}

/* Returns a structure with the given step numbers for gemm1 and gemm2. `kind` distinguishes structures that
 * have the same step numbers. */
static uint64_t structure_of(unsigned gemm1, unsigned gemm2, unsigned kind)
{
    return (uint64_t)gemm1 << (4 * MF_OP_GEMM1) | (uint64_t)gemm2 << (4 * MF_OP_GEMM2) |
           (uint64_t)kind << (4 * MF_OP_COMBINE);
}

/* A required pipeline races even if it is the slowest one and only two places exist. */
MF_TEST(required_pipeline_races)
{
    make(20, 5, 0);
    for (size_t i = 0; i < 20; i++)
        ranked[i].required = ranked[i].path == &paths[19];
    ck_assert_uint_eq(mf_race_finalists(ranked, 20, 8, 2), 2);
    ck_assert(ranked[0].finalist && ranked[19].finalist && ranked[19].required);
}

/* More structures fuse both GEMMs than there are places. The pipeline with the best forecast has two stages
 * and still gets a place. */
MF_TEST(best_forecast_races)
{
    make(20, 1, 0);
    for (size_t i = 0; i < 20; i++)
        paths[i].structure = i == 0 ? structure_of(2, 7, 1) : structure_of(2, 2, (unsigned)i % 16);
    ck_assert_uint_eq(mf_race_finalists(ranked, 20, 1, 4), 4);
    ck_assert_ptr_eq(ranked[0].path, &paths[0]);
    ck_assert(ranked[0].finalist);
}

/* The cheapest pipelines fuse both GEMMs, and they have more structures than there are places. Nevertheless,
 * the cheapest two-stage pipeline races. */
MF_TEST(best_two_stage_pipeline_races)
{
    make(20, 1, 0);
    for (size_t i = 0; i < 20; i++)
        paths[i].structure = i < 15 ? structure_of(2, 2, (unsigned)i) : structure_of(2, 7, (unsigned)i % 16);
    ck_assert_uint_eq(mf_race_finalists(ranked, 20, 1, 3), 3);
    ck_assert_ptr_eq(ranked[15].path, &paths[15]);
    ck_assert(ranked[0].finalist && ranked[15].finalist);
}

static const struct {
    double best_us, budget_s;
    int topk;
    size_t limit;
} limits[] = {
    {100, 1, 4, MF_FINALISTS_MAX},    {8e3, 0.6, 4, 28},   {16e3, 0.6, 4, 14},
    {60e3, 0.6, 4, MF_FINALISTS_MIN}, {60e3, 0.6, 20, 20}, {60e3, 0, 99, MF_FINALISTS_MAX},
};

MF_TEST(finalist_limits, .rows = MF_ARRAY_LEN(limits))
{
    ck_assert_uint_eq(mf_race_finalist_limit(limits[_i].best_us, limits[_i].budget_s, limits[_i].topk),
                      limits[_i].limit);
}

/* Two-stage pipelines would fill all places by forecast, in three ways: there are more structures than
 * places, or topk is large, or the spread covers all forecasts. Pipelines that fuse both GEMMs have the
 * slowest forecasts and two structures. The best pipeline of each of these two structures must race. */
static const struct {
    unsigned kinds; /* number of two-stage structures */
    int topk;
    double log_spread;
} full_races[] = {{1, 8, 0}, {15, 32, 0}, {1, 64, 0}, {15, 8, 9}, {3, 1, 0}};

MF_TEST(fused_gemms_race, .rows = MF_ARRAY_LEN(full_races))
{
    size_t n = N, n_fused = 0;
    make(n, 1, full_races[_i].log_spread);
    for (size_t i = 0; i < n; i++)
        paths[i].structure = i >= 90 ? structure_of(2, 2, 1 + i % 2)
                                     : structure_of(2, 7, (unsigned)(i % full_races[_i].kinds));
    size_t n_finalists = mf_race_finalists(ranked, n, full_races[_i].topk, MF_FINALISTS_MAX);
    ck_assert_uint_le(n_finalists, MF_FINALISTS_MAX);
    ck_assert(ranked[0].finalist);
    for (size_t i = 0; i < n; i++) {
        bool fuses_gemms = mf_path_fuses_gemms(ranked[i].path->structure);
        ck_assert(fuses_gemms == (ranked[i].path >= &paths[90]));
        n_fused += fuses_gemms && ranked[i].finalist;
        if (ranked[i].path == &paths[90] || ranked[i].path == &paths[91])
            ck_assert(ranked[i].finalist);
    }
    ck_assert_uint_ge(n_fused, 2);
    for (unsigned kind = 0; kind < full_races[_i].kinds; kind++) {
        bool raced = false;
        for (size_t i = 0; i < n; i++)
            raced |= ranked[i].finalist && ranked[i].path->structure == structure_of(2, 7, kind);
        ck_assert(raced);
    }
}

static const struct {
    size_t n;
    double us, budget_s;
} budgets[] = {{1, 10, 1}, {8, 100, 1}, {32, 1000, 1}, {32, 20000, 1}, {32, 1e6, 1}, {4, 5, 0.001}};

/* Asserts that a race of two groups has no more rounds in its first stage than a race of one group, and that
 * the race of two groups stays within the time budget. */
static void check_groups(const double *forecast_us, size_t n, double budget_s,
                         const struct mf_race_schedule *alone)
{
    const size_t halves[] = {n / 2, n - n / 2};
    struct mf_race_schedule s;
    double seconds = 0;
    int total = 0;
    mf_race_schedule(forecast_us, halves, 2, &(struct mf_race_budget){budget_s, 20}, &s);
    for (int k = 0; k < 2; k++) {
        size_t in = halves[k];
        for (int i = 0; i < s.n_stages; i++) {
            seconds += (double)in * s.stages[i].rounds * forecast_us[0] * 1e-6;
            in = MF_MIN(in, (size_t)s.stages[i].keep);
        }
        seconds += (double)MF_MIN(halves[k], (size_t)MF_RACE_RERUN_MAX / 2) * s.fresh * forecast_us[0] * 1e-6;
    }
    for (int i = 0; i < s.n_stages; i++)
        total += s.stages[i].rounds;
    ck_assert_int_ge(total, MF_RACE_ROUNDS_MIN);
    ck_assert_int_le(s.stages[0].rounds, alone->stages[0].rounds);
    ck_assert(total == MF_RACE_ROUNDS_MIN || seconds <= budget_s * 1.05);
}

MF_TEST(schedules, .rows = MF_ARRAY_LEN(budgets))
{
    double forecast_us[MF_FINALISTS_MAX];
    struct mf_race_schedule s;
    int total = 0;
    double seconds = 0;
    size_t in = budgets[_i].n;
    for (size_t i = 0; i < in; i++)
        forecast_us[i] = budgets[_i].us;
    mf_race_schedule(forecast_us, &budgets[_i].n, 1, &(struct mf_race_budget){budgets[_i].budget_s, 20}, &s);
    check_groups(forecast_us, budgets[_i].n, budgets[_i].budget_s, &s);
    for (int i = 0; i < s.n_stages; i++) {
        ck_assert_int_ge(s.stages[i].rounds, i == 0 ? 2 : 1);
        ck_assert(i == 0 || s.stages[i].keep < s.stages[i - 1].keep);
        total += s.stages[i].rounds;
        seconds += (double)in * s.stages[i].rounds * budgets[_i].us * 1e-6;
        in = MF_MIN(in, (size_t)s.stages[i].keep);
    }
    ck_assert_int_ge(total, MF_RACE_ROUNDS_MIN);
    ck_assert_int_ge(s.fresh, 5);
    double fresh_s =
        (double)MF_MIN(budgets[_i].n, (size_t)MF_RACE_RERUN_MAX) * s.fresh * budgets[_i].us * 1e-6;
    if (total > MF_RACE_ROUNDS_MIN)
        ck_assert(seconds + fresh_s <= budgets[_i].budget_s * 1.05);
    else /* the minimum number of rounds: two with all racers, one with at most 16 and three with at most 6 */
        ck_assert(seconds <= ((double)budgets[_i].n * 2 + 16 + 3 * 6) * budgets[_i].us * 1e-6 * 1.01);
    /* units contain the schedule as JSON, as docs/protocol.md describes */
    struct mf_buf text;
    mf_buf_init(&text, 4096);
    ck_assert_int_eq(mf_race_schedule_print(&s, &text), 0);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text.data, text.len, 4096);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(json, "rounds")), s.n_stages);
    mf_buf_release(&text);
}

/* If no fresh samples are taken, their time is used for more rounds. */
MF_TEST(no_fresh_samples)
{
    const double forecast_us[] = {5000, 5000, 5000, 5000};
    const size_t n = MF_ARRAY_LEN(forecast_us);
    struct mf_race_schedule with, without;
    mf_race_schedule(forecast_us, &n, 1, &(struct mf_race_budget){0.4, 20}, &with);
    mf_race_schedule(forecast_us, &n, 1, &(struct mf_race_budget){0.4, 0}, &without);
    ck_assert_int_ge(with.fresh, 5);
    ck_assert_int_eq(without.fresh, 0);
    ck_assert_int_gt(without.stages[2].rounds, with.stages[2].rounds);
}

static const struct {
    struct mf_racer_result racers[3];
    int64_t winner;
    int pick;
} picks[] = {
    {{{1, MF_STATUS_OK, 10, 1, true, 2}, {2, MF_STATUS_OK, 11, 1, true, 2}, {3, MF_STATUS_OK, 9, 1, true, 2}},
     2,
     1},
    /* The named winner failed or did not race, so the fastest correct racer wins. */
    {{{1, MF_STATUS_OK, 10, 1, true, 2},
      {2, MF_STATUS_WRONG, 5, 1, true, 2},
      {3, MF_STATUS_OK, 9, 1, true, 2}},
     2,
     2},
    {{{1, MF_STATUS_OK, 10, 1, true, 2},
      {2, MF_STATUS_IMPLAUSIBLE, 0.1, 1, true, 2},
      {3, MF_STATUS_OK, 12, 1, true, 2}},
     77,
     0},
    /* A racer that was verified only once never wins, even if the worker names it as the winner. */
    {{{1, MF_STATUS_OK, 10, 1, true, 2},
      {2, MF_STATUS_WRONG, 5, 1, true, 1},
      {3, MF_STATUS_OK, 9, 1, true, 1}},
     2,
     0},
    {{{1, MF_STATUS_OK, 10, 1, true, 1}, {2, MF_STATUS_OK, 5, 1, true, 1}, {3, MF_STATUS_OK, 9, 1, true, 1}},
     77,
     -1},
    {{{1, MF_STATUS_OK, 10, 1, true, 1}, {2, MF_STATUS_OK, 5, 1, true, 1}, {3, MF_STATUS_OK, 9, 1, true, 1}},
     3,
     -1},
    /* If the times are equal, the racer with the better forecast wins. */
    {{{1, MF_STATUS_OK, 10, 1, true, 2},
      {2, MF_STATUS_OK, 10, 1, true, 2},
      {3, MF_STATUS_OK, 10, 1, false, 2}},
     0,
     0},
    {{{1, MF_STATUS_CRASH, 0, 0, true, 2},
      {2, MF_STATUS_OK, 0, 0, true, 2},
      {3, MF_STATUS_OK, 3, 0, false, 2}},
     3,
     -1},
};

MF_TEST(winner_is_picked, .rows = MF_ARRAY_LEN(picks))
{
    ck_assert_int_eq(mf_race_pick(picks[_i].racers, 3, picks[_i].winner), picks[_i].pick);
}

int main(void)
{
    return mf_check_main(NULL);
}
