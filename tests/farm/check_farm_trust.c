/* A farm on a disturbed host: times that are wrong are measured again, and marked as unstable if that does
 * not help. The simulated device multiplies the samples of parts of a race (kernels/sim/sim.h). */
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"
#include "support/run_program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BEAT_MS 250
#define CLASS   "gfx942/304"
#define WHERE   "&classes=" CLASS "&regret=none"

static struct farm farm;
static char table[300];

static void start(const char *spec)
{
    char url[80], device[200];
    farm_start(&farm, BEAT_MS);
    (void)snprintf(device, sizeof(device), "sim:" CLASS ":0:%s", farm_file(&farm, "spec.json", spec));
    const char *const args[] = {"--device", device, NULL};
    farm_start_worker(&farm, 0, args);
    farm_wait_workers(&farm, 1);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", farm.http);
    (void)snprintf(table, sizeof(table), "%s/tuned_fmoe.csv", farm.folder);
    ck_assert_int_eq(setenv("MOEFARM_URL", url, 1), 0);
}

static void stop(void)
{
    farm_stop(&farm);
}

static void moefarm(const char *const *words, int code, const char *says)
{
    static const char *const program[] = {MF_BINARY_DIR "/cli/moefarm", NULL};
    struct ran r = run_program(program, words);
    ck_assert_msg(r.code == code, "moefarm %s %s: exit code %d, expected %d: %s", words[0], words[1], r.code,
                  code, r.text);
    ck_assert_msg(strstr(r.text, says), "moefarm %s %s: %s", words[0], words[1], r.text);
}
#define RUN(code, says, ...) moefarm((const char *const[]){__VA_ARGS__, NULL}, code, says)

static double number(const cJSON *json, const char *key)
{
    double value = NAN;
    (void)mf_json_double(json, key, &value);
    return value;
}

/* Checks the measurements of a task's config. unstable: part of the reason; "": the time is accepted. */
static void check_config(int task, int tries, const char *unstable)
{
    _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, "/api/v1/tasks/%d", task);
    const cJSON *config = mf_json_object(json, "config");
    const char *reason = farm_text(config, "unstable");
    ck_assert_str_eq(farm_text(json, "state"), "done");
    ck_assert_msg(*unstable ? strstr(reason, unstable) != NULL : !*reason, "task %d: '%s'", task, reason);
    ck_assert_int_eq(farm_number(config, "tries"), tries);
    ck_assert_str_eq(farm_text(json, "unstable"), reason);
    ck_assert_double_eq(number(json, "us"), number(config, "us"));
    ck_assert_int_gt(farm_number(config, "n"), 4);
}

/* Checks that the pipelines of a task have comparable times: of the winner's layout, only ties may be faster
 * than the winner, and other layouts come after them. Returns the winner's time in the race, divided by its
 * reported time. */
static double check_ranking(int task)
{
    _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/tasks/%d/pipelines?limit=200", task);
    const cJSON *items = mf_json_array(list, "items"), *winner = items->child, *p;
    bool other = false, tie = false;
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(winner, "winner")));
    cJSON_ArrayForEach (p, items) {
        bool was_other = other;
        if (isnan(number(p, "us")))
            break;
        (void)mf_json_bool(p, "tie", &tie);
        (void)mf_json_bool(p, "other_layout", &other);
        ck_assert(other || !was_other);
        ck_assert_int_eq(other, strcmp(farm_text(p, "layout"), farm_text(winner, "layout")) != 0);
        if (!other && !tie)
            ck_assert_double_ge(number(p, "us"), number(winner, "us"));
        ck_assert_int_eq(cJSON_IsObject(cJSON_GetObjectItem(p, "reported")), p == winner);
    }
    return number(winner, "us") / number(mf_json_object(winner, "reported"), "us");
}

/* T = 16: every rerun is disturbed. T = 64: the first rerun. T = 256: two rounds, and the canary sees it. */
MF_TEST(reruns_are_judged)
{
    static const char reason[] = "after 3 reruns: the median of the rerun (";
    start("{\"disturbances\":[{\"part\":\"rerun\",\"token\":16,\"factor\":2.4},"
          "{\"part\":\"rerun\",\"token\":64,\"factor\":2.4,\"first\":1},"
          "{\"part\":\"round\",\"token\":256,\"factor\":3,\"first\":2}]}");
    (void)farm_run(&farm, FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64) FARM_CSV_ROW(256), WHERE);
    check_config(1, 3, reason);
    check_config(2, 2, "");
    check_config(3, 1, "");
    ck_assert_double_eq_tol(check_ranking(1), 1 / 2.4, 0.05);
    ck_assert_double_eq_tol(check_ranking(2), 1, 0.05);
    ck_assert_double_eq_tol(check_ranking(3), 1, 0.05);
    _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, "/api/v1/tasks/3/race");
    ck_assert_int_eq(farm_number(json, "repeated"), 2);

    RUN(0, "UNSTABLE: after 3 reruns: the median", "rank", "1");
    RUN(0, "UNSTABLE (after 3 reruns: the median", "report", "1");
    RUN(0, "", "export", "--simulated", "-o", table);
    RUN(1, ": error: unstable: us is ", "csv", "check", "--only", "unstable", table);
    RUN(1, "1 error, 0 warnings", "csv", "check", "--only", "unstable", table);
    RUN(0, "release 1 one: 3 rows", "release", "freeze", "--name", "one", "--simulated");
    _cleanup_(cJSON_Deletep) cJSON *manifest = farm_get(&farm, "/api/v1/releases/1/manifest.json");
    const cJSON *row;
    int n_unstable = 0;
    cJSON_ArrayForEach (row, mf_json_array(manifest, "rows"))
        n_unstable += strncmp(farm_text(row, "unstable"), reason, strlen(reason)) == 0;
    ck_assert_int_eq(n_unstable, 1);
    stop();
}

/* The whole race of T = 16 is disturbed, so race and rerun agree, but the time is above that of T = 64.
 * _i: 0 the pipeline's next measurement is not disturbed; 1 all are. */
MF_TEST(token_order_is_judged, .rows = 2)
{
    static const char *const specs[] = {
        "{\"disturbances\":[{\"part\":\"unit\",\"token\":16,\"factor\":4,\"first\":1}]}",
        "{\"disturbances\":[{\"part\":\"unit\",\"token\":16,\"factor\":4}]}"};
    start(specs[_i]);
    (void)farm_run(&farm, FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64), WHERE);
    check_config(2, 1, "");
    check_config(1, _i ? 3 : 2, _i ? "more tokens cannot be faster" : "");
    _cleanup_(cJSON_Deletep) cJSON *more = farm_get(&farm, "/api/v1/tasks/2");
    _cleanup_(cJSON_Deletep) cJSON *few = farm_get(&farm, "/api/v1/tasks/1");
    ck_assert_int_eq(number(few, "us") > number(more, "us"), _i);
    RUN(0, "", "export", "--simulated", "-o", table);
    RUN(_i, _i ? ": error: token_order: us is " : "no errors", "csv", "check", "--only", "token_order",
        table);
    stop();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
