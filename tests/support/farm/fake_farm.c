#include "support/farm/fake_farm.h"

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/store/store_private.h"
#include "support/mf_check.h"
#include "support/table_columns.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

void fake_farm_start_with(struct fake_farm *f, int beat_ms, const char *const *more)
{
    *f = (struct fake_farm){.zmq = zmq_ctx_new(), .process.log = "log", .process.more = more};
    f->process.log_level = "info";
    farm_process_start(&f->process, beat_ms);
}

void fake_farm_start(struct fake_farm *f)
{
    fake_farm_start_with(f, FAKE_FARM_BEAT_MS, NULL);
}

void fake_farm_stop(struct fake_farm *f)
{
    ck_assert_int_eq(farm_process_kill(&f->process, SIGTERM), 0);
    farm_process_remove(&f->process);
    (void)zmq_ctx_term(f->zmq);
}

void fake_farm_join(struct fake_farm *f, struct fake_worker *w, const char *name)
{
    ck_assert_int_eq(fake_worker_open(w, f->zmq, f->process.hub, name), 0);
    ck_assert_int_eq(fake_worker_greet(w, "[]", FAKE_FARM_LIMIT_MS), 0);
}

int64_t fake_farm_submit(struct fake_farm *f, int n_tokens, const char *query)
{
    struct mf_buf csv;
    char path[160];
    int status = 0;
    int64_t batch = 0;
    mf_buf_init(&csv, 1u << 16);
    (void)mf_buf_adds(&csv, SHAPE_COLUMNS "\n");
    for (int i = 0; i < n_tokens; i++)
        (void)mf_buf_addf(&csv,
                          "%d,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                          "QuantType.No,1,0\n",
                          1 << i);
    (void)snprintf(path, sizeof(path), "/api/v1/batches?topk=4&regret=none%s", query);
    _cleanup_(mf_freep) char *answer =
        farm_process_http(&f->process, "POST", path, "text/csv", csv.data, &status);
    mf_buf_release(&csv);
    ck_assert_msg(status == 201, "%d %s", status, answer ? answer : "");
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(answer, strlen(answer), 1u << 20);
    ck_assert_int_eq(mf_json_i64(json, "batch", 1, INT64_MAX, &batch), 0);
    return batch;
}

/* Opens the database of the running farm. The caller frees it. */
static sqlite3 *open_database(const struct fake_farm *f)
{
    char path[320];
    sqlite3 *db = NULL;
    (void)snprintf(path, sizeof(path), "%s/state/farm.db", f->process.folder);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, FAKE_FARM_LIMIT_MS);
    return db;
}

void fake_farm_sql(const struct fake_farm *f, const char *sql)
{
    sqlite3 *db = open_database(f);
    ck_assert_msg(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    (void)sqlite3_close(db);
}

char *fake_farm_text(const struct fake_farm *f, const char *sql)
{
    sqlite3 *db = open_database(f);
    sqlite3_stmt *q = NULL;
    ck_assert_msg(sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    ck_assert_int_eq(sqlite3_step(q), SQLITE_ROW);
    const char *text = (const char *)sqlite3_column_text(q, 0);
    char *copy = strdup(text ? text : "NULL");
    (void)sqlite3_finalize(q);
    (void)sqlite3_close(db);
    return copy;
}

double fake_farm_number(const struct fake_farm *f, const char *sql)
{
    double number = 0;
    _cleanup_(mf_freep) char *text = fake_farm_text(f, sql);
    ck_assert_msg(mf_parse_double(text, &number) == 0, "%s: %s", sql, text);
    return number;
}

double fake_farm_metric(const struct fake_farm *f, const char *name)
{
    int status = 0;
    size_t len = strlen(name);
    _cleanup_(mf_freep) char *text = farm_process_http(&f->process, "GET", "/metrics", "", "", &status);
    ck_assert_ptr_nonnull(text);
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        double value = 0;
        if (strncmp(line, name, len) == 0 && line[len] == ' ' && mf_parse_double(line + len + 1, &value) == 0)
            return value;
    }
    ck_abort_msg("no metric %s", name);
    return 0;
}

static bool is_done(const struct fake_farm *f, int64_t batch)
{
    char path[64];
    int status = 0;
    (void)snprintf(path, sizeof(path), "/api/v1/batches/%" PRId64, batch);
    _cleanup_(mf_freep) char *answer = farm_process_http(&f->process, "GET", path, "", "", &status);
    return answer && strstr(answer, "\"state\":\"done\"");
}

void fake_farm_finish(struct fake_farm *f, struct fake_worker *w, int64_t batch)
{
    ck_assert_int_eq(fake_worker_ready(w), 0);
    for (int64_t end = mf_now_ms() + FAKE_FARM_LIMIT_MS; !is_done(f, batch);) {
        ck_assert_msg(mf_now_ms() < end, "batch %" PRId64 " is not done in time", batch);
        _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(w, MF_MESSAGE_UNIT, 100);
        if (!unit)
            continue;
        ck_assert_int_eq(fake_worker_answer(w, unit), 0);
        ck_assert_int_eq(fake_worker_ready(w), 0);
    }
}

void fake_farm_expect_refusal(struct fake_worker *w, const char *text)
{
    const char *reason = "";
    _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(w, MF_MESSAGE_REFUSE, FAKE_FARM_LIMIT_MS);
    ck_assert_msg(refusal != NULL, "not refused, expected \"%s\"", text);
    ck_assert_int_eq(mf_json_text(refusal, "reason", &reason), 0);
    ck_assert_msg(strstr(reason, text) != NULL, "refused with \"%s\", expected \"%s\"", reason, text);
}

int fake_farm_count_log(const struct fake_farm *f, const char *text)
{
    char path[320], line[4096];
    int n = 0;
    (void)snprintf(path, sizeof(path), "%s/log", f->process.folder);
    _cleanup_(mf_fclosep) FILE *log = fopen(path, "re");
    ck_assert_ptr_nonnull(log);
    while (fgets(line, sizeof(line), log))
        n += strstr(line, text) != NULL;
    return n;
}

void fake_farm_expect_log(const struct fake_farm *f, const char *text)
{
    ck_assert_msg(fake_farm_count_log(f, text) > 0, "the log has no line with \"%s\"", text);
}

/* Reads from the API why the worker is quarantined. Returns "" if it is not quarantined. The caller frees the
 * text. */
static char *quarantine_of(struct fake_farm *f, const char *name)
{
    int status = 0;
    const cJSON *worker;
    _cleanup_(mf_freep) char *answer =
        farm_process_http(&f->process, "GET", "/api/v1/workers", "", "", &status);
    _cleanup_(cJSON_Deletep) cJSON *list = mf_json_parse(answer, strlen(answer), 1u << 20);
    cJSON_ArrayForEach (worker, mf_json_array(list, "items")) {
        const char *found = "", *reason = "";
        (void)mf_json_text(worker, "name", &found);
        ck_assert_int_eq(mf_json_text(worker, "quarantined", &reason), 0);
        if (strcmp(found, name) == 0)
            return strdup(reason);
    }
    ck_abort_msg("no worker %s", name);
    return NULL;
}

void fake_farm_expect_quarantine(struct fake_farm *f, const char *name, const char *text)
{
    _cleanup_(mf_freep) char *reason = quarantine_of(f, name);
    ck_assert_msg(*text ? strstr(reason, text) != NULL : !*reason, "%s: \"%s\", expected \"%s\"", name,
                  reason, text);
}
