/* Promotion with workers of cardboard, whose times are given: a real moefarmd, two devices of a class where a case wants two, and
 * who gets which unit is decided by who has credit. What is known of the key is a row of a baseline, or of an earlier batch.
 *
 * The race is won by WINNER on the first device; KNOWN is the row to beat, and `known` of a case is the time of its first stage
 * there, where the winner's is 20 of 60 us. */
#include "common/base/buf.h"
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
#define SHAPE_OF(token) \
#    token ",2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define SHAPE                  SHAPE_OF(16)
#define BASELINE_HEAD          TUNED_COLUMNS ",pipeline"
#define BASELINE_ROW_OF(token) "gfx942,304," SHAPE_OF(token) ",16,0,30,a,0.0%,20,b,0.0%,50,0,0,0,1,1,"
#define BASELINE_ROW           BASELINE_ROW_OF(16)
#define WINNER                 "sne_m16_0"
#define KNOWN                  "sne_m16_2"
#define KNOWN_ROW              "fake:sort_m16|fake:" KNOWN "|fake:tne_m16_0"

static struct farm farm;
static struct fake_worker workers[2];
static double known_us[2], winner_us[2]; /* first stages, by worker */
static void *zmq;

static double us(const struct fake_worker *w, const char *name)
{
    size_t i = (size_t)(w - workers);
    if (strcmp(name, WINNER) == 0)
        return winner_us[i];
    if (strcmp(name, KNOWN) == 0)
        return known_us[i];
    if (strncmp(name, "sort", 4) == 0)
        return 10;
    return *name == 's' ? 50 : strcmp(name, "tne_m16_0") == 0 ? 30 : 60;
}

static void greet(int i, const char *running)
{
    ck_assert_int_eq(fake_worker_greet(&workers[i], running, FARM_DEADLINE_MS), 0);
}

/* model: "m", as the first one's; else its results are of no use to the others. */
static void join(int i, const char *model)
{
    ck_assert_int_eq(fake_worker_open(&workers[i], zmq, farm.hub, i ? "w1" : "w0"), 0);
    workers[i].us = us;
    workers[i].model = model;
    greet(i, "[]");
}

static void credit(int i)
{
    ck_assert_int_eq(fake_worker_ready(&workers[i]), 0);
}

static void known_takes(double us_of_both)
{
    known_us[0] = known_us[1] = us_of_both;
}

/* A farm with the first worker, for which the winner is clearly faster than the known row. */
static void start(void)
{
    zmq = zmq_ctx_new();
    farm_start(&farm, BEAT_MS);
    winner_us[0] = winner_us[1] = 20;
    known_takes(29);
    join(0, "m");
}

static void stop(void)
{
    fake_worker_close(&workers[0]);
    fake_worker_close(&workers[1]);
    farm_stop(&farm);
    (void)zmq_ctx_term(zmq);
}

static char *get(const char *path)
{
    return farm_call(&farm, "GET", path, "", "", 200);
}

static void post(const char *path)
{
    free(farm_call(&farm, "POST", path, "", "", 200));
}

/* The answer. shapes: rows, each with its line end as JSON has it; baseline: the pipeline cell of its row, and more rows behind
 * it; NULL: none. */
static char *hand_in(const char *shapes, const char *baseline, const char *options)
{
    struct mf_buf body;
    mf_buf_init(&body, 1u << 16);
    (void)mf_buf_addf(&body, "{\"name\":\"t\",\"csv\":\"" SHAPE_COLUMNS "\\n%s\",\"options\":{%s%s}", shapes,
                      strstr(options, "regret") ? "" : "\"regret\":\"none\"",
                      options + (strstr(options, "regret") ? 1 : 0));
    if (baseline) {
        _cleanup_(cJSON_Deletep) cJSON *text = NULL;
        char csv[2000];
        mf_format(csv, sizeof(csv), "%s\n%s%s\n", BASELINE_HEAD, BASELINE_ROW, baseline);
        text = cJSON_CreateString(csv);
        _cleanup_(mf_freep) char *quoted = mf_json_print(text);
        (void)mf_buf_addf(&body, ",\"baseline\":%s", quoted);
    }
    (void)mf_buf_adds(&body, "}");
    char *answer = farm_call(&farm, "POST", "/api/v1/batches", "application/json", body.data, 201);
    mf_buf_release(&body);
    return answer;
}

static void submit(const char *baseline, const char *options)
{
    _cleanup_(mf_freep) char *answer = hand_in(SHAPE "\\n", baseline, options);
}

static void answer_unit(int i, const cJSON *unit)
{
    ck_assert_int_eq(fake_worker_answer(&workers[i], unit), 0);
}

/* Answers what comes to worker i, and gives back the first unit of that kind. */
static cJSON *work_until(int i, const char *kind)
{
    cJSON *unit = fake_worker_work_until(&workers[i], kind, FARM_DEADLINE_MS);
    ck_assert_msg(unit, "no unit of kind %s comes to w%d", kind, i);
    return unit;
}

static void work_and_answer(int i, const char *kind)
{
    _cleanup_(cJSON_Deletep) cJSON *unit = work_until(i, kind);
    answer_unit(i, unit);
}

static const cJSON *promotion_of(const cJSON *task)
{
    return mf_json_object(task, "promotion");
}

/* Answers task 1's probes, until each of its steps is measured. */
static void probe_all(void)
{
    int answered = 0, measured = 0, steps = 1;
    while (measured < steps) {
        _cleanup_(cJSON_Deletep) cJSON *unit = work_until(0, "probe");
        answered += fake_unit_results(unit);
        answer_unit(0, unit);
        for (int64_t end = mf_now_ms() + FARM_DEADLINE_MS; measured < answered;) {
            _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
            measured = farm_number(task, "measured");
            steps = farm_number(task, "steps");
            ck_assert_int_lt(mf_now_ms(), end);
        }
    }
}

/* Until so many devices have compared in task 1. */
static void await_devices(int n)
{
    for (int64_t end = mf_now_ms() + FARM_DEADLINE_MS;;) {
        _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
        if (cJSON_GetArraySize(mf_json_array(promotion_of(task), "devices")) >= n)
            return;
        ck_assert_int_lt(mf_now_ms(), end);
    }
}

/* reasons: what the sentence has, up to NULL. */
static void check_decision(const cJSON *task, const char *decision, const char *const *reasons)
{
    const char *decided = farm_text(promotion_of(task), "decision"),
               *reason = farm_text(promotion_of(task), "reason");
    ck_assert_msg(strcmp(decided, decision) == 0, "%s, not %s: %s", decided, decision, reason);
    for (; *reasons; reasons++)
        ck_assert_msg(strstr(reason, *reasons), "'%s' is not in: %s", *reasons, reason);
}
#define REASONS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The same of a task, when it has come to that state. */
static void check_task(int task, const char *state, const char *decision, const char *const *reasons)
{
    _cleanup_(cJSON_Deletep) cJSON *json = farm_wait_task(&farm, task, state);
    check_decision(json, decision, reasons);
}

/* The exported row is the one that stands, with the time that it was measured at. */
static void check_export(int batch, const char *step, double expected_us)
{
    char path[100], field[40];
    mf_format(path, sizeof(path), "/api/v1/export/tuned_fmoe.csv?simulated=1&batch=%d", batch);
    _cleanup_(mf_freep) char *csv = get(path);
    if (!step) {
        ck_assert_msg(!strstr(csv, "gfx942,304"), "%s", csv);
        return;
    }
    ck_assert_msg(strstr(csv, step), "%s", csv);
    mf_format(field, sizeof(field), ",%.9g,0,0,0,", expected_us);
    ck_assert_msg(strstr(csv, field), "%s is not in %s", field, csv);
}

/* clang-format off */
static const struct {
    const char *what;
    double known;       /* on the first device */
    double winner2;     /* of the winner on the second, where KNOWN takes what it takes on the first; 0: there is none */
    const char *baseline, *wrong, *crash;
    int n_compare;      /* units on the first device */
    const char *decision, *reasons[3]; /* up to NULL */
    const char *stands; /* of the exported row; NULL: none is */
    double us;
} cases[] = {
    {"a clear win, one device", 29, 0, KNOWN_ROW, NULL, NULL, 1, "promoted",
     {"FASTER on w0, -13.0%", "no other device"}, WINNER, 60.6},
    {"a win of one percent", 20.6, 0, KNOWN_ROW, NULL, NULL, 1, "kept",
     {"SAME on w0, -1.0%", "3% less"}, KNOWN, 61.206},
    {"both devices", 29, 20, KNOWN_ROW, NULL, NULL, 1, "promoted", {"FASTER on w0", "FASTER on w1"}, WINNER, 60.6},
    {"a win on one device, a loss on the other", 29, 40, KNOWN_ROW, NULL, NULL, 1, "kept",
     {"FASTER on w0, -13.0%", "SLOWER on w1, +15.9%"}, KNOWN, 69.69},
    {"a known row of a kernel that is gone", 29, 0, "fake:sort_m16|fake:sne_m16_9|fake:tne_m16_0", NULL, NULL, 0, "promoted",
     {"does not run", "fake:sne_m16_9 is not there any more"}, WINNER, 60.6},
    {"a known row that is no pipeline", 29, 0, "fake:sort_m16|fake:tne_m16_0", NULL, NULL, 0, "promoted",
     {"does not run", "do not cover each op once"}, WINNER, 60.6},
    {"a known row that is no text of one", 29, 0, "nonsense", NULL, NULL, 0, "promoted", {"no pipeline"}, WINNER, 60.6},
    {"a known row that is wrong", 29, 0, KNOWN_ROW, KNOWN, NULL, 1, "promoted", {"is wrong", "planted"}, WINNER, 60.6},
    {"a known row that kills its runner, twice", 29, 0, KNOWN_ROW, NULL, KNOWN, 2, "promoted",
     {"does not run", "planted"}, WINNER, 60.6},
    {"the known row wins the race", 10, 0, KNOWN_ROW, NULL, NULL, 0, "kept", {"won by the known row"}, KNOWN, 50.5},
};
/* clang-format on */

/* Merged into the table that the baseline was, which says 50 us of a better day: what was promoted takes its place, and nothing else
 * does. */
static void check_merge(const char *stands, const char *decision, const char *baseline)
{
    char csv[2000];
    mf_format(csv, sizeof(csv), "%s,model,routing,provenance\n%s%s,m,uniform,moefarm:race\n", BASELINE_HEAD,
              BASELINE_ROW, baseline);
    _cleanup_(mf_freep) char *answer =
        farm_call(&farm, "POST", "/api/v1/export/merge?simulated=1&batch=1", "text/csv", csv, 200);
    bool promoted = strcmp(decision, "promoted") == 0;
    ck_assert_msg((strstr(answer, "promoted over the known row") != NULL) == promoted, "%s", answer);
    ck_assert_msg((strstr(answer, "moefarm:promoted") != NULL) == promoted, "%s", answer);
    ck_assert_msg(!promoted || strstr(answer, stands), "%s", answer);
}

START_TEST(decides)
{
    known_takes(cases[_i].known);
    if (cases[_i].winner2 > 0) {
        winner_us[1] = cases[_i].winner2;
        join(1, "m");
    }
    submit(cases[_i].baseline, "");
    work_and_answer(0, "race");
    for (int i = 0; i < cases[_i].n_compare; i++) {
        workers[0].wrong = cases[_i].wrong;
        workers[0].crash = cases[_i].crash;
        work_and_answer(0, "compare");
    }
    if (cases[_i].winner2 > 0) {
        credit(0); /* it has credit, and does not get what is another device's */
        work_and_answer(1, "compare");
    }
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    check_decision(task, cases[_i].decision, cases[_i].reasons);
    ck_assert_str_eq(farm_text(promotion_of(task), "source"), "line 2 of the baseline");
    check_export(1, cases[_i].stands, cases[_i].us);
    check_merge(cases[_i].stands, cases[_i].decision, cases[_i].baseline);
    _cleanup_(mf_freep) char *left = get("/api/v1/export/left_out?simulated=1");
    ck_assert_msg(!strstr(left, "names no pipeline"), "%s", left);
}
END_TEST

/* Task 1's known row is a row of AITER's: it stays, and nothing of the task was ever measured. */
static void check_spared(void)
{
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    const cJSON *promotion = promotion_of(task);
    check_decision(task, "undecided", REASONS("names no pipeline", "it stays"));
    ck_assert_str_eq(farm_text(promotion, "source"), "line 2 of the baseline");
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(promotion, "new")));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(promotion, "new_us")));
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(promotion, "names")), 0);
    ck_assert_int_eq(farm_number(task, "steps"), 0);
    check_export(1, NULL, 0);
    check_merge(NULL, "undecided", "");
    _cleanup_(mf_freep) char *left = get("/api/v1/export/left_out?simulated=1");
    ck_assert_msg(strstr(left, "names no pipeline"), "%s", left);
}

/* A row of AITER's can be compared with nothing: whoever hands it in is told so by the answer, and no device works for it. _i: a worker
 * of its class is there; the batch names the class, and none is; it names none, and the first worker to come is of it. */
START_TEST(a_row_of_somebody_elses_is_decided_at_once)
{
    if (_i > 0) {
        ck_assert_int_eq(farm_end(&farm.daemon), 0);
        farm_start_daemon(&farm, BEAT_MS);
    }
    _cleanup_(mf_freep) char *answer = hand_in(SHAPE "\\n", "", _i == 1 ? ",\"classes\":\"gfx942/304\"" : "");
    ck_assert_msg((strstr(answer, "\"undecided\":1") != NULL) == (_i < 2), "%s", answer);
    ck_assert_msg(strstr(answer, "names no pipeline, only a,") && strstr(answer, "it stays"), "%s", answer);
    if (_i == 2)
        join(1, "m");
    check_spared();
    _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
    ck_assert_str_eq(farm_text(batch, "state"), "done");
    /* Another batch's work is what comes next */
    if (_i == 0) {
        submit(NULL, "");
        work_and_answer(0, "race");
        cJSON_Delete(farm_wait_task(&farm, 2, "done"));
        check_export(2, WINNER, 60.6);
    }
}
END_TEST

/* Of a ladder with such a row the others are tuned, and do not wait for it. */
START_TEST(the_rest_of_its_layer_goes_on)
{
    _cleanup_(mf_freep) char *answer = hand_in(SHAPE "\\n" SHAPE_OF(32) "\\n", "", "");
    work_and_answer(0, "race");
    check_task(2, "done", "promoted", REASONS("nothing is known"));
    check_task(1, "done", "undecided", REASONS("names no pipeline"));
    check_export(1, WINNER, 60.6);
}
END_TEST

/* Who only asks what would be tried is told that. */
START_TEST(an_enumeration_decides_nothing)
{
    _cleanup_(mf_freep) char *answer = hand_in(SHAPE "\\n", "", ",\"search\":\"enumerate\"");
    ck_assert_msg(strstr(answer, "names no pipeline"), "%s", answer);
    credit(0);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&workers[0], MF_MESSAGE_UNIT, FARM_DEADLINE_MS);
    answer_unit(0, unit);
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    ck_assert_msg(strstr(farm_text(task, "reason"), "steps would be tried"), "%s", farm_text(task, "reason"));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(task, "promotion")));
}
END_TEST

/* A row that was kept is not the row of the race that it lost: samples, spread and provenance are of the comparison. */
START_TEST(a_kept_row_says_where_its_time_is_from)
{
    known_takes(20.6);
    submit(KNOWN_ROW, "");
    work_and_answer(0, "compare");
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    const cJSON *config = mf_json_object(task, "config"), *promotion = promotion_of(task);
    const cJSON *device = cJSON_GetArrayItem(mf_json_array(promotion, "devices"), 0);
    ck_assert_str_eq(farm_text(mf_json_object(config, "provenance"), "method"), "compare");
    ck_assert_double_eq_tol(farm_double(device, "mid"), 60 / 60.6 - 1, 1e-3);
    ck_assert_int_eq(farm_number(device, "n"), 20);
    ck_assert_str_eq(farm_text(device, "verdict"), "SAME");
    /* The new one was too little faster, but faster: it is no tie */
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(config, "ties")), 0);
    _cleanup_(mf_freep) char *csv = get("/api/v1/export/tuned_fmoe.csv?simulated=1");
    ck_assert_msg(strstr(csv, ",20,0.5000,moefarm:race"), "%s", csv);
}
END_TEST

/* One that the samples do not tell from the new one is its tie. */
START_TEST(a_row_as_fast_is_kept_as_a_tie)
{
    known_takes(20);
    submit(KNOWN_ROW, "");
    work_and_answer(0, "compare");
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    check_decision(task, "kept", REASONS("SAME on w0, +0.0%"));
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(mf_json_object(task, "config"), "ties")), 1);
}
END_TEST

/* Without a baseline it is the farm's own row, and a rerun of the same kernels changes no row. */
START_TEST(a_rerun_keeps_its_rows)
{
    submit(NULL, ",\"promote\":\"improved\"");
    work_and_answer(0, "race");
    check_task(1, "done", "promoted", REASONS("nothing is known"));
    submit(NULL, ",\"promote\":\"improved\"");
    work_and_answer(0, "race");
    _cleanup_(cJSON_Deletep) cJSON *two = farm_wait_task(&farm, 2, "done");
    check_decision(two, "kept", REASONS("won by the known row"));
    ck_assert_str_eq(farm_text(promotion_of(two), "source"), "batch 1");
    check_export(2, WINNER, 60.6);
    /* Another kernel that is 10% faster beats it; one that is 1% faster does not, whose batch then stands for the next */
    known_us[0] = 14;
    submit(NULL, ",\"promote\":\"improved\"");
    work_and_answer(0, "compare");
    check_task(3, "done", "promoted", REASONS("FASTER on w0", "no other device"));
    known_us[0] = 20.6;
    submit(NULL, ",\"promote\":\"improved\",\"min_effect\":0.05");
    work_and_answer(0, "compare");
    check_task(4, "done", "kept", REASONS("SAME on w0", "5% less"));
    check_export(4, KNOWN, 61.206);
    /* And where every row is to be replaced, it is */
    submit(NULL, "");
    work_and_answer(0, "race");
    _cleanup_(cJSON_Deletep) cJSON *five = farm_wait_task(&farm, 5, "done");
    ck_assert(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(five, "promotion")));
    check_export(5, WINNER, 60.6);
}
END_TEST

/* _i: whether it is drained while it is to compare, or is of another model of the class and never asked. */
START_TEST(a_second_device_that_does_not_count)
{
    join(1, _i ? "other" : "m");
    submit(KNOWN_ROW, "");
    work_and_answer(0, "compare");
    credit(0);
    if (!_i) {
        cJSON_Delete(farm_wait_task(&farm, 1, "comparing"));
        check_export(1, NULL, 0); /* nobody's row yet */
        post("/api/v1/workers/2/drain");
    }
    check_task(1, "done", "promoted", REASONS("FASTER on w0", "no other device"));
}
END_TEST

/* A step whose time cannot be has no place in a new row. The known row that has it is judged by its own time. */
START_TEST(a_step_that_was_timed_badly)
{
    known_takes(0.5); /* beyond the peak of its device */
    submit(KNOWN_ROW, "");
    _cleanup_(cJSON_Deletep) cJSON *race = work_until(0, "race");
    _cleanup_(mf_freep) char *steps = get("/api/v1/tasks/1/steps?status=implausible");
    ck_assert_msg(strstr(steps, KNOWN), "%s", steps);
    known_us[0] = 20.6;
    answer_unit(0, race);
    work_and_answer(0, "compare");
    check_task(1, "done", "kept", REASONS("SAME on w0"));
    check_export(1, KNOWN, 61.206);
}
END_TEST

/* One worker measures all of a shape: but what another device says is another's. */
START_TEST(a_grouped_shape_asks_another_device_too)
{
    join(1, "m");
    submit(KNOWN_ROW, ",\"shape_grouped\":1");
    work_and_answer(0, "compare");
    credit(0);
    work_and_answer(1, "compare");
    check_task(1, "done", "promoted", REASONS("FASTER on w0", "FASTER on w1"));
}
END_TEST

/* A unit that another worker should try again is no other's where there is no other of its model: it is not waited for. */
START_TEST(a_retry_that_no_other_may_take)
{
    join(1, "other");
    submit(KNOWN_ROW, "");
    workers[0].crash = KNOWN;
    _cleanup_(cJSON_Deletep) cJSON *unit = work_until(0, "compare");
    credit(1);
    answer_unit(0, unit);
    work_and_answer(0, "compare");
    check_task(1, "done", "promoted", REASONS("does not run"));
}
END_TEST

/* _i: in the first comparison; in the second; before the second was granted, and the first device is back before the other,
 * for which it must not stand in. */
START_TEST(a_coordinator_that_is_killed_goes_on)
{
    char key[FAKE_UNIT_KEY_MAX], running[FAKE_UNIT_KEY_MAX + 4];
    join(1, "m");
    submit(KNOWN_ROW, "");
    _cleanup_(cJSON_Deletep) cJSON *first = work_until(0, "compare");
    if (_i)
        answer_unit(0, first);
    _cleanup_(cJSON_Deletep) cJSON *unit = _i == 1 ? work_until(1, "compare") : cJSON_Duplicate(first, true);
    if (_i == 2)
        await_devices(1);
    farm_kill_daemon(&farm);
    farm_start_daemon(&farm, BEAT_MS);
    fake_unit_key(unit, key);
    mf_format(running, sizeof(running), "[{%s}]", key);
    greet(_i == 1, _i < 2 ? running : "[]");
    credit(0);
    greet(_i != 1, "[]");
    if (_i < 2)
        answer_unit(_i, unit);
    if (_i != 1)
        work_and_answer(1, "compare");
    check_task(1, "done", "promoted", REASONS("FASTER on w0", "FASTER on w1"));
    check_export(1, WINNER, 60.6);
}
END_TEST

START_TEST(a_cancelled_comparison_decides_nothing)
{
    submit(KNOWN_ROW, "");
    _cleanup_(cJSON_Deletep) cJSON *unit = work_until(0, "compare");
    post("/api/v1/batches/1/cancel");
    _cleanup_(cJSON_Deletep) cJSON *cancel =
        fake_worker_await(&workers[0], MF_MESSAGE_CANCEL, FARM_DEADLINE_MS);
    ck_assert_ptr_nonnull(cancel);
    answer_unit(0, unit); /* late: samples, no decision */
    check_task(1, "cancelled", "undecided", REASONS("cancelled"));
    check_export(1, NULL, 0);
}
END_TEST

/* What was decided before stands: only the races for regret are left out. */
START_TEST(a_decision_outlives_its_task)
{
    known_takes(20.6);
    submit(KNOWN_ROW, ",\"regret\":\"balanced\"");
    work_and_answer(0, "compare");
    credit(0);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&workers[0], MF_MESSAGE_UNIT, FARM_DEADLINE_MS);
    ck_assert_str_eq(farm_text(unit, "kind"), "race");
    post("/api/v1/batches/1/cancel");
    check_task(1, "cancelled", "kept", REASONS("SAME on w0"));
    check_export(1, KNOWN, 61.206);
}
END_TEST

START_TEST(a_comparison_that_cannot_be_run_decides_nothing)
{
    submit(KNOWN_ROW, "");
    for (int i = 0; i < 3; i++) {
        _cleanup_(cJSON_Deletep) cJSON *unit = work_until(0, "compare");
        ck_assert_int_eq(fake_worker_fail(&workers[0], unit, "no_memory", "no room"), 0);
    }
    check_task(1, "done", "undecided", REASONS("was not compared", "no room"));
    check_export(1, NULL, 0);
}
END_TEST

/* A layer's weights are stored once: where known rows stand unless they are beaten, the layout that they have is the layer
 * model's, though another would be faster. */
START_TEST(the_layout_of_known_rows_stays)
{
    submit("fake:sort_m16|fake:sne_m16_1|fake:tne_m16_1", "");
    work_and_answer(0, "race");
    check_task(1, "done", "kept", REASONS("won by the known row"));
    _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
    const cJSON *layout = cJSON_GetArrayItem(mf_json_array(batch, "layouts"), 0);
    ck_assert_str_eq(farm_text(layout, "layout"), "w1=panel16 w2=panel16");
    check_export(1, "sne_m16_1", 121.2);
}
END_TEST

/* Also where another layout serves more token counts: rows in that one could not stand beside those that are kept. */
START_TEST(the_layout_of_known_rows_stays_where_it_serves_fewer)
{
    free(hand_in(SHAPE "\\n" SHAPE_OF(32) "\\n", "fake:sort_m16|fake:sne_m16_1|fake:tne_m16_1", ""));
    _cleanup_(cJSON_Deletep) cJSON *first = work_until(0, "enumerate");
    const int n_variants = workers[0].n_variants;
    workers[0].n_variants = 1; /* at 32 tokens, which go first, nothing in panel16 */
    answer_unit(0, first);
    workers[0].n_variants = n_variants;
    work_and_answer(0, "enumerate");
    work_and_answer(0, "race");
    check_task(1, "done", "kept", REASONS("won by the known row"));
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 2, "failed");
    const char *reason = farm_text(task, "reason");
    ck_assert_msg(strstr(reason, "no legal pipeline in w1=panel16 w2=panel16"), "%s", reason);
}
END_TEST

/* Known rows of two layouts cannot all stay: those that are not in the one that is chosen go. */
START_TEST(known_rows_in_two_layouts)
{
    free(hand_in(SHAPE "\\n" SHAPE_OF(32) "\\n",
                 "fake:sort_m16|fake:sne_m16_1|fake:tne_m16_1\n" BASELINE_ROW_OF(32) KNOWN_ROW, ""));
    work_and_answer(0, "race");
    work_and_answer(0, "race");
    check_task(1, "done", "promoted",
               REASONS("w1=panel16 w2=panel16", "w1=row w2=row", "a table does not mix them"));
}
END_TEST

/* So where a submission says where the weights lie already: another layout is faster, and not asked for. */
START_TEST(the_layout_that_is_given_stays)
{
    submit(NULL, ",\"layout\":\"w1=panel16 w2=panel16\"");
    work_and_answer(0, "race");
    cJSON_Delete(farm_wait_task(&farm, 1, "done"));
    _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
    const cJSON *layouts = mf_json_array(batch, "layouts");
    ck_assert_str_eq(farm_text(cJSON_GetArrayItem(layouts, 0), "layout"), "w1=panel16 w2=panel16");
    ck_assert_str_eq(farm_text(cJSON_GetObjectItem(batch, "options"), "layout"), "w1=panel16 w2=panel16");
    check_export(1, "sne_m16_1", 121.2);
}
END_TEST

/* And a shape that has no pipeline in it says so, and takes no other. */
START_TEST(a_layout_that_nothing_wants)
{
    submit(NULL, ",\"layout\":\"w1=panel32 w2=panel32\"");
    probe_all();
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "failed");
    ck_assert_msg(strstr(farm_text(task, "reason"), "no right step covers gather+gemm1+act") != NULL, "%s",
                  farm_text(task, "reason"));
    _cleanup_(mf_freep) char *why = get("/api/v1/tasks/1/rejections?limit=200");
    ck_assert_msg(
        strstr(why, "it wants w1=panel16, the weights of batch 1 lie in w1=panel32 w2=panel32 (layout)") !=
            NULL,
        "%s", why);
    check_export(1, NULL, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("promote");
    TCase *c = tcase_create("promote");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_loop_test(c, decides, 0, MF_ARRAY_LEN(cases));
    tcase_add_loop_test(c, a_row_of_somebody_elses_is_decided_at_once, 0, 3);
    tcase_add_test(c, the_rest_of_its_layer_goes_on);
    tcase_add_test(c, an_enumeration_decides_nothing);
    tcase_add_test(c, a_row_as_fast_is_kept_as_a_tie);
    tcase_add_test(c, a_kept_row_says_where_its_time_is_from);
    tcase_add_test(c, a_rerun_keeps_its_rows);
    tcase_add_loop_test(c, a_second_device_that_does_not_count, 0, 2);
    tcase_add_test(c, a_step_that_was_timed_badly);
    tcase_add_test(c, a_grouped_shape_asks_another_device_too);
    tcase_add_test(c, a_retry_that_no_other_may_take);
    tcase_add_loop_test(c, a_coordinator_that_is_killed_goes_on, 0, 3);
    tcase_add_test(c, a_cancelled_comparison_decides_nothing);
    tcase_add_test(c, the_layout_that_is_given_stays);
    tcase_add_test(c, a_layout_that_nothing_wants);
    tcase_add_test(c, a_decision_outlives_its_task);
    tcase_add_test(c, a_comparison_that_cannot_be_run_decides_nothing);
    tcase_add_test(c, the_layout_of_known_rows_stays);
    tcase_add_test(c, the_layout_of_known_rows_stays_where_it_serves_fewer);
    tcase_add_test(c, known_rows_in_two_layouts);
    suite_add_tcase(suite, c);
    return mf_check_main(suite);
}
