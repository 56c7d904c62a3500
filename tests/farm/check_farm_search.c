/* Tests that a task with a time budget measures a part of a large space and finds its fastest candidate. Uses
 * a real moefarmd with a fake worker that lists a grid of candidates. */
#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/fake_farm.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_GRID (FAKE_GRID_A * FAKE_GRID_B * FAKE_GRID_C)

static struct fake_farm farm;

/* The fastest candidate is grid_a5_b2_c3; half of c's values lead to a valley that is 10 % slower. */
static double grid_us(const struct fake_worker *w, const char *name)
{
    int a = 0, b = 0, c = 0;
    (void)w;
    (void)sscanf(name, "grid_a%d_b%d_c%d", &a, &b, &c);
    if (c < 2)
        return 110 * exp(0.1 * (abs(a - 1) + abs(b - 6)) + 0.03 * c);
    return 100 * exp(0.1 * (abs(a - 5) + abs(b - 2)) + 0.05 * (3 - c));
}

static void start(struct fake_worker *w)
{
    fake_farm_start(&farm);
    fake_farm_join(&farm, w, "w");
    w->grid = true;
    w->us = grid_us;
}

static void stop(struct fake_worker *w)
{
    fake_worker_close(w);
    fake_farm_stop(&farm);
}

static void check_winner(const char *wanted)
{
    _cleanup_(mf_freep) char *name = fake_farm_text(
        &farm, "SELECT k.name FROM config c JOIN pipeline p ON p.id = c.pipeline JOIN step s ON"
               " s.id = json_extract(p.steps, '$[0]') JOIN kernel k ON k.id = s.kernel"
               " ORDER BY c.id DESC LIMIT 1");
    ck_assert_str_eq(name, wanted);
}

static void check_contains(const char *path, const char *wanted)
{
    int status = 0;
    _cleanup_(mf_freep) char *answer = farm_process_http(&farm.process, "GET", path, "", "", &status);
    ck_assert_int_eq(status, 200);
    ck_assert_msg(strstr(answer, wanted) != NULL, "%s lacks '%s': %s", path, wanted, answer);
}

MF_TEST(all_candidates_are_measured_without_budget)
{
    struct fake_worker w;
    start(&w);
    fake_farm_finish(&farm, &w, fake_farm_submit(&farm, 1, ""));
    ck_assert_double_eq(fake_farm_number(&farm, "SELECT n_candidates FROM task"), N_GRID);
    ck_assert_double_eq(fake_farm_number(&farm, "SELECT n_measured FROM task"), N_GRID);
    check_winner("grid_a5_b2_c3");
    stop(&w);
}

MF_TEST(search_measures_a_part)
{
    char text[80];
    struct fake_worker w;
    start(&w);
    fake_farm_finish(&farm, &w, fake_farm_submit(&farm, 1, "&time_budget=1000"));
    double measured = fake_farm_number(&farm, "SELECT n_measured FROM task");
    printf("measured %g of %d\n", measured, N_GRID);
    ck_assert_double_eq(fake_farm_number(&farm, "SELECT n_candidates FROM task"), N_GRID);
    ck_assert_double_le(measured, N_GRID / 5.0);
    ck_assert_double_eq(fake_farm_number(&farm, "SELECT count(*) FROM result WHERE step IS NOT NULL"),
                        measured);
    check_winner("grid_a5_b2_c3");
    (void)snprintf(text, sizeof(text), "\"candidates\":%d,\"steps\":%g,\"measured\":%g", N_GRID, measured,
                   measured);
    check_contains("/api/v1/tasks/1", text);
    (void)snprintf(text, sizeof(text), "\"candidates\":%d,\"measured\":%g", N_GRID, measured);
    check_contains("/api/v1/tasks/1", text); /* provenance of the config */
    check_contains("/api/v1/tasks/1/steps?status=pending&limit=1", "\"status\":\"pending\"");
    stop(&w);
}

static bool has_step(const cJSON *unit, const char *wanted)
{
    const cJSON *step;
    const char *name = "";
    cJSON_ArrayForEach (step, mf_json_array(unit, "steps")) {
        if (mf_json_text(step, "name", &name) == 0 && strcmp(name, wanted) == 0)
            return true;
    }
    return false;
}

/* The first round of a search has the winner of another layer that differs in one size. */
MF_TEST(search_starts_from_winner_of_neighbour)
{
    struct fake_worker w;
    bool found = false;
    start(&w);
    fake_farm_finish(&farm, &w, fake_farm_submit(&farm, 1, "&time_budget=1000"));
    fake_farm_sql(&farm, "UPDATE shape SET row = replace(row, ',96,', ',192,'), layer_model ="
                         " replace(layer_model, ',96,', ',192,')");
    int64_t batch = fake_farm_submit(&farm, 1, "&time_budget=1000&seed=2");
    double measured = fake_farm_number(&farm, "SELECT n_measured FROM task");
    while (!found && fake_farm_number(&farm, "SELECT count(*) FROM task WHERE n_measured > 0") < 2) {
        _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_work_until(&w, "probe", FAKE_FARM_LIMIT_MS);
        ck_assert_ptr_nonnull(unit);
        found = has_step(unit, "grid_a5_b2_c3");
        ck_assert_int_eq(fake_worker_answer(&w, unit), 0);
    }
    ck_assert(found);
    fake_farm_finish(&farm, &w, batch);
    check_winner("grid_a5_b2_c3");
    ck_assert_double_le(fake_farm_number(&farm, "SELECT n_measured FROM task WHERE id = 2"), measured);
    stop(&w);
}

/* The farm restarts during the first round. The search goes on after it, or ends because the workers have
 * spent the time budget. */
MF_TEST(budget_ends_search, .rows = 2)
{
    struct fake_worker w;
    start(&w);
    int64_t batch = fake_farm_submit(&farm, 1, "&time_budget=1000");
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_work_until(&w, "probe", FAKE_FARM_LIMIT_MS);
    double first = fake_farm_number(&farm, "SELECT n_steps FROM task");
    ck_assert_double_gt(first, 0);
    ck_assert_int_eq(farm_process_kill(&farm.process, SIGKILL), SIGKILL);
    if (_i)
        fake_farm_sql(&farm, "UPDATE task SET probe_ms = 1000000");
    farm_process_start(&farm.process, FAKE_FARM_BEAT_MS);
    ck_assert_int_eq(fake_worker_greet(&w, "[]", FAKE_FARM_LIMIT_MS), 0);
    fake_farm_finish(&farm, &w, batch);
    double measured = fake_farm_number(&farm, "SELECT n_measured FROM task");
    if (_i)
        ck_assert_double_eq(measured, first);
    else
        ck_assert_double_gt(measured, first);
    stop(&w);
}

int main(void)
{
    return mf_check_main(NULL);
}
