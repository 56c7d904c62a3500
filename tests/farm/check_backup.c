/* Tests moefarmd --backup while the farm runs. The copy passes integrity_check and holds every result that
 * was acknowledged before the backup began, and the farm keeps running. check_farm tests a farm that starts
 * from a restored copy. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/store/store_private.h"
#include "support/farm/farm_harness.h"
#include "support/farm/http_client.h"
#include "support/mf_check.h"
#include "support/run_program.h"

#define DAEMON MF_BINARY_DIR "/server/moefarmd"
#define COPIES 5

static const char csv[] = FARM_CSV_HEAD FARM_CSV_ROW(16) FARM_CSV_ROW(64) FARM_CSV_ROW(128);

static struct farm farm;

static void stop(void)
{
    farm_stop(&farm);
}

/* Returns the number of acknowledged results. Workers may have deleted acknowledged results from their
 * spools. */
static int64_t acknowledged(void)
{
    struct http_reply r = http_get(farm.http, "/metrics");
    const char *line = r.body ? strstr(r.body, "\nmoefarm_results_committed_total ") : NULL;
    ck_assert_ptr_nonnull(line);
    int64_t n = strtoll(strchr(line + 1, ' '), NULL, 10);
    http_reply_free(&r);
    return n;
}

static void path_of(const char *name, char *path, size_t cap)
{
    (void)snprintf(path, cap, "%s/%s", farm.folder, name);
}

static int64_t query_number(struct mf_store *s, const char *sql)
{
    struct mf_sql *q = NULL;
    ck_assert_int_eq(mf_sql_dynamic(s, sql, &q), 0);
    int64_t n = mf_sql_next(q) > 0 ? mf_sql_i64(q, 0) : -1;
    mf_sql_done(q);
    return n;
}

/* Checks a copy of the database and returns its number of results. */
static int64_t check_copy(const char *path)
{
    _cleanup_(mf_store_freep) struct mf_store *s = NULL;
    struct mf_sql *q = NULL;
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(mf_store_open_reader(path, &s), 0);
    ck_assert_int_eq(mf_sql_dynamic(s, "PRAGMA integrity_check", &q), 0);
    ck_assert_int_eq(mf_sql_next(q), 1);
    ck_assert_str_eq(mf_sql_text(q, 0), "ok");
    mf_sql_done(q);
    ck_assert_int_eq(query_number(s, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
    /* A result and the state of its unit are written in one transaction. */
    ck_assert_int_eq(
        query_number(s, "SELECT count(*) FROM unit u WHERE state = 'done' AND kind = 'probe' AND NOT EXISTS"
                        " (SELECT 1 FROM result r WHERE r.unit = u.id)"),
        0);
    return query_number(s, "SELECT count(*) FROM result");
}

static struct ran back_up(const char *name)
{
    static const char *const none[] = {NULL};
    char state[128], path[128];
    path_of("state", state, sizeof(state));
    path_of(name, path, sizeof(path));
    const char *const argv[] = {DAEMON, "--state", state, "--backup", path, NULL};
    return run_program(argv, none);
}

MF_TEST(copies_under_load)
{
    char name[16], path[128], device[160], another[16];
    int64_t last = 0;
    farm_start(&farm, 300);
    for (int place = 0; place < 2; place++) {
        (void)snprintf(device, sizeof(device), "sim:gfx942/304:%d:%s", place,
                       farm_file(&farm, "spec.json", "{\"step_ms\":20,\"pipeline_ms\":2}"));
        const char *const args[] = {"--device", device, NULL};
        farm_start_worker(&farm, place, args);
    }
    farm_wait_workers(&farm, 2);
    int batch = farm_submit(&farm, csv, "");
    for (int i = 0; i < COPIES; i++) {
        /* If the batch ends during a backup, start another batch. */
        (void)snprintf(another, sizeof(another), "&seed=%d", i + 2);
        while (!farm_wait_more(&farm, batch, 10))
            batch = farm_submit(&farm, csv, another);
        int64_t before = acknowledged();
        ck_assert_int_gt(before, last);
        (void)snprintf(name, sizeof(name), "copy%d.db", i);
        struct ran r = back_up(name);
        ck_assert_msg(r.code == 0, "%s", r.text);
        path_of(name, path, sizeof(path));
        int64_t n = check_copy(path);
        ck_assert_msg(n >= before, "the copy has %ld of %ld acknowledged results", (long)n, (long)before);
        last = before;
    }
    farm_wait_done(&farm, batch);
    ck_assert_int_gt(acknowledged(), last);
}

/* A failed backup leaves no file behind and does not change an existing file. */
MF_TEST(rejects_bad_targets)
{
    char path[128];
    struct stat st;
    farm_start(&farm, 300);
    (void)farm_file(&farm, "mine", "mine");
    struct ran r = back_up("mine");
    ck_assert_int_eq(r.code, 1);
    assert_says(r, "/mine: File exists");
    path_of("mine", path, sizeof(path));
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, 4);
    /* the target must not be the database */
    ck_assert_int_eq(back_up("state/farm.db").code, 1);
    r = back_up("no/folder/copy.db");
    ck_assert_int_eq(r.code, 1);
    assert_says(r, "No such file or directory");
    farm_kill_daemon(&farm);
    path_of("state/farm.db", path, sizeof(path));
    ck_assert_int_eq(truncate(path, 8192), 0);
    path_of("state/farm.db-wal", path, sizeof(path));
    (void)unlink(path);
    ck_assert_int_eq(back_up("copy.db").code, 1);
    path_of("copy.db", path, sizeof(path));
    ck_assert_int_lt(access(path, F_OK), 0);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120, .teardown = stop});
}
