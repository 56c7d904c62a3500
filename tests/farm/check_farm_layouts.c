/* Tests the choice of one weight layout per layer model, with a real moefarmd, a fake worker with given
 * times, two token counts, and races that contradict the forecasts. Each GEMM reads its weight either as row
 * or as panel16, so there are four layouts. Their forecasts without the launches (1.5 us) are: "row, panel16"
 * 49 us, "row, row" 50 us, "panel16, panel16" 51 us, and "panel16, row" 52 us, which does not race. */
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

/* Returns the time of a step. Step names are "sort_m16", "sne_m16_0" (gather to act) and "tne_m16_1" (the
 * remaining ops); the last digit is 0 for the row layout and 1 for panel16. */
static double us(const struct fake_worker *w, const char *name)
{
    static const double stages[2][2] = {{20, 22}, {20, 19}};
    double later = strstr(name, "_m32") ? 5 : 0; /* steps with block_m 32 are slower */
    (void)w;
    if (strncmp(name, "sort", 4) == 0)
        return 10 + later;
    return stages[*name == 't'][name[strlen(name) - 1] == '1'] + later;
}

/* Ratio of a pipeline's time in the race to its forecast, for its layout and each token count. */
struct race_ratio {
    const char *layout;
    double at_16, at_64;
};

/* clang-format off */
/* The two token counts have different best layouts, and the layout with the best forecast loses at both. */
static const struct race_ratio race_ratios[] = {{RP, 1.2, 1.0}, {RR, 1.0, 1.1}, {PP, 1.1, 1.0}};
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
    for (size_t i = 0; i < MF_ARRAY_LEN(race_ratios); i++) {
        if (strcmp(race_ratios[i].layout, layout) == 0)
            return is_at(unit, "16,") ? race_ratios[i].at_16 : race_ratios[i].at_64;
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

/* Answers units up to the first race and returns that race. */
static cJSON *work_until_race(void)
{
    cJSON *unit = fake_worker_work_until(&worker, "race", FARM_DEADLINE_MS);
    ck_assert_msg(unit, "no race received");
    return unit;
}

static void work_and_race(void)
{
    _cleanup_(cJSON_Deletep) cJSON *unit = work_until_race();
    answer_unit(unit);
}

/* Waits until the task's race has a winner. */
static void await_race(int task)
{
    for (int64_t end = mf_now_ms() + FARM_DEADLINE_MS;;) {
        _cleanup_(cJSON_Deletep) cJSON *race = farm_get(&farm, "/api/v1/tasks/%d/race", task);
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

static void check_reason(const cJSON *choice, const char *layout, const char *why)
{
    ck_assert_str_eq(farm_text(layout_of(choice, layout), "reason"), why);
}

/* _i: 0 no disturbance; 1 the worker does not support groups; 2 the coordinator is killed between the two
 * races. */
MF_TEST(chooses_by_race, .rows = 3)
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
        if (i == 1) { /* the first task waits until the second race ends */
            _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
            const cJSON *choice = mf_json_array(batch, "layouts")->child;
            ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(choice, "pending")));
            _cleanup_(cJSON_Deletep) cJSON *first = farm_get(&farm, "/api/v1/tasks/1");
            ck_assert_str_eq(farm_text(first, "state"), "racing");
            ck_assert(cJSON_IsNull(cJSON_GetObjectItem(first, "config")));
            check_reason(mf_json_object(first, "layout"), PR, "is not raced");
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
        check_reason(choice, RR, "won the races: 105.0 us in total over 2 token counts");
        check_reason(choice, RP, "lost the races: 107.8 us in total, 105.0 us with " RR);
        check_reason(choice, PP, "lost the races: 107.1 us in total, 105.0 us with " RR);
        check_reason(choice, PR, "was not raced: 107.0 us in total, 101.0 us with " RP " (forecasts)");
        const cJSON *provenance = mf_json_object(config, "provenance");
        ck_assert_str_eq(farm_text(provenance, "layout_by"), "race");
        ck_assert_str_eq(farm_text(provenance, "layout_why"),
                         "won the races: 105.0 us in total over 2 token counts");
        ck_assert_str_eq(farm_text(provenance, "worker"), "w0");
    }
    _cleanup_(mf_freep) char *csv =
        farm_call(&farm, "GET", "/api/v1/export/tuned_fmoe.csv?simulated=1&batch=1", "", "", 200);
    int n = 0;
    for (const char *at = csv; (at = strstr(at, "sne_m16_0|fake:tne_m16_0")) != NULL; at++)
        n++;
    ck_assert_msg(n == 2 && !strstr(csv, "panel16"), "%s", csv);
}

/* A step fails in the second race. The fastest pipelines of two layouts contain this step, so the third
 * layout is chosen for every task. */
MF_TEST(drops_a_failed_layout)
{
    submit("");
    work_and_race();
    worker.wrong = "sne_m16_0";
    work_and_race();
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 2, "done");
    const cJSON *choice = mf_json_object(task, "layout");
    /* the other two layouts only have pipelines with block_m 32 left, which are 15 us slower */
    ck_assert_str_eq(farm_text(choice, "layout"), PP);
    check_reason(choice, PP, "won the races: 107.1 us in total over 2 token counts");
}

/* The task's own reason says why the finalists failed. */
MF_TEST(names_the_reason_of_a_failed_race)
{
    submit("");
    worker.wrong = "*";
    work_and_race();
    work_and_race();
    for (int task = 1; task <= 2; task++) {
        _cleanup_(cJSON_Deletep) cJSON *json = farm_wait_task(&farm, task, "failed");
        const char *reason = farm_text(json, "reason");
        ck_assert_msg(strncmp(reason, "all ", 4) == 0 &&
                          strstr(reason, " finalists failed in the race; the first is "
                                         "wrong: planted"),
                      "%s", reason);
    }
}

/* clang-format off */
static const struct {
    const char *options, *by, *layout;
    const char *listed, *why; /* reason that is given for the layout `listed` */
} others[] = {
    {",\"layout\":\"free\"", "free", "free", PR,
     "is available: each task chooses its own layout (layout=free)"},
    {",\"layout\":\"" PP "\"", "given", PP, PP, "is the layout that the batch specifies (layout)"},
};
/* clang-format on */

MF_TEST(accepts_given_layouts, .rows = MF_ARRAY_LEN(others))
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
    check_reason(choice, others[_i].listed, others[_i].why);
}

/* The layout choice does not wait for a task that fails in its race. */
MF_TEST(ignores_a_failed_task)
{
    submit("");
    work_and_race();
    for (int attempt = 0; attempt < 3; attempt++) {
        _cleanup_(cJSON_Deletep) cJSON *unit = work_until_race();
        ck_assert_int_eq(fake_worker_fail(&worker, unit, "no_memory", "no room"), 0);
    }
    cJSON_Delete(farm_wait_task(&farm, 2, "failed"));
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    check_reason(mf_json_object(task, "layout"), RR, "won the races: 50.0 us in total over 1 token counts");
    _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
    ck_assert_str_eq(farm_text(batch, "state"), "done");
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .setup = start, .teardown = stop});
}
