/* Tests workers of two kernel revisions in one farm, as during a rolling upgrade. A batch keeps the revision
 * with which it began on a class, and rankings and tables name the revision. Workers of the second revision
 * use the same simulated device and also load a shared object of families. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "support/farm/farm_harness.h"
#include "support/mf_check.h"

#define OBJECT MF_BINARY_DIR "/tests/plain.so"
#define OLD    "gfx942/304"
#define NEW    "gfx950/256"

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64);

static struct farm farm;

static void stop(void)
{
    farm_stop(&farm);
}

/* Starts a worker. Worker 0 has this build's revision; other workers also load the shared object. */
static void start_worker(int place, const char *class, int step_ms)
{
    char device[200], spec[32];
    (void)snprintf(spec, sizeof(spec), "{\"step_ms\":%d}", step_ms);
    (void)snprintf(device, sizeof(device), "sim:%s:%d:%s", class, place, farm_file(&farm, "spec.json", spec));
    const char *const args[] = {"--device", device, place > 0 ? "--family-so" : NULL, OBJECT, NULL};
    farm_start_worker(&farm, place, args);
}

/* Waits until the worker is listed and returns its revision. The number of workers would not show this,
 * because a worker that has ended is counted until the coordinator processes its BYE. */
static void revision_of(int place, char *revision, size_t cap)
{
    char name[16];
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    (void)snprintf(name, sizeof(name), "w%d", place);
    for (revision[0] = '\0'; !revision[0]; mf_sleep_ms(5)) {
        _cleanup_(cJSON_Deletep) cJSON *list = farm_get(&farm, "/api/v1/workers");
        const cJSON *item;
        cJSON_ArrayForEach (item, mf_json_array(list, "items")) {
            if (strcmp(farm_text(item, "name"), name) == 0)
                (void)snprintf(revision, cap, "%s", farm_text(item, "revision"));
        }
        ck_assert_msg(mf_now_ms() < until, "%s did not connect in time", name);
    }
}

/* Checks that every step of the task's ranked pipelines has the revision. Returns the number of these steps.
 */
static int ranks_are_of(int task, const char *revision)
{
    int n = 0;
    _cleanup_(cJSON_Deletep) cJSON *ranked = farm_get(&farm, "/api/v1/tasks/%d/pipelines?limit=5", task);
    const cJSON *pipeline, *op;
    cJSON_ArrayForEach (pipeline, mf_json_array(ranked, "items")) {
        cJSON_ArrayForEach (op, mf_json_array(pipeline, "ops")) {
            _cleanup_(cJSON_Deletep) cJSON *step =
                farm_get(&farm, "/api/v1/steps/%d", farm_number(op, "step"));
            ck_assert_str_eq(farm_text(step, "revision"), revision);
            n++;
        }
    }
    return n;
}

/* Returns the number of rows of a batch's table that have the gfx and the revision. */
static int rows_with(int batch, const char *gfx, const char *revision)
{
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    char *rest = table, *line;
    int n = 0;
    while ((line = strsep(&rest, "\n"))) {
        char cell[100];
        (void)snprintf(cell, sizeof(cell), ",%s,", revision);
        n += strncmp(line, gfx, strlen(gfx)) == 0 && strstr(line, cell) != NULL;
    }
    return n;
}

static int tasks_are_of(int batch, const char *class, const char *revision)
{
    int n = 0;
    _cleanup_(cJSON_Deletep) cJSON *tasks = farm_get(&farm, "/api/v1/batches/%d/tasks", batch);
    const cJSON *task;
    cJSON_ArrayForEach (task, mf_json_array(tasks, "items")) {
        if (strcmp(farm_text(task, "class"), class) != 0)
            continue;
        ck_assert_int_gt(ranks_are_of(farm_number(task, "id"), revision), 5);
        n++;
    }
    return n;
}

/* A batch tunes two classes, whose workers have different revisions. */
MF_TEST(serves_classes_of_two_revisions)
{
    char old[100], new[100];
    farm_start(&farm, 300);
    start_worker(0, OLD, 0);
    start_worker(1, NEW, 0);
    revision_of(0, old, sizeof(old));
    revision_of(1, new, sizeof(new));
    ck_assert_str_ne(old, new);
    int batch = farm_run(&farm, csv, "&classes=" OLD "," NEW);
    ck_assert_int_eq(tasks_are_of(batch, OLD, old), 2);
    ck_assert_int_eq(tasks_are_of(batch, NEW, new), 2);
    ck_assert_int_eq(rows_with(batch, "gfx942,", old), 2);
    ck_assert_int_eq(rows_with(batch, "gfx950,", new), 2);
}

/* Waits until the batch reports that it waits for a worker of this revision. */
static void await_waiting(int batch, const char *revision)
{
    char sentence[200];
    (void)snprintf(sentence, sizeof(sentence), "waits for a worker of class " OLD " with kernel revision %s",
                   revision);
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, "/api/v1/batches/%d", batch);
        const cJSON *item;
        cJSON_ArrayForEach (item, mf_json_array(json, "waiting")) {
            if (strncmp(farm_text(item, "reason"), sentence, strlen(sentence)) == 0)
                return;
        }
        ck_assert_msg(mf_now_ms() < until, "no batch reason begins with '%s': %s", sentence,
                      cJSON_PrintUnformatted(json));
        mf_sleep_ms(5);
    }
}

/* The node that began a batch is upgraded during the batch, so the batch waits and reports why. A later batch
 * uses the new revision. When a node of the old revision returns, it completes the first batch. */
MF_TEST(batch_keeps_its_revision)
{
    char old[100], new[100];
    farm_start(&farm, 300);
    start_worker(0, OLD, 10);
    revision_of(0, old, sizeof(old));
    int first = farm_submit(&farm, csv, "&classes=" OLD);
    ck_assert(farm_wait_batch(&farm, first, "measured", 5));
    ck_assert_int_eq(farm_end(&farm.workers[0]), 0);
    start_worker(1, OLD, 0);
    revision_of(1, new, sizeof(new));
    ck_assert_str_ne(old, new);
    await_waiting(first, old);
    int second = farm_run(&farm, csv, "&classes=" OLD);
    await_waiting(first, old);
    start_worker(0, OLD, 0);
    farm_wait_done(&farm, first);
    ck_assert_int_eq(tasks_are_of(first, OLD, old), 2);
    ck_assert_int_eq(tasks_are_of(second, OLD, new), 2);
    ck_assert_int_eq(rows_with(first, "gfx942,", old), 2);
    ck_assert_int_eq(rows_with(second, "gfx942,", new), 2);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
