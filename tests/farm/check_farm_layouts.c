/* One weight layout for a layer model, with workers of cardboard whose times are given: a real moefarmd, a ladder of two token counts,
 * and races that say otherwise than the forecasts. Steps of either GEMM want their weight as row or as panel16, which makes four
 * layouts: by forecast, without 1.5 us of launches, "row, panel16" (49 us) goes before "row, row" (50), "panel16, panel16" (51) and
 * "panel16, row" (52), which has no place in the races. */
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"

#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define BEAT_MS 20000
#define HEAD    SHAPE_COLUMNS "\\n"
#define SHAPE(token)                                                                                         \
    token ",2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1," \
          "0\\n"
#define RP "w1=row w2=panel16"
#define RR "w1=row w2=row"
#define PP "w1=panel16 w2=panel16"
#define PR "w1=panel16 w2=row"

static struct farm farm;
static struct fake_worker worker;
static void *zmq;

/* Of steps "sort_m16", "sne_m16_0" (gather to act, row) and "tne_m16_1" (the rest, panel16). */
static double us(const struct fake_worker *w, const char *name)
{
    static const double stages[2][2] = {{20, 22}, {20, 19}};
    double later = strstr(name, "_m32") ? 5 : 0; /* block_m 32 is behind */
    (void)w;
    if (strncmp(name, "sort", 4) == 0)
        return 10 + later;
    return stages[*name == 't'][name[strlen(name) - 1] == '1'] + later;
}

/* In a race, by layout and token count, over the forecast. */
struct truth {
    const char *layout;
    double at_16, at_64;
};

/* clang-format off */
/* The best of each token count is another layout's, and the forecasts' first loses over the ladder. */
static const struct truth truths[] = {{RP, 1.2, 1.0}, {RR, 1.0, 1.1}, {PP, 1.1, 1.0}};
/* clang-format on */

static bool is_at(const cJSON *unit, const char *token)
{
    const char *shape = "";
    (void)mf_json_text(unit, "shape", &shape);
    return strncmp(shape, token, strlen(token)) == 0;
}

static double factor(const struct fake_worker *w, const cJSON *unit, const cJSON *pipeline)
{
    char layout[80] = "";
    const cJSON *step;
    const char *name;
    (void)w;
    cJSON_ArrayForEach (step, mf_json_array(pipeline, "steps")) {
        if (mf_json_text(step, "name", &name) < 0 || strncmp(name, "sort", 4) == 0)
            continue;
        size_t len = strlen(layout);
        mf_format(layout + len, sizeof(layout) - len, "%s=%s", len ? " w2" : "w1",
                  name[strlen(name) - 1] == '1' ? "panel16" : "row");
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(truths); i++) {
        if (strcmp(truths[i].layout, layout) == 0)
            return is_at(unit, "16,") ? truths[i].at_16 : truths[i].at_64;
    }
    return 1;
}

static void greet(void)
{
    ck_assert_int_eq(fake_worker_greet(&worker, "[]", FARM_DEADLINE_MS), 0);
}

static void start(void)
{
    zmq = zmq_ctx_new();
    farm_start(&farm, BEAT_MS);
    ck_assert_int_eq(fake_worker_open(&worker, zmq, farm.hub, "w0"), 0);
    worker.us = us;
    worker.factor = factor;
    worker.n_variants = 2;
    greet();
}

static void stop(void)
{
    fake_worker_close(&worker);
    farm_stop(&farm);
    (void)zmq_ctx_term(zmq);
}

static void submit(const char *options)
{
    char body[1200];
    mf_format(body, sizeof(body),
              "{\"name\":\"t\",\"csv\":\"" HEAD SHAPE("16")
                  SHAPE("64") "\",\"options\":{\"regret\":\"none\"%s}}",
              options);
    free(farm_call(&farm, "POST", "/api/v1/batches", "application/json", body, 201));
}

static void answer_unit(const cJSON *unit)
{
    ck_assert_int_eq(fake_worker_answer(&worker, unit), 0);
}

/* Answers what comes, and gives back the first race. */
static cJSON *work_until_race(void)
{
    cJSON *unit = fake_worker_work_until(&worker, "race", FARM_DEADLINE_MS);
    ck_assert_msg(unit, "no race comes");
    return unit;
}

static void work_and_race(void)
{
    _cleanup_(cJSON_Deletep) cJSON *unit = work_until_race();
    answer_unit(unit);
}

/* Until the task's race is in the books. */
static void await_race(int task)
{
    char path[60];
    mf_format(path, sizeof(path), "/api/v1/tasks/%d/race", task);
    for (int64_t end = mf_now_ms() + FARM_DEADLINE_MS;;) {
        _cleanup_(cJSON_Deletep) cJSON *race = farm_get(&farm, path);
        if (cJSON_HasObjectItem(race, "winner"))
            return;
        ck_assert_int_lt(mf_now_ms(), end);
    }
}

static const cJSON *layout_of(const cJSON *choice, const char *layout)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_array(choice, "layouts")) {
        if (strcmp(farm_text(item, "layout"), layout) == 0)
            return item;
    }
    ck_abort_msg("layout %s is not listed", layout);
}

static void check_why(const cJSON *choice, const char *layout, const char *why)
{
    ck_assert_str_eq(farm_text(layout_of(choice, layout), "reason"), why);
}

/* _i: nothing else happens; the worker knows no groups; the coordinator is killed between the races. */
START_TEST(races_choose)
{
    worker.no_groups = _i == 1;
    submit("");
    for (int i = 0; i < 2; i++) {
        _cleanup_(cJSON_Deletep) cJSON *unit = work_until_race();
        const cJSON *p;
        int n_of[3] = {0};
        cJSON_ArrayForEach (p, mf_json_array(unit, "pipelines"))
            n_of[farm_number(p, "group")]++;
        ck_assert(n_of[0] >= 2 && n_of[1] >= 2 && n_of[2] >= 2);
        if (i == 1) { /* the first one waits for it */
            _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
            const cJSON *choice = mf_json_array(batch, "layouts")->child;
            ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(choice, "pending")));
            _cleanup_(cJSON_Deletep) cJSON *first = farm_get(&farm, "/api/v1/tasks/1");
            ck_assert_str_eq(farm_text(first, "state"), "racing");
            ck_assert(cJSON_IsNull(cJSON_GetObjectItem(first, "config")));
            check_why(mf_json_object(first, "layout"), PR, "is not raced");
        }
        answer_unit(unit);
        if (_i != 2 || i != 0)
            continue;
        await_race(1);
        farm_kill_daemon(&farm);
        farm_start_daemon(&farm, BEAT_MS);
        greet();
    }
    for (int task = 1; task <= 2; task++) {
        _cleanup_(cJSON_Deletep) cJSON *json = farm_wait_task(&farm, task, "done");
        const cJSON *config = mf_json_object(json, "config"), *choice = mf_json_object(json, "layout");
        ck_assert_double_eq_tol(farm_double(config, "us"), task == 1 ? 50 : 55, 0.01);
        ck_assert_str_eq(farm_text(choice, "layout"), RR);
        ck_assert_str_eq(farm_text(choice, "by"), "race");
        ck_assert(!cJSON_IsTrue(cJSON_GetObjectItem(choice, "pending")));
        check_why(choice, RR, "won over the ladder: 105.0 us in sum at 2 token counts, raced");
        check_why(choice, RP, "lost over the ladder: 107.8 us against 105.0 us of " RR ", raced");
        check_why(choice, PP, "lost over the ladder: 107.1 us against 105.0 us of " RR ", raced");
        check_why(choice, PR,
                  "was not raced: 107.0 us against 101.0 us of " RP " over the ladder, by forecast");
        const cJSON *provenance = mf_json_object(config, "provenance");
        ck_assert_str_eq(farm_text(provenance, "layout_by"), "race");
        ck_assert_str_eq(farm_text(provenance, "layout_why"),
                         "won over the ladder: 105.0 us in sum at 2 token counts, raced");
        ck_assert_str_eq(farm_text(provenance, "worker"), "w0");
    }
    _cleanup_(mf_freep) char *csv =
        farm_call(&farm, "GET", "/api/v1/export/tuned_fmoe.csv?simulated=1&batch=1", "", "", 200);
    int n = 0;
    for (const char *at = csv; (at = strstr(at, "sne_m16_0|fake:tne_m16_0")) != NULL; at++)
        n++;
    ck_assert_msg(n == 2 && !strstr(csv, "panel16"), "%s", csv);
}
END_TEST

/* A step that is wrong in the second race takes two layouts out of it: the one that is left serves every task. */
START_TEST(a_layout_that_dies)
{
    submit("");
    work_and_race();
    worker.wrong = "sne_m16_0";
    work_and_race();
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 2, "done");
    const cJSON *choice = mf_json_object(task, "layout");
    /* block_m 32 still runs, 15 us slower */
    ck_assert_str_eq(farm_text(choice, "layout"), PP);
    check_why(choice, PP, "won over the ladder: 107.1 us in sum at 2 token counts, raced");
}
END_TEST

/* clang-format off */
static const struct {
    const char *options, *by, *layout;
    const char *asked, *why; /* the sentence of a layout */
} others[] = {
    {",\"layout\":\"free\"", "free", "free", PR, "is one of those that each token count chose from (layout=free)"},
    {",\"layout\":\"" PP "\"", "given", PP, PP, "is where the weights lie already (layout)"},
};
/* clang-format on */

START_TEST(nothing_is_in_question)
{
    submit(others[_i].options);
    for (int i = 0; i < 2; i++) {
        _cleanup_(cJSON_Deletep) cJSON *unit = work_until_race();
        const cJSON *p;
        cJSON_ArrayForEach (p, mf_json_array(unit, "pipelines"))
            ck_assert(!cJSON_HasObjectItem(p, "group"));
        answer_unit(unit);
    }
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 2, "done");
    const cJSON *choice = mf_json_object(task, "layout");
    ck_assert_str_eq(farm_text(choice, "by"), others[_i].by);
    ck_assert_str_eq(farm_text(choice, "layout"), others[_i].layout);
    check_why(choice, others[_i].asked, others[_i].why);
}
END_TEST

/* A task that fails in its race, or cannot be raced, is waited for no longer. */
START_TEST(a_task_that_fails)
{
    submit("");
    work_and_race();
    for (int attempt = 0; attempt < 3; attempt++) {
        _cleanup_(cJSON_Deletep) cJSON *unit = work_until_race();
        ck_assert_int_eq(fake_worker_fail(&worker, unit, "no_memory", "no room"), 0);
    }
    cJSON_Delete(farm_wait_task(&farm, 2, "failed"));
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    check_why(mf_json_object(task, "layout"), RR,
              "won over the ladder: 50.0 us in sum at 1 token counts, raced");
    _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
    ck_assert_str_eq(farm_text(batch, "state"), "done");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("farm_layouts");
    TCase *c = tcase_create("farm_layouts");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_loop_test(c, races_choose, 0, 3);
    tcase_add_test(c, a_layout_that_dies);
    tcase_add_loop_test(c, nothing_is_in_question, 0, MF_ARRAY_LEN(others));
    tcase_add_test(c, a_task_that_fails);
    suite_add_tcase(suite, c);
    return mf_check_main(suite);
}
