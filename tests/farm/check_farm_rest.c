/* Tests a farm of real processes over REST, with two simulated workers of one class. Kernel faults become
 * statuses and quarantine, batch options take effect, and configs have a provenance. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/farm/http_client.h"
#include "support/mf_check.h"
#include "support/run_program.h"

#define CLASS   "gfx942/304"
#define BEAT_MS 2000 /* long enough that no lease expires, even on a busy machine */

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(64);

static struct farm farm;

static void start_workers(int n, const char *spec)
{
    char device[160];
    for (int place = 0; place < n; place++) {
        (void)snprintf(device, sizeof(device), "sim:" CLASS ":%d:%s", place,
                       farm_file(&farm, "spec.json", spec));
        const char *const args[] = {"--device", device, NULL};
        farm_start_worker(&farm, place, args);
    }
    farm_wait_workers(&farm, n);
}

static void start(const char *spec)
{
    farm_start(&farm, BEAT_MS);
    start_workers(2, spec);
}

static void stop(void)
{
    farm_stop(&farm);
}

static int quarantined(void)
{
    _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, "/api/v1/quarantine?limit=1000");
    return cJSON_GetArraySize(mf_json_array(json, "items"));
}

/* Returns the number of the task's steps with the status. Each failed step must have a reason. */
static int count(int task, const char *status)
{
    _cleanup_(cJSON_Deletep) cJSON *json =
        farm_get(&farm, "/api/v1/tasks/%d/steps?limit=1000&status=%s", task, status);
    const cJSON *step;
    cJSON_ArrayForEach (step, mf_json_array(json, "items")) {
        ck_assert(strcmp(status, "ok") == 0 || farm_text(step, "reason")[0]);
    }
    return cJSON_GetArraySize(mf_json_array(json, "items"));
}

static struct ran moefarm(const char *action, const char *kernel, const char *class)
{
    static const char *const program[] = {MF_BINARY_DIR "/cli/moefarm", "quarantine", NULL};
    char url[64];
    (void)snprintf(url, sizeof(url), "--url=http://127.0.0.1:%d", farm.http);
    return run_program(program, (const char *const[]){url, action, kernel, class, NULL});
}

/* A kernel is quarantined after two strikes; if there are two devices, the strikes are on different devices.
 * Later batches skip the kernel until it is revived. */
MF_TEST(quarantines_and_revives)
{
    start("{\"faults\":[{\"match\":\"sim_s1_m64_*\",\"fault\":\"crash\"},"
          "{\"match\":\"sim_s2_m32_*\",\"fault\":\"no_memory\"}]}");
    (void)farm_run(&farm, csv, "&classes=" CLASS);
    int n = quarantined();
    ck_assert_int_gt(n, 1);
    ck_assert_int_eq(count(1, "quarantined"), n);
    ck_assert_int_gt(count(1, "no_memory"), 0);
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/quarantine?limit=1000");
    const cJSON *item;
    char kernel[16] = "";
    cJSON_ArrayForEach (item, mf_json_array(list, "items")) {
        const cJSON *strikes = mf_json_array(item, "strikes");
        (void)snprintf(kernel, sizeof(kernel), "%d", farm_number(item, "kernel"));
        ck_assert_int_eq(cJSON_GetArraySize(strikes), 2);
        ck_assert_str_ne(farm_text(cJSON_GetArrayItem(strikes, 0), "worker"),
                         farm_text(cJSON_GetArrayItem(strikes, 1), "worker"));
        ck_assert_ptr_nonnull(strstr(farm_text(item, "reason"), "planted crash"));
    }
    (void)farm_run(&farm, csv, "&classes=" CLASS "&seed=2");
    ck_assert_int_eq(quarantined(), n);
    ck_assert_int_eq(count(2, "crash"), 0);
    struct ran listed = moefarm(NULL, NULL, NULL);
    ck_assert_int_eq(listed.code, 0);
    assert_says(listed, "  " CLASS "  sim:sim_s1_m64_");
    assert_says(listed, "killed two runners, the second time by crash: ");
    assert_says(listed, "  crash on ");
    ck_assert_int_eq(moefarm("revive", kernel, "--class=gfx950/256").code, 2);
    ck_assert_int_eq(quarantined(), n);
    struct ran lifted = moefarm("revive", kernel, NULL);
    ck_assert_int_eq(lifted.code, 0);
    assert_says(lifted, " is no longer quarantined on " CLASS "; submit its shapes again");
    ck_assert_int_eq(quarantined(), n - 1);
    ck_assert_int_eq(moefarm("revive", kernel, "--class=" CLASS).code, 2);
    /* a revived kernel runs again, and is quarantined again */
    (void)farm_run(&farm, csv, "&classes=" CLASS "&seed=3");
    ck_assert_int_eq(quarantined(), n);
    ck_assert_int_eq(count(3, "quarantined"), 1);
}

/* clang-format off */
static const struct {
    const char *match, *fault, *status, *reason;
} bad_steps[] = {
    /* matches few steps, because each of them runs until the time cap twice */
    {"sim_s1_m16_n64_row_v1*", "hang",        "quarantined", "hang"},
    {"sim_s1_m32_*",           "zero_time",   "implausible", "0 us"},
    {"sim_s1_m64_*",           "beyond_peak", "implausible", "peak"},
    {"sim_s2_m16_*",           "exit",        "quarantined", "exit code 3"},
    {"sim_s2_m32_*",           "nan",         "wrong",       "NaN"},
    {"sim_s2_m64_*",           "wrong",       "wrong",       "relative error"},
};
/* long enough that only hanging steps reach the time cap, even on a busy machine */
#define CAP "&time_cap_ms=2000"
/* clang-format on */

/* The kernels of this device hang, crash the runner, report impossible times or compute wrong outputs. Each
 * such step has its status and a reason, the batch ends, and no such step is in the exported table. */
MF_TEST(reports_faulty_kernels)
{
    char spec[1024] = "{\"faults\":[";
    for (size_t i = 0; i < MF_ARRAY_LEN(bad_steps); i++)
        (void)snprintf(spec + strlen(spec), sizeof(spec) - strlen(spec),
                       "%s{\"match\":\"%s\",\"fault\":\"%s\"}", i ? "," : "", bad_steps[i].match,
                       bad_steps[i].fault);
    (void)strncat(spec, "]}", sizeof(spec) - strlen(spec) - 1);
    start(spec);
    (void)farm_run(&farm, csv, "&classes=" CLASS CAP);
    _cleanup_(cJSON_Deletep) cJSON *steps = farm_get(&farm, "/api/v1/tasks/1/steps?limit=1000");
    const cJSON *step;
    int met[MF_ARRAY_LEN(bad_steps)] = {0};
    cJSON_ArrayForEach (step, mf_json_array(steps, "items")) {
        size_t i = 0;
        while (i < MF_ARRAY_LEN(bad_steps) &&
               strncmp(farm_text(step, "name"), bad_steps[i].match, strlen(bad_steps[i].match) - 1) != 0)
            i++;
        const char *status = farm_text(step, "status"), *reason = farm_text(step, "reason");
        if (i == MF_ARRAY_LEN(bad_steps)) {
            ck_assert_msg(strcmp(status, "ok") == 0 || strcmp(status, "slow") == 0, "%s: %s: %s",
                          farm_text(step, "name"), status, reason);
            continue;
        }
        ck_assert_msg(strcmp(status, bad_steps[i].status) == 0 && strstr(reason, bad_steps[i].reason),
                      "%s: %s: %s", farm_text(step, "name"), status, reason);
        met[i]++;
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(bad_steps); i++)
        ck_assert_msg(met[i] > 0, "no step matches %s", bad_steps[i].match);
    _cleanup_(mf_freep) char *table = farm_export(&farm, 1);
    for (size_t i = 0; i < MF_ARRAY_LEN(bad_steps); i++) {
        char prefix[32];
        (void)snprintf(prefix, sizeof(prefix), "%.*s", (int)strlen(bad_steps[i].match) - 1,
                       bad_steps[i].match);
        ck_assert_ptr_null(strstr(table, prefix));
    }
}

/* The provenance of a config names the options of the batch, the machine, the device and the kernels. */
MF_TEST(records_provenance)
{
    static const char *const texts[][2] = {
        {"class", CLASS}, {"routing", "zipf:1.2"}, {"search", "exhaustive"}, {"layout", "free"}};
    static const char *const nonempty[] = {"worker", "host", "model", "revision", "compiler", "version"};
    start("{}");
    (void)farm_run(&farm, csv, "&classes=" CLASS "&routing=zipf:1.2&search=exhaustive&layout=free&seed=7");
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/1");
    const cJSON *p = mf_json_object(mf_json_object(task, "config"), "provenance");
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(farm_number(p, "seed"), 7);
    for (size_t i = 0; i < MF_ARRAY_LEN(texts); i++)
        ck_assert_str_eq(farm_text(p, texts[i][0]), texts[i][1]);
    for (size_t i = 0; i < MF_ARRAY_LEN(nonempty); i++)
        ck_assert_msg(farm_text(p, nonempty[i])[0] != '\0', "member %s of the provenance is empty",
                      nonempty[i]);
    ck_assert_int_eq(count(1, "slow"), 0);
}

/* Returns the time of the pipeline under the routing, from /api/v1/pipelines/<id>/results. */
static double raced_under(int pipeline, const char *routing)
{
    double us = 0;
    _cleanup_(cJSON_Deletep) cJSON *results = farm_get(&farm, "/api/v1/pipelines/%d/results", pipeline);
    const cJSON *one;
    cJSON_ArrayForEach (one, mf_json_array(results, "items")) {
        if (strcmp(farm_text(mf_json_object(one, "extra"), "routing"), routing) != 0)
            continue;
        ck_assert(!cJSON_IsTrue(cJSON_GetObjectItem(one, "final")));
        ck_assert_int_eq(mf_json_double(one, "us", &us), 0);
    }
    return us;
}

/* clang-format off */
static const struct {
    const char *query;
    const char *profiles[3];
} regrets[] = {
    {"", {"balanced", "zipf:1.2"}},
    {"&routing=zipf:1.2", {"balanced"}},          /* omits the batch's own routing */
    {"&regret=none", {NULL}},
    {"&regret=hot:0.5,uniform", {"hot:0.5"}},
    {"&regret=recorded:1.2.3", {"recorded:1.2.3"}}, /* 3 counts of routes, but the shape has 128 experts */
};
/* clang-format on */

/* A config reports the regret of the winner under each other routing profile, and the API returns the results
 * from which it is computed. On the simulated device the routing changes the time of each step by up to 10%,
 * so in some cases another pipeline is best. */
MF_TEST(reports_regret)
{
    int n_lost = 0;
    start("{}");
    for (size_t i = 0; i < MF_ARRAY_LEN(regrets); i++) {
        char query[96];
        (void)snprintf(query, sizeof(query), "&classes=" CLASS "%s", regrets[i].query);
        (void)farm_run(&farm, csv, query);
        _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/%zu", i + 1);
        const cJSON *config = mf_json_object(task, "config"), *list = mf_json_array(config, "regret");
        int n = 0;
        while (regrets[i].profiles[n]) {
            const cJSON *r = NULL;
            cJSON_ArrayForEach (r, list) {
                if (strcmp(farm_text(r, "routing"), regrets[i].profiles[n]) == 0)
                    break;
            }
            ck_assert_msg(r != NULL, "%s: no regret under %s", regrets[i].query, regrets[i].profiles[n]);
            n++;
            double us, best_us, lost;
            if (strncmp(farm_text(r, "routing"), "recorded", 8) == 0) {
                ck_assert_str_eq(farm_text(r, "status"), "unsupported");
                ck_assert_ptr_nonnull(strstr(farm_text(r, "reason"), "expert"));
                continue;
            }
            ck_assert_str_eq(farm_text(r, "status"), "ok");
            ck_assert_int_eq(mf_json_double(r, "us", &us), 0);
            ck_assert_int_eq(mf_json_double(r, "best_us", &best_us), 0);
            ck_assert_int_eq(mf_json_double(r, "regret", &lost), 0);
            ck_assert_double_eq(us, raced_under(farm_number(config, "pipeline"), farm_text(r, "routing")));
            ck_assert_double_eq(best_us, raced_under(farm_number(r, "best"), farm_text(r, "routing")));
            if (cJSON_IsTrue(cJSON_GetObjectItem(r, "tie")))
                ck_assert_double_eq(lost, 0);
            else
                ck_assert_double_eq_tol(lost, us / best_us - 1, 1e-9);
            n_lost += lost > 0;
        }
        ck_assert_int_eq(cJSON_GetArraySize(list), n);
    }
    ck_assert_int_gt(n_lost, 0);
}

/* With topk=K, two kinds of pipelines race: the K cheapest pipelines, and the best pipeline of each structure
 * and block. With K = 1 the cheapest pipeline is also the best of its structure and block. */
MF_TEST(races_topk)
{
    static const int k[] = {1, 30};
    int raced[MF_ARRAY_LEN(k)];
    start("{}");
    for (size_t i = 0; i < MF_ARRAY_LEN(k); i++) {
        char text[96];
        (void)snprintf(text, sizeof(text), "&classes=" CLASS "&topk=%d", k[i]);
        (void)farm_run(&farm, csv, text);
        _cleanup_(cJSON_Deletep) cJSON *finalists =
            farm_get(&farm, "/api/v1/tasks/%zu/pipelines?limit=1000&finalists=1", i + 1);
        const cJSON *one;
        raced[i] = 0;
        cJSON_ArrayForEach (one, mf_json_array(finalists, "items")) {
            ck_assert_int_gt(farm_number(one, "samples_n"), 0);
            raced[i]++;
        }
        ck_assert_int_ge(raced[i], k[i]);
    }
    ck_assert_int_lt(raced[0], raced[1]);
}

/* Options that restrict fusion, by ops or by the minimum saving. */
/* clang-format off */
static const struct {
    const char *query, *rule, *ops[2]; /* no step of the batch may cover both ops */
} forbidden[] = {
    {"&no_fuse=gemm1%2Bgemm2", "no_fuse", {"gemm1", "gemm2"}},
    /* no fusion saves this much, so only steps with one op remain */
    {"&fuse_saves=1e12",       "policy",  {"", "+"}},
};
/* clang-format on */

static int count_steps(int task, const char *const ops[2], int *ret_both)
{
    int all = 0;
    _cleanup_(cJSON_Deletep) cJSON *steps =
        farm_get(&farm, "/api/v1/tasks/%d/steps?limit=500&status=ok", task);
    const cJSON *step;
    *ret_both = 0;
    cJSON_ArrayForEach (step, mf_json_array(steps, "items")) {
        const char *covers = farm_text(step, "covers");
        *ret_both += strstr(covers, ops[0]) && strstr(covers, ops[1]);
        all++;
    }
    return all;
}

/* Runs a batch of one task and returns the id of the task. */
static int task_of_batch(const char *query)
{
    int batch = farm_run(&farm, csv, query);
    _cleanup_(cJSON_Deletep) cJSON *tasks = farm_get(&farm, "/api/v1/batches/%d/tasks", batch);
    return (int)farm_number(cJSON_GetArrayItem(mf_json_array(tasks, "items"), 0), "id");
}

/* The batch contains no forbidden step, and each forbidden step is listed as a rejection with a reason.
 * Another batch with the same enumeration still contains these steps. */
MF_TEST(applies_fusion_options, .rows = MF_ARRAY_LEN(forbidden))
{
    char query[96];
    int both, n_listed = 0;
    start("{}");
    (void)snprintf(query, sizeof(query), "&classes=" CLASS "%s", forbidden[_i].query);
    ck_assert_int_gt(count_steps(task_of_batch(query), forbidden[_i].ops, &both), 0);
    ck_assert_int_eq(both, 0);
    _cleanup_(cJSON_Deletep) cJSON *rejections = farm_get(&farm, "/api/v1/tasks/1/rejections?limit=500");
    const cJSON *no;
    cJSON_ArrayForEach (no, mf_json_array(rejections, "items")) {
        n_listed += strcmp(farm_text(no, "rule"), forbidden[_i].rule) == 0;
        ck_assert_uint_gt(strlen(farm_text(no, "reason")), 20);
    }
    ck_assert_int_gt(n_listed, 0);
    ck_assert_int_gt(count_steps(task_of_batch("&classes=" CLASS "&seed=3"), forbidden[_i].ops, &both), 0);
    ck_assert_int_gt(both, 0);
}

/* The more urgent batch ends first although it was submitted later. The test submits both batches before it
 * starts the only worker. With two workers, one worker could complete the less urgent batch while the urgent
 * batch waits for its race. */
MF_TEST(runs_urgent_batch_first)
{
    farm_start(&farm, BEAT_MS);
    int low = farm_submit(&farm, csv, "&classes=" CLASS "&priority=1");
    int high = farm_submit(&farm, csv, "&classes=" CLASS "&priority=99&seed=2");
    start_workers(1, "{}");
    farm_wait_done(&farm, low);
    _cleanup_(cJSON_Deletep) cJSON *late = farm_get(&farm, "/api/v1/batches/%d", low);
    _cleanup_(cJSON_Deletep) cJSON *early = farm_get(&farm, "/api/v1/batches/%d", high);
    ck_assert_str_eq(farm_text(early, "state"), "done");
    ck_assert(cJSON_GetNumberValue(cJSON_GetObjectItem(early, "ended_ms")) <=
              cJSON_GetNumberValue(cJSON_GetObjectItem(late, "ended_ms")));
}

/* ---- promotion ---- */

/* Prints the task's row with another pipeline in place of the winner. Takes the first pipeline of the
 * winner's layout whose time in the race is between `least` and `most` times the winner's time there. */
static void write_baseline(const char *table, double least, double most, struct mf_buf *ret)
{
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/tasks/1/pipelines?limit=200");
    const cJSON *items = mf_json_array(list, "items"), *winner = cJSON_GetArrayItem(items, 0), *p, *name;
    double best = 0, us = 0;
    ck_assert_int_eq(mf_json_double(winner, "us", &best), 0);
    cJSON_ArrayForEach (p, items) {
        if (p != winner && strcmp(farm_text(p, "layout"), farm_text(winner, "layout")) == 0 &&
            mf_json_double(p, "us", &us) == 0 && us >= least * best && us <= most * best)
            break;
    }
    ck_assert_msg(p, "no pipeline takes %g to %g times as long as the winner", least, most);
    const char *row = strchr(table, '\n') + 1, *at = row;
    for (int column = 0; column < 28; column++)
        at = strchr(at, ',') + 1;
    (void)mf_buf_add(ret, table, (size_t)(at - table));
    cJSON_ArrayForEach (name, mf_json_array(p, "names"))
        (void)mf_buf_addf(ret, "%s%s", name->prev && name != mf_json_array(p, "names")->child ? "|" : "",
                          name->valuestring);
    (void)mf_buf_adds(ret, strchr(at, ','));
}

/* Options that limit a batch to one layout, so that few pipelines race. submit_over() sets the same options
 * if `few` is true. */
#define FEW "&topk=1&layout=w1%3Dpanel16%20w2%3Dpanel16"
static int submit_over(const char *baseline, bool few)
{
    _cleanup_(cJSON_Deletep) cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "csv", csv);
    cJSON_AddStringToObject(body, "baseline", baseline);
    cJSON *options = cJSON_AddObjectToObject(body, "options");
    cJSON_AddStringToObject(options, "regret", "none");
    if (few) {
        cJSON_AddNumberToObject(options, "topk", 1);
        cJSON_AddStringToObject(options, "layout", "w1=panel16 w2=panel16");
    } else {
        cJSON_AddNumberToObject(options, "min_effect", 0.09);
    }
    _cleanup_(mf_freep) char *text = mf_json_print(body);
    struct http_reply r = http_call(farm.http, "POST", "/api/v1/batches",
                                    "Content-Type: application/json\r\n", text, strlen(text));
    ck_assert_msg(r.status == 201, "%d %s", r.status, r.body);
    _cleanup_(cJSON_Deletep) cJSON *receipt = mf_json_parse(r.body, r.len, 1u << 20);
    http_reply_free(&r);
    return farm_number(receipt, "batch");
}

/* A known row that is clearly slower is replaced if both devices agree, even if processes are killed during
 * the comparison. _i: 0 no process is killed, 1 the coordinator, 2 both runners. If processes are killed, the
 * steps are slow enough for the test to kill them during the comparison. */
MF_TEST(replaces_a_slow_row, .rows = 3)
{
    struct mf_buf baseline;
    start(_i ? "{\"pipeline_ms\":500}" : "{}");
    (void)farm_run(&farm, csv, "&classes=" CLASS "&regret=none" FEW);
    mf_buf_init(&baseline, 1u << 16);
    _cleanup_(mf_freep) char *first = farm_export(&farm, 1);
    write_baseline(first, 1.055, 4, &baseline);
    int batch = submit_over(baseline.data, true);
    mf_buf_release(&baseline);
    if (_i)
        cJSON_Delete(farm_wait_task(&farm, 2, "comparing"));
    if (_i == 1) {
        farm_kill_daemon(&farm);
        farm_start_daemon(&farm, BEAT_MS);
    }
    for (int place = 0; _i == 2 && place < 2; place++)
        farm_kill_runner(&farm, place);
    farm_wait_done(&farm, batch);
    _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/2");
    const cJSON *promotion = mf_json_object(task, "promotion"), *device,
                *devices = mf_json_array(promotion, "devices");
    ck_assert_msg(strcmp(farm_text(promotion, "decision"), "promoted") == 0, "%s",
                  farm_text(promotion, "reason"));
    ck_assert_int_eq(cJSON_GetArraySize(devices), 2);
    ck_assert_str_ne(farm_text(devices->child, "worker"), farm_text(devices->child->next, "worker"));
    cJSON_ArrayForEach (device, devices) {
        ck_assert_str_eq(farm_text(device, "verdict"), "FASTER");
        ck_assert_int_eq(farm_number(device, "n"), 200);
    }
    /* The new row equals the row of the race, except for its source. */
    _cleanup_(mf_freep) char *second = farm_export(&farm, batch);
    char *by = strstr(first, "moefarm:race");
    ck_assert_ptr_nonnull(by);
    ck_assert_int_eq(strncmp(second, first, (size_t)(by - first)), 0);
    ck_assert_str_eq(second + (by - first), "moefarm:promoted\n");
    stop();
}

/* A known row is kept if the new row is faster by less than required. A rerun with the exported table as
 * baseline exports the same bytes. */
MF_TEST(keeps_a_good_row)
{
    struct mf_buf baseline;
    start("{}");
    (void)farm_run(&farm, csv, "&classes=" CLASS "&regret=none");
    mf_buf_init(&baseline, 1u << 16);
    _cleanup_(mf_freep) char *table = farm_export(&farm, 1);
    write_baseline(table, 1.0001, 1.06, &baseline);
    char *kept = NULL;
    for (int again = 0; again < 2; again++) {
        int batch = submit_over(again ? kept : baseline.data, false);
        farm_wait_done(&farm, batch);
        _cleanup_(cJSON_Deletep) cJSON *task = farm_get(&farm, "/api/v1/tasks/%d", batch);
        const cJSON *promotion = mf_json_object(task, "promotion");
        ck_assert_msg(strcmp(farm_text(promotion, "decision"), "kept") == 0, "%s",
                      farm_text(promotion, "reason"));
        char *now = farm_export(&farm, batch);
        if (again)
            ck_assert_str_eq(now, kept);
        ck_assert_str_ne(now, table);
        free(kept);
        kept = now;
    }
    free(kept);
    mf_buf_release(&baseline);
    stop();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
