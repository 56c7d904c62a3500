/* Workers of two kernel revisions in one farm, as while the nodes of a farm get a new version one after the other: a batch
 * keeps to the revision that it began with on a class, and ranks and table say which it was. The other revision is made by a
 * shared object of families beside the same simulated device. */
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

/* Place 0 is of this build's revision, the others have the shared object's beside it. */
static void start_worker(int place, const char *class, int step_ms)
{
    char device[200], spec[32];
    (void)snprintf(spec, sizeof(spec), "{\"step_ms\":%d}", step_ms);
    (void)snprintf(device, sizeof(device), "sim:%s:%d:%s", class, place, farm_file(&farm, "spec.json", spec));
    const char *const args[] = {"--device", device, place > 0 ? "--family-so" : NULL, OBJECT, NULL};
    farm_start_worker(&farm, place, args);
}

/* The revision of the worker of a place, as soon as it has come. A count of workers would not do: one that has ended is
 * among them until the coordinator has read that it leaves. */
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
        ck_assert_msg(mf_now_ms() < until, "%s does not come", name);
    }
}

/* Every step of the task's ranked pipelines is of the revision; how many there are. */
static int ranks_are_of(int task, const char *revision)
{
    char path[96];
    int n = 0;
    (void)snprintf(path, sizeof(path), "/api/v1/tasks/%d/pipelines?limit=5", task);
    _cleanup_(cJSON_Deletep) cJSON *ranked = farm_get(&farm, path);
    const cJSON *pipeline, *op;
    cJSON_ArrayForEach (pipeline, mf_json_array(ranked, "items")) {
        cJSON_ArrayForEach (op, mf_json_array(pipeline, "ops")) {
            (void)snprintf(path, sizeof(path), "/api/v1/steps/%d", farm_number(op, "step"));
            _cleanup_(cJSON_Deletep) cJSON *step = farm_get(&farm, path);
            ck_assert_str_eq(farm_text(step, "revision"), revision);
            n++;
        }
    }
    return n;
}

/* The rows of a batch's table that have both texts. */
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
    char path[96];
    int n = 0;
    (void)snprintf(path, sizeof(path), "/api/v1/batches/%d/tasks", batch);
    _cleanup_(cJSON_Deletep) cJSON *tasks = farm_get(&farm, path);
    const cJSON *task;
    cJSON_ArrayForEach (task, mf_json_array(tasks, "items")) {
        if (strcmp(farm_text(task, "class"), class) != 0)
            continue;
        ck_assert_int_gt(ranks_are_of(farm_number(task, "id"), revision), 5);
        n++;
    }
    return n;
}

/* One batch over two classes, each served by a revision of its own. */
START_TEST(one_batch)
{
    char old[100], new[100];
    farm_start(&farm, 300);
    start_worker(0, OLD, 0);
    start_worker(1, NEW, 0);
    revision_of(0, old, sizeof(old));
    revision_of(1, new, sizeof(new));
    ck_assert_str_ne(old, new);
    int batch = farm_submit(&farm, csv, "&classes=" OLD "," NEW);
    farm_wait_done(&farm, batch);
    ck_assert_int_eq(tasks_are_of(batch, OLD, old), 2);
    ck_assert_int_eq(tasks_are_of(batch, NEW, new), 2);
    ck_assert_int_eq(rows_with(batch, "gfx942,", old), 2);
    ck_assert_int_eq(rows_with(batch, "gfx950,", new), 2);
}
END_TEST

/* Waits until the batch says that it waits for that revision. */
static void await_waiting(int batch, const char *revision)
{
    char path[64], sentence[200];
    (void)snprintf(path, sizeof(path), "/api/v1/batches/%d", batch);
    (void)snprintf(sentence, sizeof(sentence), "waits for a worker of class " OLD " with kernel revision %s",
                   revision);
    int64_t until = mf_now_ms() + FARM_DEADLINE_MS;
    for (;;) {
        _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, path);
        const cJSON *item;
        cJSON_ArrayForEach (item, mf_json_array(json, "waiting")) {
            if (strncmp(farm_text(item, "reason"), sentence, strlen(sentence)) == 0)
                return;
        }
        ck_assert_msg(mf_now_ms() < until, "it does not say '%s': %s", sentence,
                      cJSON_PrintUnformatted(json));
        mf_sleep_ms(5);
    }
}

/* The node that began a batch gets the new version in the middle: the batch waits, and says for what; a batch after it is
 * the new version's; and when a node of the old one is back the first ends as it began. */
START_TEST(one_class)
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
    int second = farm_submit(&farm, csv, "&classes=" OLD);
    farm_wait_done(&farm, second);
    await_waiting(first, old);
    start_worker(0, OLD, 0);
    farm_wait_done(&farm, first);
    ck_assert_int_eq(tasks_are_of(first, OLD, old), 2);
    ck_assert_int_eq(tasks_are_of(second, OLD, new), 2);
    ck_assert_int_eq(rows_with(first, "gfx942,", old), 2);
    ck_assert_int_eq(rows_with(second, "gfx942,", new), 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("revisions");
    TCase *tc = tcase_create("revisions");
    tcase_add_checked_fixture(tc, NULL, stop);
    tcase_add_test(tc, one_batch);
    tcase_add_test(tc, one_class);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
