/* kill -9 of a runner, a worker and the coordinator in the middle of a batch: it completes, nothing measured is lost
 * or counted twice, and the table is that of an undisturbed run. Two simulated workers. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/farm_audit.h"
#include "support/mf_check.h"
#include "worker/agent/agent_private.h"
#include "worker/agent/record.h"

#define BEAT_MS      300
#define LONG_BEAT_MS 20000 /* its lease outlasts two starts of a worker on a busy machine */

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64) FARM_CSV_FP8;

static struct farm farm;
static char *undisturbed;

static void start_slow_worker(int place, const char *spec_text)
{
    char device[64], spec[160];
    (void)snprintf(device, sizeof(device), "sim:gfx942/304:%d", place);
    (void)snprintf(spec, sizeof(spec), "%s:%s", device, farm_file(&farm, "spec.json", spec_text));
    const char *const args[] = {"--device", spec, NULL};
    farm_start_worker(&farm, place, args);
}

/* Slow enough for a batch to be there still when a busy machine lets the test see how far it is. */
static void start_worker(int place)
{
    start_slow_worker(place, "{\"step_ms\":15,\"pipeline_ms\":2}");
}

static void start_farm(void)
{
    farm_start(&farm, BEAT_MS);
    start_worker(0);
    start_worker(1);
    farm_wait_workers(&farm, 2);
}

/* ---- what is in the database ---- */

static bool has(const struct farm_keys *k, struct mf_spool_key key)
{
    for (size_t i = 0; i < k->n; i++) {
        if (k->at[i].unit == key.unit && k->at[i].attempt == key.attempt && k->at[i].seq == key.seq)
            return true;
    }
    return false;
}

/* Every item of a list that pages by cursor. */
static cJSON *get_all(const char *path)
{
    cJSON *all = cJSON_CreateArray();
    char cursor[160] = "";
    do {
        char page[320];
        (void)snprintf(page, sizeof(page), "%s%slimit=1000%s%s", path, strchr(path, '?') ? "&" : "?",
                       cursor[0] ? "&cursor=" : "", cursor);
        _cleanup_(cJSON_Deletep) cJSON *json = farm_get(&farm, page);
        ck_assert_msg(json != NULL, "%s", page);
        (void)snprintf(cursor, sizeof(cursor), "%s", farm_text(json, "next"));
        cJSON *items = mf_json_array(json, "items");
        while (cJSON_GetArraySize(items) > 0)
            cJSON_AddItemToArray(all, cJSON_DetachItemFromArray(items, 0));
    } while (cursor[0]);
    return all;
}

/* The results of one step or pipeline. Those that count (not late, and of a runner that lived) are one. */
static void collect(struct farm_keys *k, const char *path)
{
    _cleanup_(cJSON_Deletep) cJSON *results = get_all(path);
    const cJSON *item;
    int counted = 0;
    cJSON_ArrayForEach (item, results) {
        struct mf_spool_key key = {farm_number(item, "unit"), farm_number(item, "attempt"),
                                   farm_number(item, "seq")};
        ck_assert_msg(!has(k, key), "%s: unit %ld attempt %ld seq %ld twice", path, (long)key.unit,
                      (long)key.attempt, (long)key.seq);
        farm_keys_add(k, key);
        counted +=
            !cJSON_IsTrue(cJSON_GetObjectItem(item, "late")) && strcmp(farm_text(item, "status"), "ok") == 0;
    }
    ck_assert_msg(counted == 1, "%s: %d results count", path, counted);
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
        ck_assert_msg(has(&found, spooled->at[i]), "unit %ld attempt %ld seq %ld of the spool is lost",
                      (long)spooled->at[i].unit, (long)spooled->at[i].attempt, (long)spooled->at[i].seq);
}

/* ---- the runs ---- */

/* Once for all: what the table is when nothing happens. */
static void make_undisturbed(void)
{
    start_farm();
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    farm_wait_done(&farm, batch);
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
    struct { enum victim who; int at; } kills[4];   /* at: results measured */
} runs[] = {
    {1, {{RUNNER, 20}}},
    {1, {{WORKER_0, 20}}},
    {1, {{COORDINATOR, 20}}},
    {3, {{RUNNER, 15}, {WORKER_0, 60}, {COORDINATOR, 110}}},
    {4, {{COORDINATOR, 5}, {WORKER_0, 40}, {COORDINATOR, 60}, {RUNNER, 100}}},
};
/* clang-format on */

static void strike(enum victim who, struct farm_keys *spooled)
{
    switch (who) {
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

START_TEST(same_table)
{
    _cleanup_(farm_keys_release) struct farm_keys spooled = {0};
    start_farm();
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    for (int i = 0; i < runs[_i].n; i++) {
        ck_assert_msg(farm_wait_batch(&farm, batch, "measured", runs[_i].kills[i].at),
                      "done before the kill");
        strike(runs[_i].kills[i].who, &spooled);
    }
    farm_wait_done(&farm, batch);
    farm_wait_spools(&farm);
    check_database(batch, &spooled);
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    ck_assert_str_eq(table, undisturbed);
}
END_TEST

/* Both workers and the coordinator at once; then, with nobody there, the workers come first. */
START_TEST(all_at_once)
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
END_TEST

/* Every step of the batch has one result, of the first attempt, that counts. */
static void check_measured_once(int batch)
{
    char path[96];
    (void)snprintf(path, sizeof(path), "/api/v1/batches/%d/tasks", batch);
    _cleanup_(cJSON_Deletep) cJSON *tasks = get_all(path);
    const cJSON *task, *step;
    cJSON_ArrayForEach (task, tasks) {
        (void)snprintf(path, sizeof(path), "/api/v1/tasks/%d/steps", farm_number(task, "id"));
        _cleanup_(cJSON_Deletep) cJSON *steps = get_all(path);
        cJSON_ArrayForEach (step, steps) {
            (void)snprintf(path, sizeof(path), "/api/v1/steps/%d/results?task=%d", farm_number(step, "id"),
                           farm_number(task, "id"));
            _cleanup_(cJSON_Deletep) cJSON *results = get_all(path);
            ck_assert_int_eq(cJSON_GetArraySize(results), 1);
            const cJSON *only = cJSON_GetArrayItem(results, 0);
            ck_assert_int_eq(farm_number(only, "attempt"), 1);
            ck_assert(!cJSON_IsTrue(cJSON_GetObjectItem(only, "late")));
            ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(only, "final")));
        }
    }
}

/* How many units the worker's journal says it has in hand. */
static int in_hand(void)
{
    char path[128], magic[5];
    struct stat st;
    int n = 0;
    (void)snprintf(path, sizeof(path), "%s/w0.units", farm.folder);
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(fstat(fd, &st), 0);
    for (uint64_t at = 0;;) {
        _cleanup_(mf_freep) char *text = NULL;
        size_t len;
        if (mf_record_read(fd, at, (uint64_t)st.st_size, magic, &text, &len) <= 0)
            return n;
        n += strncmp(text, "{\"unit\"", 7) == 0;
        n -= strncmp(text, "{\"gone\"", 7) == 0;
        at += MF_RECORD_HEADER + len;
    }
}

/* With as many units as it takes, so that none is on its way to it that it never heard of: that one would be leased again. */
static void kill_worker_that_is_full(int batch)
{
    for (;;) {
        ck_assert_int_eq(kill(farm.workers[0], SIGSTOP), 0);
        ck_assert_int_eq(waitpid(farm.workers[0], NULL, WUNTRACED), farm.workers[0]);
        if (in_hand() == MF_AGENT_JOBS_WANTED)
            break;
        ck_assert_int_eq(kill(farm.workers[0], SIGCONT), 0);
        ck_assert(farm_wait_more(&farm, batch, 1));
    }
    farm_kill_worker(&farm, 0);
}

/* Killed and started again within the lease, soon and again: it goes on with its units, that which waits too, and nothing is
 * measured again. */
START_TEST(goes_on_with_its_units)
{
    enum { KILLS = 2 };
    static const char slow[] = "{\"step_ms\":20}"; /* slower than its predecessor is replaced */
    farm_start(&farm, LONG_BEAT_MS);
    start_slow_worker(0, slow);
    farm_wait_workers(&farm, 1);
    int batch = farm_submit(&farm, csv, "&classes=gfx942/304");
    for (int kill = 0; kill < KILLS; kill++) {
        ck_assert(farm_wait_more(&farm, batch, 4));
        kill_worker_that_is_full(batch);
        start_slow_worker(0, slow);
    }
    farm_wait_done(&farm, batch);
    check_measured_once(batch);
    _cleanup_(mf_freep) char *table = farm_export(&farm, batch);
    ck_assert_str_eq(table, undisturbed);
    ck_assert_int_ge(farm_log_count(&farm, "worker0.log", "goes on with unit"), KILLS);
}
END_TEST

static void stop_farm(void)
{
    farm_stop(&farm);
}

int main(void)
{
    Suite *suite = suite_create("farm_kill");
    TCase *tc = tcase_create("farm_kill");
    tcase_add_unchecked_fixture(tc, make_undisturbed, free_undisturbed);
    tcase_add_checked_fixture(tc, NULL, stop_farm);
    tcase_add_loop_test(tc, same_table, 0, (int)MF_ARRAY_LEN(runs));
    tcase_add_test(tc, all_at_once);
    tcase_add_test(tc, goes_on_with_its_units);
    tcase_set_timeout(tc, 120);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
