/* Sends SIGKILL to a runner, a worker and the coordinator in the middle of a batch on two simulated workers.
 * The batch must complete, no result may be lost or counted twice, and the table must equal that of an
 * undisturbed run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_audit.h"
#include "support/mf_check.h"
#include "worker/agent/spool.h"

#define BEAT_MS 300

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64) FARM_CSV_FP8;

static struct farm farm;
static char *undisturbed;

/* Starts a worker with slow steps, so that even on a busy machine the batch still runs when the test reads
 * its progress. */
static void start_worker(int place)
{
    static const char slow[] = "{\"step_ms\":15,\"pipeline_ms\":2}";
    char device[64], spec[160];
    (void)snprintf(device, sizeof(device), "sim:gfx942/304:%d", place);
    (void)snprintf(spec, sizeof(spec), "%s:%s", device, farm_file(&farm, "spec.json", slow));
    const char *const args[] = {"--device", spec, NULL};
    farm_start_worker(&farm, place, args);
}

static void start_farm(void)
{
    farm_start(&farm, BEAT_MS);
    start_worker(0);
    start_worker(1);
    farm_wait_workers(&farm, 2);
}

/* ---- database ---- */

static bool contains(const struct farm_keys *k, struct mf_spool_key key)
{
    for (size_t i = 0; i < k->n; i++) {
        if (k->at[i].unit == key.unit && k->at[i].attempt == key.attempt && k->at[i].seq == key.seq)
            return true;
    }
    return false;
}

/* Returns all items of a paginated list. */
static cJSON *get_all(const char *path)
{
    cJSON *all = cJSON_CreateArray();
    char cursor[160] = "";
    do {
        _cleanup_(cJSON_Deletep) cJSON *json =
            farm_get(&farm, "%s%slimit=1000%s%s", path, strchr(path, '?') ? "&" : "?",
                     cursor[0] ? "&cursor=" : "", cursor);
        ck_assert_msg(json != NULL, "%s after %s", path, cursor);
        (void)snprintf(cursor, sizeof(cursor), "%s", farm_text(json, "next"));
        cJSON *items = mf_json_array(json, "items");
        while (cJSON_GetArraySize(items) > 0)
            cJSON_AddItemToArray(all, cJSON_DetachItemFromArray(items, 0));
    } while (cursor[0]);
    return all;
}

/* Adds the results of one step or pipeline to k. Exactly one of these results must be ok and not late. */
static void collect(struct farm_keys *k, const char *path)
{
    _cleanup_(cJSON_Deletep) cJSON *results = get_all(path);
    const cJSON *item;
    int counted = 0;
    cJSON_ArrayForEach (item, results) {
        struct mf_spool_key key = {farm_number(item, "unit"), farm_number(item, "attempt"),
                                   farm_number(item, "seq")};
        ck_assert_msg(!contains(k, key), "%s: the result of unit %ld attempt %ld seq %ld is listed twice",
                      path, (long)key.unit, (long)key.attempt, (long)key.seq);
        farm_keys_add(k, key);
        counted +=
            !cJSON_IsTrue(cJSON_GetObjectItem(item, "late")) && strcmp(farm_text(item, "status"), "ok") == 0;
    }
    ck_assert_msg(counted == 1, "%s: %d final results", path, counted);
}

static void check_database(int batch, const struct farm_keys *spooled)
{
    char path[96];
    _cleanup_(farm_keys_release) struct farm_keys found = {0};
    (void)snprintf(path, sizeof(path), "/api/v1/batches/%d/tasks", batch);
    _cleanup_(cJSON_Deletep) cJSON *tasks = get_all(path);
    const cJSON *task, *step;
    ck_assert_int_eq(cJSON_GetArraySize(tasks), 3);
    cJSON_ArrayForEach (task, tasks) {
        ck_assert_str_eq(farm_text(task, "state"), "done");
        (void)snprintf(path, sizeof(path), "/api/v1/tasks/%d/steps", farm_number(task, "id"));
        _cleanup_(cJSON_Deletep) cJSON *steps = get_all(path);
        ck_assert_int_gt(cJSON_GetArraySize(steps), 20);
        cJSON_ArrayForEach (step, steps) {
            ck_assert_msg(strcmp(farm_text(step, "status"), "ok") == 0, "%s: %s: %s", farm_text(step, "name"),
                          farm_text(step, "status"), farm_text(step, "reason"));
            (void)snprintf(path, sizeof(path), "/api/v1/steps/%d/results?task=%d", farm_number(step, "id"),
                           farm_number(task, "id"));
            collect(&found, path);
        }
    }
    for (size_t i = 0; i < spooled->n; i++)
        ck_assert_msg(contains(&found, spooled->at[i]), "unit %ld attempt %ld seq %ld of the spool is lost",
                      (long)spooled->at[i].unit, (long)spooled->at[i].attempt, (long)spooled->at[i].seq);
}

/* ---- runs ---- */

/* Makes the table of an undisturbed run. All tests share this table. */
static void make_undisturbed(void)
{
    start_farm();
    int batch = farm_run(&farm, csv, "&classes=gfx942/304");
    struct farm_keys none = {0};
    check_database(batch, &none);
    undisturbed = farm_export(&farm, batch);
    farm_stop(&farm);
}

static void free_undisturbed(void)
{
    free(undisturbed);
}

enum victim { RUNNER, WORKER_0, COORDINATOR };

/* clang-format off */
static const struct {
    int n;
    /* at: number of measured steps after which the process is killed */
    struct { enum victim process; int at; } kills[4];
} runs[] = {
    {1, {{RUNNER, 20}}},
    {1, {{WORKER_0, 20}}},
    {1, {{COORDINATOR, 20}}},
    {3, {{RUNNER, 15}, {WORKER_0, 60}, {COORDINATOR, 110}}},
    {4, {{COORDINATOR, 5}, {WORKER_0, 40}, {COORDINATOR, 60}, {RUNNER, 100}}},
};
/* clang-format on */

static void kill_process(enum victim process, struct farm_keys *spooled)
{
    switch (process) {
    case RUNNER:
        farm_kill_runner(&farm, 1);
        break;
    case WORKER_0:
        farm_kill_worker(&farm, 0);
        farm_read_spool(&farm, 0, spooled);
        start_worker(0);
        break;
    case COORDINATOR:
        farm_kill_daemon(&farm);
        farm_start_daemon(&farm, BEAT_MS);
        break;
    }
}

MF_TEST(gives_the_same_table, .rows = MF_ARRAY_LEN(runs))
{
    _cleanup_(farm_keys_release) struct farm_keys spooled = {0};
    start_farm();
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    for (int i = 0; i < runs[_i].n; i++) {
        ck_assert_msg(farm_wait_batch(&farm, batch, "measured", runs[_i].kills[i].at),
                      "the batch ended before the kill");
        kill_process(runs[_i].kills[i].process, &spooled);
    }
    farm_wait_done(&farm, batch);
    farm_wait_spools(&farm);
    check_database(batch, &spooled);
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    ck_assert_str_eq(table, undisturbed);
}

/* Kills both workers and the coordinator; restarts the workers before the coordinator. */
MF_TEST(survives_all_killed_at_once)
{
    _cleanup_(farm_keys_release) struct farm_keys spooled = {0};
    start_farm();
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    ck_assert(farm_wait_batch(&farm, batch, "measured", 30));
    farm_kill_daemon(&farm);
    farm_kill_worker(&farm, 0);
    farm_kill_worker(&farm, 1);
    farm_read_spool(&farm, 0, &spooled);
    farm_read_spool(&farm, 1, &spooled);
    start_worker(0);
    start_worker(1);
    farm_start_daemon(&farm, BEAT_MS);
    farm_wait_done(&farm, batch);
    farm_wait_spools(&farm);
    check_database(batch, &spooled);
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    ck_assert_str_eq(table, undisturbed);
    ck_assert_int_eq(farm_end(&farm.workers[0]), 0);
    ck_assert_int_eq(farm_end(&farm.daemon), 0);
}

static void stop_farm(void)
{
    farm_stop(&farm);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120,
                                                 .teardown = stop_farm,
                                                 .setup_all = make_undisturbed,
                                                 .teardown_all = free_undisturbed});
}
