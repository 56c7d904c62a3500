/* Releases (frozen exports) and the channels that serve them. A release equals the export, is immutable, and
 * links each row to its samples. */
#include "support/farm/farm_fixture.h"
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/table/table.h"
#include "server/api/release.h"
#include "server/store/store_private.h"
#include "server/store/store_read_release.h"
#include "server/store/store_unit.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct http_harness *h;

static void start(void)
{
    h = http_harness_start(&(struct http_harness_options){.fixture = true});
}

static void stop(void)
{
    http_harness_stop(h);
}

/* Asserts the status and returns the JSON of the response. The caller frees it. */
static cJSON *call_json(const char *method, const char *path, int status)
{
    struct http_reply r = http_call(http_harness_port(h), method, path, "", NULL, 0);
    ck_assert_msg(r.status == status, "%s %s: status %d: %s", method, path, r.status, r.body);
    cJSON *json = mf_json_parse(r.body, r.len, r.len);
    http_reply_free(&r);
    return json;
}

static int64_t number(const cJSON *o, const char *key)
{
    int64_t value = -1;
    ck_assert_msg(mf_json_i64(o, key, 0, INT64_MAX, &value) == 0, "member %s is not a number", key);
    return value;
}

static const char *text(const cJSON *o, const char *key)
{
    const char *value = "";
    ck_assert_msg(mf_json_text(o, key, &value) == 0, "member %s is not a text", key);
    return value;
}

static void call_status(const char *method, const char *path, int status)
{
    cJSON_Delete(call_json(method, path, status));
}

MF_TEST(repeated_release_is_the_same)
{
    _cleanup_(cJSON_Deletep) cJSON *first = call_json("POST", "/api/v1/releases?name=one", 201);
    _cleanup_(cJSON_Deletep) cJSON *again = call_json("POST", "/api/v1/releases?name=one", 200);
    ck_assert(cJSON_Compare(first, again, true));
    ck_assert_int_eq(number(first, "rows"), 8);
    /* one task failed, and five tasks of the fixture are open */
    ck_assert_int_eq(number(first, "left_out"), 6);
    call_status("POST", "/api/v1/releases?name=one&batch=1", 409);
    call_status("POST", "/api/v1/releases?name=1one", 400);
    call_status("POST", "/api/v1/releases?name=one,two", 400);
    call_status("POST", "/api/v1/releases?nmae=one", 400);
    call_status("POST", "/api/v1/releases?batch=3", 422);
    /* the default name contains the hash */
    _cleanup_(cJSON_Deletep) cJSON *unnamed = call_json("POST", "/api/v1/releases", 201);
    ck_assert(strncmp(text(unnamed, "name"), "r-", 2) == 0 &&
              strncmp(text(unnamed, "name") + 2, text(first, "sha256"), 12) == 0);
}

/* On the requested model, one task failed and four are open. The other model has rows for one failed and one
 * open task, but these rows are not part of this release. */
MF_TEST(rows_of_another_model_are_not_released)
{
    stop();
    h = http_harness_start(&(struct http_harness_options){.fixture = true, .second_model = true});
    _cleanup_(cJSON_Deletep) cJSON *first =
        call_json("POST", "/api/v1/releases?name=one&model=EPYC%209R14", 201);
    ck_assert_int_eq(number(first, "rows"), 8);
    ck_assert_int_eq(number(first, "left_out"), 5);
}

MF_TEST(release_equals_export)
{
    char hash[MF_SHA256_TEXT_MAX], etag[80];
    _cleanup_(cJSON_Deletep) cJSON *made = call_json("POST", "/api/v1/releases?name=one&batch=1", 201);
    struct http_reply table = http_get(http_harness_port(h), "/api/v1/export/tuned_fmoe.csv?batch=1");
    struct http_reply csv = http_get(http_harness_port(h), "/api/v1/releases/1/tuned_fmoe.csv");
    ck_assert_int_eq(csv.status, 200);
    ck_assert_str_eq(csv.body, table.body);
    mf_sha256_print(csv.body, csv.len, hash);
    ck_assert_str_eq(hash, text(made, "sha256"));
    (void)snprintf(etag, sizeof(etag), "\"%s\"", hash);
    ck_assert_str_eq(http_header(&csv, "ETag"), etag);
    ck_assert_str_eq(http_header(&table, "ETag"), etag);
    http_reply_free(&table);
    http_reply_free(&csv);
}

/* Compares every member of a row with the farm's response for the task, and requests every link of the row.
 */
static void check_row(const cJSON *row, const cJSON *line)
{
    char path[96];
    (void)snprintf(path, sizeof(path), "/api/v1/tasks/%lld", (long long)number(row, "task"));
    _cleanup_(cJSON_Deletep) cJSON *task = call_json("GET", path, 200);
    const cJSON *config = mf_json_object(task, "config"), *links = mf_json_object(line, "links"), *link, *tie;
    double us = 0, config_us = 0;
    ck_assert_str_eq(text(row, "key"), text(line, "key"));
    ck_assert_int_eq(number(row, "config"), number(line, "config"));
    ck_assert_int_eq(number(row, "pipeline"), number(config, "pipeline"));
    ck_assert(cJSON_Compare(mf_json_array(row, "names"), mf_json_array(task, "winner"), true));
    ck_assert(cJSON_Compare(mf_json_object(row, "shape"), mf_json_object(task, "shape"), true));
    ck_assert(cJSON_Compare(mf_json_array(row, "regret"), mf_json_array(config, "regret"), true));
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(row, "ties")),
                     cJSON_GetArraySize(mf_json_array(config, "ties")));
    cJSON_ArrayForEach (tie, mf_json_array(row, "ties"))
        ck_assert_int_gt(cJSON_GetArraySize(mf_json_array(tie, "names")), 0);
    (void)mf_json_double(row, "us", &us);
    (void)mf_json_double(config, "us", &config_us);
    ck_assert_double_le(fabs(us - config_us), 5e-5);
    ck_assert_str_eq(text(row, "compiler"), "gcc 12.2.0");
    ck_assert_str_eq(text(row, "worker"), "node-a-cpu0");
    ck_assert_str_eq(text(row, "routing"), "uniform");
    ck_assert_int_gt(number(line, "samples"), 0);
    ck_assert_int_eq(cJSON_GetArraySize(links), 4);
    cJSON_ArrayForEach (link, links)
        call_status("GET", link->valuestring, 200);
}

MF_TEST(rows_link_to_their_samples)
{
    call_status("POST", "/api/v1/releases?name=one", 201);
    _cleanup_(cJSON_Deletep) cJSON *manifest = call_json("GET", "/api/v1/releases/1/manifest.json", 200);
    _cleanup_(cJSON_Deletep) cJSON *lines = call_json("GET", "/api/v1/releases/1/rows?limit=5", 200);
    struct http_reply csv = http_get(http_harness_port(h), "/api/v1/releases/1/tuned_fmoe.csv");
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX], key[MF_TABLE_KEY_MAX];
    ck_assert_int_eq(mf_table_read("csv", csv.body, csv.len, &t, why), 0);
    const cJSON *rows = mf_json_array(manifest, "rows"), *items = mf_json_array(lines, "items");
    ck_assert_int_eq(cJSON_GetArraySize(rows), 8);
    ck_assert_uint_eq(t->n_rows, 8);
    ck_assert_int_eq(cJSON_GetArraySize(items), 5);
    ck_assert_str_ne(text(lines, "next"), "");
    for (int i = 0; i < 5; i++)
        check_row(cJSON_GetArrayItem(rows, i), cJSON_GetArrayItem(items, i));
    for (int i = 0; i < 8; i++) {
        mf_table_key(&t->rows[i], key);
        ck_assert_str_eq(key, text(cJSON_GetArrayItem(rows, i), "key"));
        ck_assert_int_eq(number(cJSON_GetArrayItem(rows, i), "row"), i + 1);
    }
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(manifest, "batches")), 2);
    ck_assert_int_eq(number(cJSON_GetArrayItem(mf_json_array(manifest, "devices"), 0), "rows"), 8);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(manifest, "left_out")), 6);
    http_reply_free(&csv);
}

/* Makes the writer run the SQL and waits until readers see the change. To mark the change, the writer also
 * creates a channel named `mark`. */
static void change(const char *sql, const char *mark)
{
    char all[1024], mark_path[80];
    int64_t end = mf_now_ms() + 20000;
    int status;
    (void)snprintf(all, sizeof(all), "%s; INSERT INTO channel (name, created_ms) VALUES ('%s', 1)", sql,
                   mark);
    (void)snprintf(mark_path, sizeof(mark_path), "/api/v1/channels/%s", mark);
    http_harness_event(h, 0, "x", "{}", all);
    do {
        struct http_reply r = http_get(http_harness_port(h), mark_path);
        status = r.status;
        http_reply_free(&r);
        ck_assert_msg(mf_now_ms() < end, "readers do not see %s", sql);
    } while (status != 200);
}

/* A release that a failing disk or an edit has changed is no longer served. */
MF_TEST(damaged_release_is_not_served)
{
    static const char *const damage[] = {
        "DROP TRIGGER release_no_update; UPDATE release SET csv = CAST(replace(CAST(csv AS TEXT), "
        "'sort_m16', "
        "'sort_m17') AS BLOB)",
        "UPDATE release SET manifest = CAST(replace(CAST(manifest AS TEXT), 'gcc 12', 'gcc 13') AS BLOB)"};
    call_status("POST", "/api/v1/releases?name=one", 201);
    call_status("POST", "/api/v1/channels/stable/stage?release=1", 200);
    call_status("POST", "/api/v1/channels/stable/approve?release=1", 200);
    call_status("GET", "/api/v1/releases/1/manifest.json", 200);
    change(damage[0], "one");
    struct http_reply r = http_get(http_harness_port(h), "/api/v1/channels/stable/tuned_fmoe.csv");
    ck_assert_int_eq(r.status, 500);
    ck_assert_ptr_nonnull(strstr(r.body, "does not match its hash"));
    http_reply_free(&r);
    call_status("GET", "/api/v1/releases/1/tuned_fmoe.csv", 500);
    call_status("GET", "/api/v1/releases/1/manifest.json", 200);
    change(damage[1], "two");
    call_status("GET", "/api/v1/releases/1/manifest.json", 500);
}

MF_TEST(unchanged_table_is_not_sent_again)
{
    char headers[128];
    call_status("GET", "/api/v1/channels/stable", 404);
    call_status("POST", "/api/v1/releases?name=one&batch=1", 201);
    call_status("POST", "/api/v1/releases?name=two", 201);
    call_status("POST", "/api/v1/channels/stable/stage?release=1", 200);
    call_status("GET", "/api/v1/channels/stable/tuned_fmoe.csv", 404); /* no release is approved yet */
    call_status("POST", "/api/v1/channels/stable/approve?release=1", 200);
    struct http_reply r = http_get(http_harness_port(h), "/api/v1/channels/stable/tuned_fmoe.csv");
    ck_assert_int_eq(r.status, 200);
    ck_assert_str_eq(http_header(&r, "Moefarm-Release"), "1 one");
    (void)snprintf(headers, sizeof(headers), "If-None-Match: %s\r\n", http_header(&r, "ETag"));
    http_reply_free(&r);
    r = http_call(http_harness_port(h), "GET", "/api/v1/channels/stable/tuned_fmoe.csv", headers, NULL, 0);
    ck_assert_int_eq(r.status, 304);
    ck_assert_uint_eq(r.len, 0);
    ck_assert_str_eq(http_header(&r, "Moefarm-Release"), "1 one");
    http_reply_free(&r);
    call_status("POST", "/api/v1/channels/stable/stage?release=2", 200);
    r = http_call(http_harness_port(h), "GET", "/api/v1/channels/stable/tuned_fmoe.csv", headers, NULL, 0);
    ck_assert_int_eq(r.status, 304); /* the staged release is not the current release */
    http_reply_free(&r);
    call_status("POST", "/api/v1/channels/stable/approve?release=2", 200);
    r = http_call(http_harness_port(h), "GET", "/api/v1/channels/stable/tuned_fmoe.csv", headers, NULL, 0);
    ck_assert_int_eq(r.status, 200);
    ck_assert_str_eq(http_header(&r, "Moefarm-Release"), "2 two");
    http_reply_free(&r);
    r = http_get(http_harness_port(h), "/metrics");
    ck_assert_ptr_nonnull(strstr(r.body, "\nmoefarm_channel_release{channel=\"stable\"} 2\n"));
    http_reply_free(&r);
}

/* A release for vLLM has files instead of a table, and a row for each entry of the files. */
MF_TEST(release_has_configs)
{
    stop();
    h = http_harness_start(&(struct http_harness_options){.fixture = true, .configs = true});
    cJSON_Delete(call_json("POST", "/api/v1/releases?name=none&consumer=vllm&class=cpu-znver4/2", 422));
    cJSON *made = call_json("POST", "/api/v1/releases?name=files&consumer=vllm&class=sm_90/132", 201);
    ck_assert_int_eq(number(made, "rows"), 3);     /* not the default's row, nor the other layer model's */
    ck_assert_int_eq(number(made, "left_out"), 3); /* these two and the row of SGLang */
    cJSON_Delete(call_json("POST", "/api/v1/releases?name=files&consumer=vllm&class=sm_90/132", 200));
    struct http_reply r = http_get(http_harness_port(h), "/api/v1/releases/1/configs.json");
    ck_assert_int_eq(r.status, 200);
    ck_assert_ptr_nonnull(strstr(http_header(&r, "ETag"), text(made, "sha256")));
    ck_assert_ptr_nonnull(strstr(r.body, "{\"E=8,N=7168,device_name=NVIDIA_H200.json\":\"{"));
    http_reply_free(&r);
    cJSON_Delete(made);
    call_status("GET", "/api/v1/releases/1/tuned_fmoe.csv", 409);
    call_status("GET", "/api/v1/releases/1/manifest.json", 200);
    call_status("POST", "/api/v1/releases?name=table&batch=1", 201);
    call_status("GET", "/api/v1/releases/2/configs.json", 409);
    call_status("POST", "/api/v1/channels/vllm/stage?release=1", 200);
    call_status("POST", "/api/v1/channels/vllm/approve?release=1", 200);
    call_status("GET", "/api/v1/channels/vllm/tuned_fmoe.csv", 409);
    cJSON *channel = call_json("GET", "/api/v1/channels/vllm", 200);
    ck_assert_str_eq(text(mf_json_object(channel, "current"), "consumer"), "vllm");
    cJSON_Delete(channel);
    r = http_get(http_harness_port(h), "/api/v1/channels/vllm/configs.json");
    ck_assert_int_eq(r.status, 200);
    ck_assert_str_eq(http_header(&r, "Moefarm-Release"), "1 files");
    http_reply_free(&r);
}

MF_TEST(differences_by_key)
{
    call_status("POST", "/api/v1/releases?name=one", 201);
    change("UPDATE config SET us = us * 0.5 WHERE task = 3; UPDATE config SET us = 0 WHERE task = 4", "one");
    call_status("POST", "/api/v1/releases?name=two", 201);
    call_status("POST", "/api/v1/releases?name=three&batch=2", 201);
    _cleanup_(cJSON_Deletep) cJSON *d = call_json("GET", "/api/v1/releases/2/diff", 200);
    ck_assert_int_eq(number(d, "against"), 1);
    ck_assert_int_eq(number(d, "same"), 6);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(d, "removed")), 1);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(d, "added")), 0);
    const cJSON *changed = cJSON_GetArrayItem(mf_json_array(d, "changed"), 0);
    double old_us = 0, new_us = 0;
    (void)mf_json_double(changed, "old_us", &old_us);
    (void)mf_json_double(changed, "new_us", &new_us);
    ck_assert_double_le(fabs(new_us - old_us / 2), 1e-4);
    _cleanup_(cJSON_Deletep) cJSON *back = call_json("GET", "/api/v1/releases/1/diff?against=3", 200);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(back, "added")), 7);
    ck_assert_int_eq(number(back, "same"), 1);
    _cleanup_(cJSON_Deletep) cJSON *first = call_json("GET", "/api/v1/releases/1/diff", 200);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(first, "against")));
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(first, "added")), 8);
    call_status("GET", "/api/v1/releases/1/diff?against=9", 404);
    call_status("GET", "/api/v1/releases/9/diff", 404);
}

/* ---- tests on a database of their own ---- */

static char folder[64];
static struct mf_store *store;

static void open_store(void)
{
    char path[80];
    (void)snprintf(folder, sizeof(folder), "/tmp/check_release.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/db", folder);
    ck_assert_int_eq(mf_store_open(path, &store), 0);
    farm_fixture_fill(store, 1000000000);
    ck_assert_int_ge(mf_store_begin(store), 0);
}

static void close_store(void)
{
    mf_store_rollback(store);
    store = mf_store_free(store);
    ck_assert_int_eq(remove_tree(folder), 0);
}

static int64_t freeze(const char *name, int64_t batch)
{
    struct mf_release_work *w = NULL;
    char why[MF_REASON_MAX];
    int64_t id = 0;
    struct mf_export_options o = {.filter.batch = batch};
    ck_assert_int_eq(mf_release_make(store, &o, &(struct mf_release_request){name, "alice", 7}, &w, why), 0);
    ck_assert_int_eq(mf_store_release_add(store, &w->release, &id), 0);
    mf_release_work_free(w);
    return id;
}

static int64_t count(const char *sql)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    ck_assert_int_eq(mf_sql_dynamic(store, sql, &q), 0);
    ck_assert_int_eq(mf_sql_next(q), 1);
    return mf_sql_i64(q, 0);
}

static const struct mf_test_group stored_tests = {
    .timeout_s = 60, .setup = open_store, .teardown = close_store};

MF_TEST(release_is_immutable, .group = &stored_tests)
{
    static const char *const changes[] = {"UPDATE release SET name = 'other'",
                                          "DELETE FROM release_row",
                                          "UPDATE release_row SET us = 1",
                                          "DELETE FROM release",
                                          "UPDATE channel_move SET reason = 'other'",
                                          "DELETE FROM channel_move"};
    struct mf_channel c;
    (void)freeze("one", 0);
    ck_assert_int_eq(
        mf_store_channel_move(store, &(struct mf_channel_move){"stable", MF_MOVE_STAGE, 1, "", "", 1}, &c),
        MF_MOVED);
    for (size_t i = 0; i < MF_ARRAY_LEN(changes); i++)
        ck_assert_msg(sqlite3_exec(mf_store_db(store), changes[i], NULL, NULL, NULL) ==
                          SQLITE_CONSTRAINT_TRIGGER,
                      "%s", changes[i]);
}

/* If the winner of a task still races under the regret profiles, the task is open but already has a row. */
MF_TEST(racing_task_with_a_row_is_not_left_out, .group = &stored_tests)
{
    ck_assert_int_ge(mf_sql_run(store, "UPDATE task SET state = 'racing' WHERE id = 3", ""), 0);
    (void)freeze("one", FIXTURE_BATCH_DONE);
    ck_assert_int_eq(count("SELECT n_rows FROM release"), FIXTURE_TASKS_DONE);
    ck_assert_int_eq(count("SELECT n_left_out FROM release"), 0);
}

/* The provenance of a row includes the promotion decision. */
MF_TEST(manifest_has_promotions, .group = &stored_tests)
{
    struct mf_buf manifest;
    char hash[MF_SHA256_TEXT_MAX];
    ck_assert_int_ge(mf_sql_run(store, "DELETE FROM promotion", ""), 0);
    ck_assert_int_ge(
        mf_sql_run(
            store,
            "INSERT INTO promotion (task, known, known_us, source, new, new_us, least, decision, reason,"
            " at_ms) SELECT task, 'a:b|c:d', 7.5, 'line 7 of the baseline', pipeline, us, 0.03, "
            "'promoted', 'faster by 9%', 1 FROM config WHERE task = 3",
            ""),
        0);
    (void)freeze("one", FIXTURE_BATCH_DONE);
    mf_buf_init(&manifest, 16u << 20);
    ck_assert_int_eq(mf_read_release_file(store, 1, MF_RELEASE_MANIFEST, &manifest, hash), 0);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(manifest.data, manifest.len, manifest.len);
    const cJSON *rows = mf_json_array(json, "rows"), *row;
    cJSON_ArrayForEach (row, rows) {
        const cJSON *decision = cJSON_GetObjectItemCaseSensitive(row, "promotion");
        if (number(row, "task") == 3)
            ck_assert_str_eq(text(decision, "reason"), "faster by 9%");
        else
            ck_assert(cJSON_IsNull(decision));
    }
    mf_buf_release(&manifest);
}

/* When older samples are dropped, the samples of released rows are kept. */
MF_TEST(samples_of_releases_are_kept, .group = &stored_tests)
{
    (void)freeze("one", FIXTURE_BATCH_DONE);
    int64_t n_released =
        count("SELECT count(samples) FROM result WHERE task IN (SELECT task FROM release_row)");
    ck_assert_int_gt(n_released, 0);
    ck_assert_int_gt(count("SELECT count(samples) FROM result"), n_released);
    while (mf_store_samples_drop(store, INT64_MAX, INT64_MAX - 1, 1000) > 0)
        ;
    ck_assert_int_eq(count("SELECT count(samples) FROM result"), n_released);
    struct mf_list list;
    const cJSON *row;
    ck_assert_int_ge(mf_read_release_rows(store, 1, &(struct mf_page){.limit = 100}, &list), 0);
    cJSON_ArrayForEach (row, list.items)
        ck_assert_int_gt(number(row, "samples"), 0);
    cJSON_Delete(list.items);
}

/* clang-format off */
static const struct {
    enum mf_move move;
    int64_t release;
    enum mf_moved want;
    int64_t staged, current;
} moves[] = {
    {MF_MOVE_APPROVE,  1, MF_MOVED_NO_CHANNEL,  0, 0},
    {MF_MOVE_ROLLBACK, 1, MF_MOVED_NO_CHANNEL,  0, 0},
    {MF_MOVE_UNSTAGE,  1, MF_MOVED_NO_CHANNEL,  0, 0},
    {MF_MOVE_STAGE,    9, MF_MOVED_NO_RELEASE,  0, 0},
    {MF_MOVE_STAGE,    1, MF_MOVED,             1, 0},
    {MF_MOVE_STAGE,    1, MF_MOVED_ALREADY,      1, 0},
    {MF_MOVE_APPROVE,  2, MF_MOVED_NOT_STAGED,  1, 0}, /* the caller has reviewed another release */
    {MF_MOVE_ROLLBACK, 1, MF_MOVED_NOT_CURRENT, 1, 0},
    {MF_MOVE_APPROVE,  1, MF_MOVED,             0, 1},
    {MF_MOVE_APPROVE,  1, MF_MOVED_ALREADY,      0, 1}, /* the request is repeated after a lost response */
    {MF_MOVE_STAGE,    1, MF_MOVED_CURRENT,     0, 1},
    {MF_MOVE_ROLLBACK, 1, MF_MOVED_NO_PREVIOUS,  0, 1},
    {MF_MOVE_STAGE,    2, MF_MOVED,             2, 1},
    {MF_MOVE_STAGE,    3, MF_MOVED,             3, 1}, /* the new release replaces the staged release */
    {MF_MOVE_STAGE,    2, MF_MOVED,             2, 1},
    {MF_MOVE_APPROVE,  2, MF_MOVED,             0, 2},
    {MF_MOVE_STAGE,    3, MF_MOVED,             3, 2},
    {MF_MOVE_APPROVE,  3, MF_MOVED,             0, 3},
    {MF_MOVE_ROLLBACK, 2, MF_MOVED_NOT_CURRENT, 0, 3},
    {MF_MOVE_STAGE,    1, MF_MOVED,             1, 3},
    {MF_MOVE_ROLLBACK, 3, MF_MOVED,             1, 2}, /* the staged release stays staged */
    /* a repeated request does not cause a second rollback */
    {MF_MOVE_ROLLBACK, 3, MF_MOVED_ALREADY,      1, 2},
    /* a release that becomes current is no longer staged */
    {MF_MOVE_ROLLBACK, 2, MF_MOVED,             0, 1},
    {MF_MOVE_ROLLBACK, 1, MF_MOVED_NO_PREVIOUS,  0, 1},
    {MF_MOVE_STAGE,    3, MF_MOVED,             3, 1},
    {MF_MOVE_APPROVE,  3, MF_MOVED,             0, 3}, /* approved again after a rollback */
    {MF_MOVE_STAGE,    2, MF_MOVED,             2, 3},
    {MF_MOVE_APPROVE,  2, MF_MOVED,             0, 2},
    {MF_MOVE_STAGE,    3, MF_MOVED,             3, 2},
    {MF_MOVE_ROLLBACK, 2, MF_MOVED,             0, 3},
    /* rejected, because the release would be its own rollback target */
    {MF_MOVE_APPROVE,  3, MF_MOVED_CURRENT,     0, 3},
    {MF_MOVE_UNSTAGE,  3, MF_MOVED_NOT_STAGED,  0, 3}, /* the current release is not staged */
    {MF_MOVE_STAGE,    2, MF_MOVED,             2, 3},
    {MF_MOVE_UNSTAGE,  1, MF_MOVED_NOT_STAGED,  2, 3}, /* the caller has reviewed another release */
    {MF_MOVE_UNSTAGE,  2, MF_MOVED,             0, 3},
    {MF_MOVE_UNSTAGE,  2, MF_MOVED_ALREADY,      0, 3}, /* the request is repeated after a lost response */
    {MF_MOVE_UNSTAGE,  1, MF_MOVED_NOT_STAGED,  0, 3},
    {MF_MOVE_APPROVE,  2, MF_MOVED_NOT_STAGED,  0, 3}, /* the release is no longer staged */
    {MF_MOVE_STAGE,    1, MF_MOVED,             1, 3},
    /* a repeated request does not unstage another release */
    {MF_MOVE_UNSTAGE,  2, MF_MOVED_NOT_STAGED,  1, 3},
    {MF_MOVE_UNSTAGE,  1, MF_MOVED,             0, 3},
    /* rolls back to the release that was approved before release 3 */
    {MF_MOVE_ROLLBACK, 3, MF_MOVED,             0, 1},
    {MF_MOVE_ROLLBACK, 1, MF_MOVED_NO_PREVIOUS,  0, 1},
};
/* clang-format on */

MF_TEST(channel_moves, .group = &stored_tests)
{
    int64_t recorded = 0;
    struct mf_list list;
    (void)freeze("one", 0);
    (void)freeze("two", FIXTURE_BATCH_DONE);
    (void)freeze("three", FIXTURE_BATCH_OPEN);
    for (size_t i = 0; i < MF_ARRAY_LEN(moves); i++) {
        struct mf_channel c = {0};
        struct mf_channel_move m = {"stable", moves[i].move, moves[i].release, "alice", "", (int64_t)i};
        int got = mf_store_channel_move(store, &m, &c);
        ck_assert_msg(got == (int)moves[i].want, "%zu: %d", i, got);
        ck_assert_msg(c.staged == moves[i].staged && c.current == moves[i].current, "%zu: %lld %lld", i,
                      (long long)c.staged, (long long)c.current);
        recorded += moves[i].want == MF_MOVED;
    }
    ck_assert_int_ge(mf_read_channel_moves(store, "stable", &(struct mf_page){.limit = 100}, &list), 0);
    ck_assert_int_eq(cJSON_GetArraySize(list.items), recorded);
    const cJSON *last = cJSON_GetArrayItem(list.items, 0);
    ck_assert_str_eq(text(last, "move"), "rollback");
    ck_assert_int_eq(number(last, "from_release"), 3);
    ck_assert_int_eq(number(last, "to_release"), 1);
    ck_assert_str_eq(text(last, "moved_by"), "alice");
    const cJSON *back = cJSON_GetArrayItem(list.items, 1);
    ck_assert_str_eq(text(back, "move"), "unstage");
    ck_assert_int_eq(number(back, "from_release"), 1);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(back, "to_release")));
    cJSON_Delete(list.items);
}

/* Older versions recorded approvals of a release that was already current. Such an approval is not a rollback
 * target. */
MF_TEST(repeated_approval_is_no_rollback_target, .group = &stored_tests)
{
    static const char *const before[] = {
        "INSERT INTO channel_move (channel, move, from_release, to_release, below, moved_by, reason, at_ms)"
        " SELECT channel, 'approve', to_release, to_release, id, '', '', 1 FROM channel_move WHERE move = "
        "'approve'",
        "UPDATE channel SET approval = (SELECT max(id) FROM channel_move)"};
    struct mf_channel c;
    (void)freeze("one", 0);
    for (int move = MF_MOVE_STAGE; move <= MF_MOVE_APPROVE; move++)
        ck_assert_int_eq(
            mf_store_channel_move(store,
                                  &(struct mf_channel_move){"stable", (enum mf_move)move, 1, "", "", 1}, &c),
            MF_MOVED);
    for (size_t i = 0; i < MF_ARRAY_LEN(before); i++) {
        _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
        ck_assert_int_eq(mf_sql_dynamic(store, before[i], &q), 0);
        ck_assert_int_eq(mf_sql_next(q), 0);
    }
    struct mf_channel_move back = {"stable", MF_MOVE_ROLLBACK, 1, "", "", 2};
    ck_assert_int_eq(mf_store_channel_move(store, &back, &c), MF_MOVED_NO_PREVIOUS);
}

MF_TEST(channels_are_limited, .group = &stored_tests)
{
    struct mf_channel c;
    char channel[32];
    (void)freeze("one", 0);
    for (int i = 0; i <= MF_CHANNELS_MAX; i++) {
        (void)snprintf(channel, sizeof(channel), "c%d", i);
        struct mf_channel_move m = {channel, MF_MOVE_STAGE, 1, "", "", i};
        ck_assert_int_eq(mf_store_channel_move(store, &m, &c),
                         i < MF_CHANNELS_MAX ? MF_MOVED : MF_MOVED_TOO_MANY);
    }
    ck_assert_int_eq(count("SELECT count(*) FROM channel"), MF_CHANNELS_MAX);
    struct mf_channel_move known = {"c0", MF_MOVE_APPROVE, 1, "", "", 1};
    ck_assert_int_eq(mf_store_channel_move(store, &known, &c), MF_MOVED);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = start, .teardown = stop});
}
