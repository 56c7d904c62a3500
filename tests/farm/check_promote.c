/* Tests promotion with a real moefarmd and with one or two fake workers (devices) whose times are given.
 * READY messages decide which worker gets which unit. The known row comes from a baseline or from an earlier
 * batch.
 *
 * WINNER is the first stage of the pipeline that wins the race on the first device, and takes 20 of its 60
 * us. KNOWN is the first stage of the known row. The member `known` of a test case is the time of KNOWN on
 * the first device. */
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
static double known_us[2], winner_us[2]; /* times of KNOWN and WINNER, by worker */
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

/* Connects worker i. Results of a device model other than "m" do not count for the first worker's model. */
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

static void set_known_us(double us_of_both)
{
    known_us[0] = known_us[1] = us_of_both;
}

/* Starts a farm with the first worker. On this worker the winner is clearly faster than the known row. */
static void start(void)
{
    zmq = zmq_ctx_new();
    farm_start(&farm, BEAT_MS);
    winner_us[0] = winner_us[1] = 20;
    set_known_us(29);
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

/* Submits a batch and returns the answer, which the caller frees. shapes: CSV rows with JSON-escaped line
 * ends. baseline: pipeline cell of the baseline's first row, optionally followed by further rows; NULL for no
 * baseline. */
static char *submit_shapes(const char *shapes, const char *baseline, const char *options)
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
    _cleanup_(mf_freep) char *answer = submit_shapes(SHAPE "\\n", baseline, options);
}

static void answer_unit(int i, const cJSON *unit)
{
    ck_assert_int_eq(fake_worker_answer(&workers[i], unit), 0);
}

/* Answers units for worker i up to the first unit of the kind, and returns that unit. */
static cJSON *work_until(int i, const char *kind)
{
    cJSON *unit = fake_worker_work_until(&workers[i], kind, FARM_DEADLINE_MS);
    ck_assert_msg(unit, "no unit of kind %s for w%d", kind, i);
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

/* Answers the probes of task 1 until all its steps are measured. */
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

/* Waits until n devices have completed their comparison for task 1. */
static void await_devices(int n)
{
    for (int64_t end = mf_now_ms() + FARM_DEADLINE_MS;;) {
        _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
        if (cJSON_GetArraySize(mf_json_array(promotion_of(task), "devices")) >= n)
            return;
        ck_assert_int_lt(mf_now_ms(), end);
    }
}

/* Checks the decision and its reason. reasons: substrings that the reason must contain, ended by NULL. */
static void check_decision(const cJSON *task, const char *decision, const char *const *reasons)
{
    const char *decided = farm_text(promotion_of(task), "decision"),
               *reason = farm_text(promotion_of(task), "reason");
    ck_assert_msg(strcmp(decided, decision) == 0, "the decision is %s, expected %s: %s", decided, decision,
                  reason);
    for (; *reasons; reasons++)
        ck_assert_msg(strstr(reason, *reasons), "'%s' is not in: %s", *reasons, reason);
}
#define REASONS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Waits until the task reaches the state, then checks its decision. */
static void check_task(int task, const char *state, const char *decision, const char *const *reasons)
{
    _cleanup_(cJSON_Deletep) cJSON *json = farm_wait_task(&farm, task, state);
    check_decision(json, decision, reasons);
}

/* Checks that the exported row contains the step and the time. If step is NULL, checks that no row is
 * exported. */
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
    double known;       /* time of KNOWN on the first device */
    /* time of WINNER on the second device, where KNOWN takes as long as on the first device; 0 if there is no
     * second device */
    double winner2;
    const char *baseline, *wrong, *crash;
    int n_compare;      /* number of compare units that the first device gets */
    const char *decision, *reasons[3]; /* reasons: ended by NULL */
    const char *exported_step; /* step of the exported row; NULL: no row */
    double us;
} decisions[] = {
    {"a clear win, one device", 29, 0, KNOWN_ROW, NULL, NULL, 1, "promoted",
     {"FASTER on w0, -13.0%", "no other device"}, WINNER, 60.6},
    {"a win of one percent", 20.6, 0, KNOWN_ROW, NULL, NULL, 1, "kept",
     {"SAME on w0, -1.0%", "3% less"}, KNOWN, 61.206},
    {"both devices", 29, 20, KNOWN_ROW, NULL, NULL, 1, "promoted",
     {"FASTER on w0", "FASTER on w1"}, WINNER, 60.6},
    {"a win on one device, a loss on the other", 29, 40, KNOWN_ROW, NULL, NULL, 1, "kept",
     {"FASTER on w0, -13.0%", "SLOWER on w1, +15.9%"}, KNOWN, 69.69},
    {"a known row with a kernel that no longer exists", 29, 0, "fake:sort_m16|fake:sne_m16_9|fake:tne_m16_0",
     NULL, NULL, 0, "promoted",
     {"does not run", "fake:sne_m16_9 cannot run"}, WINNER, 60.6},
    {"a known row that is not a complete pipeline", 29, 0, "fake:sort_m16|fake:tne_m16_0", NULL, NULL, 0,
     "promoted",
     {"does not run", "do not cover each op once"}, WINNER, 60.6},
    {"a known row with an invalid pipeline text", 29, 0, "nonsense", NULL, NULL, 0, "promoted",
     {"invalid pipeline"}, WINNER, 60.6},
    {"a known row that is wrong", 29, 0, KNOWN_ROW, KNOWN, NULL, 1, "promoted",
     {"is wrong", "planted"}, WINNER, 60.6},
    {"a known row that crashes its runner twice", 29, 0, KNOWN_ROW, NULL, KNOWN, 2, "promoted",
     {"does not run", "planted"}, WINNER, 60.6},
    {"the known row wins the race", 10, 0, KNOWN_ROW, NULL, NULL, 0, "kept",
     {"the known row won"}, KNOWN, 50.5},
};
/* clang-format on */

/* Merges the export into the baseline's table. The row of this table has a better time (50 us), so only a
 * promoted row replaces it. */
static void check_merge(const char *exported_step, const char *decision, const char *baseline)
{
    char csv[2000];
    mf_format(csv, sizeof(csv), "%s,model,routing,provenance\n%s%s,m,uniform,moefarm:race\n", BASELINE_HEAD,
              BASELINE_ROW, baseline);
    _cleanup_(mf_freep) char *answer =
        farm_call(&farm, "POST", "/api/v1/export/merge?simulated=1&batch=1", "text/csv", csv, 200);
    bool promoted = strcmp(decision, "promoted") == 0;
    ck_assert_msg((strstr(answer, "promoted over the known row") != NULL) == promoted, "%s", answer);
    ck_assert_msg((strstr(answer, "moefarm:promoted") != NULL) == promoted, "%s", answer);
    ck_assert_msg(!promoted || strstr(answer, exported_step), "%s", answer);
}

MF_TEST(decides_promotion, .rows = MF_ARRAY_LEN(decisions))
{
    set_known_us(decisions[_i].known);
    if (decisions[_i].winner2 > 0) {
        winner_us[1] = decisions[_i].winner2;
        join(1, "m");
    }
    submit(decisions[_i].baseline, "");
    work_and_answer(0, "race");
    for (int i = 0; i < decisions[_i].n_compare; i++) {
        workers[0].wrong = decisions[_i].wrong;
        workers[0].crash = decisions[_i].crash;
        work_and_answer(0, "compare");
    }
    if (decisions[_i].winner2 > 0) {
        credit(0); /* the first worker asks for a unit, but the comparison needs another device */
        work_and_answer(1, "compare");
    }
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    check_decision(task, decisions[_i].decision, decisions[_i].reasons);
    ck_assert_str_eq(farm_text(promotion_of(task), "source"), "line 2 of the baseline");
    check_export(1, decisions[_i].exported_step, decisions[_i].us);
    check_merge(decisions[_i].exported_step, decisions[_i].decision, decisions[_i].baseline);
    _cleanup_(mf_freep) char *left = get("/api/v1/export/left_out?simulated=1");
    ck_assert_msg(!strstr(left, "names no pipeline"), "%s", left);
}

/* Checks that task 1, whose known row is AITER's, is undecided and was never measured, and that it keeps the
 * known row. */
static void check_undecided(void)
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

/* A known row without a pipeline cannot be compared. The answer to the submission reports such a row, and no
 * device measures its shape. _i: 0 a worker of the class is connected; 1 no worker is connected, but the
 * batch names the class; 2 the batch names no class, and the first worker connects later. */
MF_TEST(decides_rows_without_pipeline_at_once, .rows = 3)
{
    if (_i > 0) {
        ck_assert_int_eq(farm_end(&farm.daemon), 0);
        farm_start_daemon(&farm, BEAT_MS);
    }
    _cleanup_(mf_freep) char *answer =
        submit_shapes(SHAPE "\\n", "", _i == 1 ? ",\"classes\":\"gfx942/304\"" : "");
    ck_assert_msg((strstr(answer, "\"undecided\":1") != NULL) == (_i < 2), "%s", answer);
    ck_assert_msg(strstr(answer, "names no pipeline (kernel: a)") && strstr(answer, "The row is kept"), "%s",
                  answer);
    if (_i == 2)
        join(1, "m");
    check_undecided();
    _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
    ck_assert_str_eq(farm_text(batch, "state"), "done");
    /* the unit that the worker gets belongs to the second batch */
    if (_i == 0) {
        submit(NULL, "");
        work_and_answer(0, "race");
        cJSON_Delete(farm_wait_task(&farm, 2, "done"));
        check_export(2, WINNER, 60.6);
    }
}

/* A known row without a pipeline does not delay the layer model: the other shapes are tuned and do not wait.
 */
MF_TEST(tunes_the_rest_of_the_layer)
{
    _cleanup_(mf_freep) char *answer = submit_shapes(SHAPE "\\n" SHAPE_OF(32) "\\n", "", "");
    work_and_answer(0, "race");
    check_task(2, "done", "promoted", REASONS("no known row"));
    check_task(1, "done", "undecided", REASONS("names no pipeline"));
    check_export(1, WINNER, 60.6);
}

/* With search=enumerate the answer reports a known row without a pipeline, but there is no decision. */
MF_TEST(enumeration_decides_nothing)
{
    _cleanup_(mf_freep) char *answer = submit_shapes(SHAPE "\\n", "", ",\"search\":\"enumerate\"");
    ck_assert_msg(strstr(answer, "names no pipeline"), "%s", answer);
    credit(0);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&workers[0], MF_MESSAGE_UNIT, FARM_DEADLINE_MS);
    answer_unit(0, unit);
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    ck_assert_msg(strstr(farm_text(task, "reason"), "steps would be measured"), "%s",
                  farm_text(task, "reason"));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(task, "promotion")));
}

/* A kept row gets its samples, spread and provenance from the comparison, not from the race, which the kept
 * row lost. */
MF_TEST(kept_row_has_times_of_comparison)
{
    set_known_us(20.6);
    submit(KNOWN_ROW, "");
    work_and_answer(0, "compare");
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    const cJSON *config = mf_json_object(task, "config"), *promotion = promotion_of(task);
    const cJSON *device = cJSON_GetArrayItem(mf_json_array(promotion, "devices"), 0);
    ck_assert_str_eq(farm_text(mf_json_object(config, "provenance"), "method"), "compare");
    ck_assert_double_eq_tol(farm_double(device, "mid"), 60 / 60.6 - 1, 1e-3);
    ck_assert_int_eq(farm_number(device, "n"), 20);
    ck_assert_str_eq(farm_text(device, "verdict"), "SAME");
    /* The new row is faster by less than required, but not statistically tied. */
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(config, "ties")), 0);
    _cleanup_(mf_freep) char *csv = get("/api/v1/export/tuned_fmoe.csv?simulated=1");
    ck_assert_msg(strstr(csv, ",20,0.5000,moefarm:race"), "%s", csv);
}

/* A kept row that is statistically tied with the new row is listed as a tie. */
MF_TEST(lists_a_kept_tie)
{
    set_known_us(20);
    submit(KNOWN_ROW, "");
    work_and_answer(0, "compare");
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    check_decision(task, "kept", REASONS("SAME on w0, +0.0%"));
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(mf_json_object(task, "config"), "ties")), 1);
}

/* Without a baseline the known row is the farm's own row. A rerun with the same kernels keeps it. */
MF_TEST(rerun_keeps_rows)
{
    submit(NULL, ",\"promote\":\"improved\"");
    work_and_answer(0, "race");
    check_task(1, "done", "promoted", REASONS("no known row"));
    submit(NULL, ",\"promote\":\"improved\"");
    work_and_answer(0, "race");
    _cleanup_(cJSON_Deletep) cJSON *two = farm_wait_task(&farm, 2, "done");
    check_decision(two, "kept", REASONS("the known row won"));
    ck_assert_str_eq(farm_text(promotion_of(two), "source"), "batch 1");
    check_export(2, WINNER, 60.6);
    /* A kernel that is 10% faster is promoted. A kernel that is 1% faster is not promoted, so the kept row
     * stays the known row of the next batch. */
    known_us[0] = 14;
    submit(NULL, ",\"promote\":\"improved\"");
    work_and_answer(0, "compare");
    check_task(3, "done", "promoted", REASONS("FASTER on w0", "no other device"));
    known_us[0] = 20.6;
    submit(NULL, ",\"promote\":\"improved\",\"min_effect\":0.05");
    work_and_answer(0, "compare");
    check_task(4, "done", "kept", REASONS("SAME on w0", "5% less"));
    check_export(4, KNOWN, 61.206);
    /* without promote=improved the new row always replaces the known row */
    submit(NULL, "");
    work_and_answer(0, "race");
    _cleanup_(cJSON_Deletep) cJSON *five = farm_wait_task(&farm, 5, "done");
    ck_assert(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(five, "promotion")));
    check_export(5, WINNER, 60.6);
}

/* _i: 0 the second device is drained before it compares; 1 the second device is of another model of the
 * class, so it gets no unit. */
MF_TEST(ignores_drained_or_other_device, .rows = 2)
{
    join(1, _i ? "other" : "m");
    submit(KNOWN_ROW, "");
    work_and_answer(0, "compare");
    credit(0);
    if (!_i) {
        cJSON_Delete(farm_wait_task(&farm, 1, "comparing"));
        check_export(1, NULL, 0); /* no row is exported before the decision */
        post("/api/v1/workers/2/drain");
    }
    check_task(1, "done", "promoted", REASONS("FASTER on w0", "no other device"));
}

/* A step with an implausible time is not used in a new row. A known row with this step is judged by its times
 * in the comparison. */
MF_TEST(skips_implausible_steps)
{
    set_known_us(0.4); /* shorter than any GEMM on a GPU */
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

/* With shape_grouped a single worker measures a shape, but the comparison still uses a second device. */
MF_TEST(grouped_shape_uses_second_device)
{
    join(1, "m");
    submit(KNOWN_ROW, ",\"shape_grouped\":1");
    work_and_answer(0, "compare");
    credit(0);
    work_and_answer(1, "compare");
    check_task(1, "done", "promoted", REASONS("FASTER on w0", "FASTER on w1"));
}

/* A crashed comparison is retried on the same worker if no other worker has the same model. */
MF_TEST(retries_on_the_only_worker)
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

/* _i: 0 the coordinator is killed during the first comparison; 1 during the second comparison; 2 before the
 * second comparison is granted. In case 2 the first device reconnects first, but must not run the second
 * comparison. */
MF_TEST(survives_coordinator_kill, .rows = 3)
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

MF_TEST(cancelled_comparison_decides_nothing)
{
    submit(KNOWN_ROW, "");
    _cleanup_(cJSON_Deletep) cJSON *unit = work_until(0, "compare");
    post("/api/v1/batches/1/cancel");
    _cleanup_(cJSON_Deletep) cJSON *cancel =
        fake_worker_await(&workers[0], MF_MESSAGE_CANCEL, FARM_DEADLINE_MS);
    ck_assert_ptr_nonnull(cancel);
    answer_unit(0, unit); /* a late answer: its samples are stored, but it decides nothing */
    check_task(1, "cancelled", "undecided", REASONS("cancelled"));
    check_export(1, NULL, 0);
}

/* If the batch is cancelled after the decision, the decision stands. The cancellation only omits the races
 * for regret. */
MF_TEST(decision_survives_cancellation)
{
    set_known_us(20.6);
    submit(KNOWN_ROW, ",\"regret\":\"balanced\"");
    work_and_answer(0, "compare");
    credit(0);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&workers[0], MF_MESSAGE_UNIT, FARM_DEADLINE_MS);
    ck_assert_str_eq(farm_text(unit, "kind"), "race");
    post("/api/v1/batches/1/cancel");
    check_task(1, "cancelled", "kept", REASONS("SAME on w0"));
    check_export(1, KNOWN, 61.206);
}

MF_TEST(failed_comparison_decides_nothing)
{
    submit(KNOWN_ROW, "");
    for (int i = 0; i < 3; i++) {
        _cleanup_(cJSON_Deletep) cJSON *unit = work_until(0, "compare");
        ck_assert_int_eq(fake_worker_fail(&workers[0], unit, "no_memory", "no room"), 0);
    }
    check_task(1, "done", "undecided", REASONS("was not compared", "no room"));
    check_export(1, NULL, 0);
}

/* Weights are stored once per layer. If known rows are kept unless beaten, the layer model keeps the layout
 * of these rows, even if another layout is faster. */
MF_TEST(keeps_layout_of_known_rows)
{
    submit("fake:sort_m16|fake:sne_m16_1|fake:tne_m16_1", "");
    work_and_answer(0, "race");
    check_task(1, "done", "kept", REASONS("the known row won"));
    _cleanup_(cJSON_Deletep) cJSON *batch = farm_get(&farm, "/api/v1/batches/1");
    const cJSON *layout = cJSON_GetArrayItem(mf_json_array(batch, "layouts"), 0);
    ck_assert_str_eq(farm_text(layout, "layout"), "w1=panel16 w2=panel16");
    check_export(1, "sne_m16_1", 121.2);
}

/* The layout of the known rows is kept even if another layout serves more token counts, because rows in that
 * other layout could not be combined with the kept rows. */
MF_TEST(keeps_layout_that_serves_fewer)
{
    free(submit_shapes(SHAPE "\\n" SHAPE_OF(32) "\\n", "fake:sort_m16|fake:sne_m16_1|fake:tne_m16_1", ""));
    _cleanup_(cJSON_Deletep) cJSON *first = work_until(0, "enumerate");
    const int n_variants = workers[0].n_variants;
    /* leaves no panel16 variant for the shape with 32 tokens, which is enumerated first */
    workers[0].n_variants = 1;
    answer_unit(0, first);
    workers[0].n_variants = n_variants;
    work_and_answer(0, "enumerate");
    work_and_answer(0, "race");
    check_task(1, "done", "kept", REASONS("the known row won"));
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 2, "failed");
    const char *reason = farm_text(task, "reason");
    ck_assert_msg(strstr(reason, "no legal pipeline in w1=panel16 w2=panel16"), "%s", reason);
}

/* If known rows use two layouts, the rows that are not in the chosen layout are replaced. */
MF_TEST(replaces_rows_of_other_layouts)
{
    free(submit_shapes(SHAPE "\\n" SHAPE_OF(32) "\\n",
                       "fake:sort_m16|fake:sne_m16_1|fake:tne_m16_1\n" BASELINE_ROW_OF(32) KNOWN_ROW, ""));
    work_and_answer(0, "race");
    work_and_answer(0, "race");
    work_and_answer(0, "compare"); /* task 1 ends after task 2, which has more tokens */
    check_task(1, "done", "promoted",
               REASONS("w1=panel16 w2=panel16", "w1=row w2=row", "one table cannot mix them"));
}

/* If the batch specifies a layout, that layout is used even if another layout is faster. */
MF_TEST(uses_given_layout)
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

/* If a shape has no pipeline in the specified layout, its task fails with the reason. */
MF_TEST(fails_without_pipeline_in_layout)
{
    submit(NULL, ",\"layout\":\"w1=panel32 w2=panel32\"");
    probe_all();
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "failed");
    ck_assert_msg(strstr(farm_text(task, "reason"), "no correct step covers gather+gemm1+act") != NULL, "%s",
                  farm_text(task, "reason"));
    _cleanup_(mf_freep) char *why = get("/api/v1/tasks/1/rejections?limit=200");
    ck_assert_msg(
        strstr(why, "needs w1=panel16, but the weights of batch 1 are in w1=panel32 w2=panel32 (layout)") !=
            NULL,
        "%s", why);
    check_export(1, NULL, 0);
}

/* A time whose samples scatter is measured again by the winner alone. _i: 0 the second measurement is quiet;
 * 1 none is; 2 the pipeline fails in the second one. */
static const struct {
    int tries;
    const char *unstable;
} scattered[] = {
    {2, ""},
    {3,
     "after 3 reruns: the samples scatter: their median absolute deviation is 50% of the median (limit 10%)"},
    {3, "the time was not accepted and a rerun gave no time: the pipeline failed"},
};

MF_TEST(scattered_time_is_measured_again, .rows = MF_ARRAY_LEN(scattered))
{
    submit(NULL, "");
    workers[0].mad = 30;
    work_and_answer(0, "race");
    workers[0].mad = _i == 0 ? 0 : 30;
    workers[0].wrong = _i == 2 ? "*" : NULL;
    for (int rerun = 0; rerun < (_i == 1 ? 2 : 1); rerun++) {
        _cleanup_(cJSON_Deletep) cJSON *unit = work_until(0, "race");
        ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(unit, "pipelines")), 1);
        answer_unit(0, unit);
    }
    _cleanup_(cJSON_Deletep) cJSON *task = farm_wait_task(&farm, 1, "done");
    const cJSON *config = mf_json_object(task, "config");
    ck_assert_str_eq(farm_text(config, "unstable"), scattered[_i].unstable);
    ck_assert_int_eq(farm_number(config, "tries"), scattered[_i].tries);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .setup = start, .teardown = stop});
}
