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

/* n pipelines of rising forecasts, by 1% each; every `kinds` in turn has another structure. */
static void make(size_t n, uint64_t kinds, double log_spread)
{
    for (size_t i = 0; i < n; i++) {
        paths[i] = (struct mf_path){.structure = i % kinds + 1, .block_m = i % 2 ? 32 : 64};
        /* Given in no order */
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
    {1, 1, 0, 8, 1}, /* a single one is raced too: it is measured afresh */
    {20, 1, 0, 8, 8},
    {20, 1, 0, 1, 2}, /* the best, and the best of the other block_m */
    {97, 5, 0, 4, 5}, /* five structures, and both block_m among them */
    {97, 40, 0, 4, MF_FINALISTS_MAX},
    {97, 1, 0.05, 4, 11}, /* less than exp(0.1) apart, the spread of both, may well be the fastest */
    {97, 1, 9, 4, MF_FINALISTS_MAX},
    {97, 97, 0, 4, MF_FINALISTS_MAX},
};

START_TEST(finalists)
{
    make(finals[_i].n, finals[_i].kinds, finals[_i].log_spread);
    ck_assert_uint_eq(mf_race_finalists(ranked, finals[_i].n, finals[_i].topk, MF_FINALISTS_MAX),
                      finals[_i].n_finalists);
    for (size_t i = 0; i < finals[_i].n; i++) {
        ck_assert(i == 0 || ranked[i - 1].forecast_us <= ranked[i].forecast_us);
        ck_assert(i >= (size_t)finals[_i].topk || ranked[i].finalist);
    }
}
END_TEST

/* A layout's share of the places: the best of each structure and block_m, then the cheapest. */
START_TEST(fewer_places)
{
    make(60, 3, 0);
    ck_assert_uint_eq(mf_race_finalists(ranked, 60, 8, 10), 8);
    ck_assert_uint_eq(mf_race_finalists(ranked, 60, 30, 10), 10);
    ck_assert_uint_eq(mf_race_finalists(ranked, 60, 30, 2), 2);
    ck_assert(ranked[0].finalist && ranked[1].finalist);
}
END_TEST

/* Structures whose last digits say which step does gemm1 and which gemm2. */
static uint64_t structure_of(unsigned gemm1, unsigned gemm2, unsigned kind)
{
    return (uint64_t)gemm1 << (4 * MF_OP_GEMM1) | (uint64_t)gemm2 << (4 * MF_OP_GEMM2) |
           (uint64_t)kind << (4 * MF_OP_COMBINE);
}

/* One kernel for both GEMMs in more structures than there are places: the first by forecast still has one. */
START_TEST(first_of_all)
{
    make(20, 1, 0);
    for (size_t i = 0; i < 20; i++)
        paths[i].structure = i == 0 ? structure_of(2, 7, 1) : structure_of(2, 2, (unsigned)i % 16);
    ck_assert_uint_eq(mf_race_finalists(ranked, 20, 1, 4), 4);
    ck_assert_ptr_eq(ranked[0].path, &paths[0]);
    ck_assert(ranked[0].finalist);
}
END_TEST

/* One kernel for both GEMMs, the cheapest, in more structures than there are places: the cheapest of two stages races all the same. */
START_TEST(two_stages_race)
{
    make(20, 1, 0);
    for (size_t i = 0; i < 20; i++)
        paths[i].structure = i < 15 ? structure_of(2, 2, (unsigned)i) : structure_of(2, 7, (unsigned)i % 16);
    ck_assert_uint_eq(mf_race_finalists(ranked, 20, 1, 3), 3);
    ck_assert_ptr_eq(ranked[15].path, &paths[15]);
    ck_assert(ranked[0].finalist && ranked[15].finalist);
}
END_TEST

static const struct {
    double best_us, budget_s;
    int topk;
    size_t places;
} rooms[] = {
    {100, 1, 4, MF_FINALISTS_MAX},      {8e3, 0.6, 4, 28},   {16e3, 0.6, 4, 14},
    {60e3, 0.6, 4, MF_FINALISTS_LEAST}, {60e3, 0.6, 20, 20}, {60e3, 0, 99, MF_FINALISTS_MAX},
};

START_TEST(places)
{
    ck_assert_uint_eq(mf_race_places(rooms[_i].best_us, rooms[_i].budget_s, rooms[_i].topk),
                      rooms[_i].places);
}
END_TEST

/* Two stages fill the race by their forecasts, in one way each: more structures than there are places, more of the K cheapest,
 * forecasts whose spread takes in all of them. One kernel for both GEMMs is far behind by forecast, in two structures:
 * the best of each has to race. */
static const struct {
    unsigned kinds; /* of two stages */
    int topk;
    double log_spread;
} crowds[] = {{1, 8, 0}, {15, 32, 0}, {1, 64, 0}, {15, 8, 9}, {3, 1, 0}};

START_TEST(one_kernel_races)
{
    size_t n = N, n_one = 0;
    make(n, 1, crowds[_i].log_spread);
    for (size_t i = 0; i < n; i++)
        paths[i].structure =
            i >= 90 ? structure_of(2, 2, 1 + i % 2) : structure_of(2, 7, (unsigned)(i % crowds[_i].kinds));
    size_t n_finalists = mf_race_finalists(ranked, n, crowds[_i].topk, MF_FINALISTS_MAX);
    ck_assert_uint_le(n_finalists, MF_FINALISTS_MAX);
    ck_assert(ranked[0].finalist);
    for (size_t i = 0; i < n; i++) {
        bool in_one = mf_path_in_one(ranked[i].path->structure);
        ck_assert(in_one == (ranked[i].path >= &paths[90]));
        n_one += in_one && ranked[i].finalist;
        if (ranked[i].path == &paths[90] || ranked[i].path == &paths[91])
            ck_assert(ranked[i].finalist);
    }
    ck_assert_uint_ge(n_one, 2);
    for (unsigned kind = 0; kind < crowds[_i].kinds; kind++) {
        bool raced = false;
        for (size_t i = 0; i < n; i++)
            raced |= ranked[i].finalist && ranked[i].path->structure == structure_of(2, 7, kind);
        ck_assert(raced);
    }
}
END_TEST

static const struct {
    size_t n;
    double us, budget_s;
} budgets[] = {{1, 10, 1}, {8, 100, 1}, {32, 1000, 1}, {32, 20000, 1}, {32, 1e6, 1}, {4, 5, 0.001}};

/* In two groups, each of which keeps its own, they have no more rounds than in one, and the same budget. */
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
        seconds +=
            (double)MF_MIN(halves[k], (size_t)MF_RACE_REMEASURED / 2) * s.fresh * forecast_us[0] * 1e-6;
    }
    for (int i = 0; i < s.n_stages; i++)
        total += s.stages[i].rounds;
    ck_assert_int_ge(total, MF_RACE_ROUNDS_MIN);
    ck_assert_int_le(s.stages[0].rounds, alone->stages[0].rounds);
    ck_assert(total == MF_RACE_ROUNDS_MIN || seconds <= budget_s * 1.05);
}

START_TEST(schedules)
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
        (double)MF_MIN(budgets[_i].n, (size_t)MF_RACE_REMEASURED) * s.fresh * budgets[_i].us * 1e-6;
    if (total > MF_RACE_ROUNDS_MIN)
        ck_assert(seconds + fresh_s <= budgets[_i].budget_s * 1.05);
    else /* what must be has gone to the fewest: two rounds of all, and four of at most 16 and 6 */
        ck_assert(seconds <= ((double)budgets[_i].n * 2 + 16 + 3 * 6) * budgets[_i].us * 1e-6 * 1.01);
    /* What goes into a unit is JSON as docs/protocol.md has it */
    struct mf_buf text;
    mf_buf_init(&text, 4096);
    ck_assert_int_eq(mf_race_schedule_print(&s, &text), 0);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text.data, text.len, 4096);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(json, "rounds")), s.n_stages);
    mf_buf_release(&text);
}
END_TEST

/* What nobody is measured afresh for goes to rounds. */
START_TEST(no_fresh_samples)
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
END_TEST

static const struct {
    struct mf_racer_result racers[3];
    int64_t winner;
    int pick;
} picks[] = {
    {{{1, MF_STATUS_OK, 10, 1, true, 2}, {2, MF_STATUS_OK, 11, 1, true, 2}, {3, MF_STATUS_OK, 9, 1, true, 2}},
     2,
     1},
    /* The named winner failed, or was never in: the fastest right one */
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
    /* Who was checked once wins only where its runner says so */
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
     2},
    /* Equal times: the better forecast */
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

START_TEST(picking)
{
    ck_assert_int_eq(mf_race_pick(picks[_i].racers, 3, picks[_i].winner), picks[_i].pick);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("finalists");
    TCase *c = tcase_create("finalists");
    tcase_add_loop_test(c, finalists, 0, (int)MF_ARRAY_LEN(finals));
    tcase_add_loop_test(c, places, 0, (int)MF_ARRAY_LEN(rooms));
    tcase_add_test(c, first_of_all);
    tcase_add_test(c, fewer_places);
    tcase_add_test(c, two_stages_race);
    tcase_add_loop_test(c, one_kernel_races, 0, (int)MF_ARRAY_LEN(crowds));
    tcase_add_loop_test(c, schedules, 0, (int)MF_ARRAY_LEN(budgets));
    tcase_add_test(c, no_fresh_samples);
    tcase_add_loop_test(c, picking, 0, (int)MF_ARRAY_LEN(picks));
    suite_add_tcase(suite, c);
    return mf_check_main(suite);
}
