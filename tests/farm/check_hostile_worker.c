/* Tests hostile and broken workers: messages with extreme numbers, messages that the farm cannot apply, false
 * statistics, results of other workers' units, and leases without progress. The farm must refuse each of them
 * with a reason, keep running, and keep serving the other workers. Uses a real moefarmd with fake workers. */
#include "support/mf_check.h"
#include "support/table_columns.h"

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/store/store_private.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define BEAT_MS  20000 /* long, because fake workers send no BEAT between messages */
#define LIMIT_MS 30000

struct farm {
    struct farm_process process;
    void *zmq;
};

static void start_with(struct farm *f, int beat_ms, const char *const *more)
{
    *f = (struct farm){.zmq = zmq_ctx_new(), .process.log = "log", .process.more = more};
    f->process.log_level = "info";
    farm_process_start(&f->process, beat_ms);
}

static void start(struct farm *f)
{
    start_with(f, BEAT_MS, NULL);
}

static void stop(struct farm *f)
{
    ck_assert_int_eq(farm_process_kill(&f->process, SIGTERM), 0);
    farm_process_remove(&f->process);
    (void)zmq_ctx_term(f->zmq);
}

static void join(struct farm *f, struct fake_worker *w, const char *name)
{
    ck_assert_int_eq(fake_worker_open(w, f->zmq, f->process.hub, name), 0);
    ck_assert_int_eq(fake_worker_greet(w, "[]", LIMIT_MS), 0);
}

/* Submits one shape per token count from 1, and returns the batch's id. */
static int64_t submit(struct farm *f, int n_tokens, const char *query)
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
static sqlite3 *open_database(const struct farm *f)
{
    char path[320];
    sqlite3 *db = NULL;
    (void)snprintf(path, sizeof(path), "%s/state/farm.db", f->process.folder);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, LIMIT_MS);
    return db;
}

static void run_sql(const struct farm *f, const char *sql)
{
    sqlite3 *db = open_database(f);
    ck_assert_msg(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    (void)sqlite3_close(db);
}

/* Returns the first column of the query's only row, as text. The caller frees it. */
static char *query_text(const struct farm *f, const char *sql)
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

static double query_number(const struct farm *f, const char *sql)
{
    double number = 0;
    _cleanup_(mf_freep) char *text = query_text(f, sql);
    ck_assert_msg(mf_parse_double(text, &number) == 0, "%s: %s", sql, text);
    return number;
}

/* Returns the value of a metric without labels. */
static double metric(const struct farm *f, const char *name)
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

static bool is_done(const struct farm *f, int64_t batch)
{
    char path[64];
    int status = 0;
    (void)snprintf(path, sizeof(path), "/api/v1/batches/%" PRId64, batch);
    _cleanup_(mf_freep) char *answer = farm_process_http(&f->process, "GET", path, "", "", &status);
    return answer && strstr(answer, "\"state\":\"done\"");
}

/* Answers units until the batch is done. */
static void finish(struct farm *f, struct fake_worker *w, int64_t batch)
{
    ck_assert_int_eq(fake_worker_ready(w), 0);
    for (int64_t end = mf_now_ms() + LIMIT_MS; !is_done(f, batch);) {
        ck_assert_msg(mf_now_ms() < end, "batch %" PRId64 " is not done in time", batch);
        _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(w, MF_MESSAGE_UNIT, 100);
        if (!unit)
            continue;
        ck_assert_int_eq(fake_worker_answer(w, unit), 0);
        ck_assert_int_eq(fake_worker_ready(w), 0);
    }
}

/* Waits for a REFUSE and checks that its reason contains the text. */
static void expect_refusal(struct fake_worker *w, const char *text)
{
    const char *reason = "";
    _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(w, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_msg(refusal != NULL, "not refused, expected \"%s\"", text);
    ck_assert_int_eq(mf_json_text(refusal, "reason", &reason), 0);
    ck_assert_msg(strstr(reason, text) != NULL, "refused with \"%s\", expected \"%s\"", reason, text);
}

static void log_has(const struct farm *f, const char *text)
{
    char path[320], line[4096];
    bool found = false;
    (void)snprintf(path, sizeof(path), "%s/log", f->process.folder);
    _cleanup_(mf_fclosep) FILE *log = fopen(path, "re");
    ck_assert_ptr_nonnull(log);
    while (!found && fgets(line, sizeof(line), log))
        found = strstr(line, text) != NULL;
    ck_assert_msg(found, "the log has no line with \"%s\"", text);
}

/* ---- numbers ---- */

/* The test sends the members in a RESULT of the first unit of the kind. %lld is replaced by the id of the
 * unit's first step or pipeline. `field` must be in the reason. */
static const struct {
    const char *kind, *members, *field;
} numbers[] = {
    {"probe", "\"step\":%lld,\"us\":1e308", "us: 1e+308"},
    {"probe", "\"step\":%lld,\"us\":-1e308", "us: -1e+308"},
    {"probe", "\"step\":%lld,\"us\":1e999", "us: inf"},
    {"probe", "\"step\":%lld,\"us\":5,\"mad\":1e308", "mad: 1e+308"},
    {"probe", "\"step\":%lld,\"us\":5,\"err\":1e308", "err: 1e+308"},
    {"probe", "\"step\":%lld,\"us\":5,\"row_err\":-1", "row_err: -1"},
    {"probe", "\"step\":%lld,\"us\":5,\"row_limit\":1e308", "row_limit: 1e+308"},
    {"probe", "\"step\":%lld,\"us\":5,\"canary\":1e308", "canary: 1e+308"},
    {"probe", "\"step\":%lld,\"us\":5,\"registers\":1e308", "registers: 1e+308"},
    {"probe", "\"step\":%lld,\"us\":5,\"samples\":[1,1e29]", "samples[]: 1e+29"},
    {"probe", "\"step\":%lld,\"us\":5,\"at_ms\":1e308", "at_ms: 1e+308"},
    {"probe", "\"step\":%lld,\"us\":5,\"unknown\":{\"a\":[-1e308]}", "unknown.a[]: -1e+308"},
    {"race", "\"pipeline\":%lld,\"us\":1e308,\"verified\":2", "us: 1e+308"},
    {"race", "\"pipeline\":%lld,\"us\":5,\"fresh\":[1e308]", "fresh[]: 1e+308"},
    {"race", "\"last\":true,\"race\":{\"winner\":%lld,\"us\":1e308}", "race.us: 1e+308"},
    {"race", "\"last\":true,\"race\":{\"winner\":%lld,\"us\":5,\"mad\":1e308}", "race.mad: 1e+308"},
    {"race", "\"last\":true,\"race\":{\"groups\":[{\"group\":0,\"winner\":%lld,\"us\":1e308}]}",
     "race.groups[].us: 1e+308"},
    {"enumerate", "\"last\":true,\"rejections\":[],\"steps\":[{\"flops\":1e308}]", "steps[].flops: 1e+308"},
    {"enumerate", "\"last\":true,\"rejections\":[],\"steps\":[{\"bytes\":1e308}]", "steps[].bytes: 1e+308"},
};

static int64_t first_item(const cJSON *unit)
{
    int64_t id = 0;
    const cJSON *items = mf_json_array(unit, "steps");
    items = items ? items : mf_json_array(unit, "pipelines");
    (void)mf_json_i64(cJSON_GetArrayItem(items, 0), "id", 1, INT64_MAX, &id);
    return id;
}

static void send_members(struct fake_worker *w, const cJSON *unit, const char *members)
{
    char key[FAKE_UNIT_KEY_MAX], *end = strstr(members, "%lld");
    struct mf_buf body;
    fake_unit_key(unit, key);
    mf_buf_init(&body, 1u << 16);
    (void)mf_buf_addf(&body, "{%s,\"seq\":1,\"status\":\"ok\",", key);
    if (end)
        (void)mf_buf_addf(&body, "%.*s%" PRId64 "%s}", (int)(end - members), members, first_item(unit),
                          end + 4);
    else
        (void)mf_buf_addf(&body, "%s}", members);
    ck_assert_int_eq(fake_worker_send(w, MF_MESSAGE_RESULT, "%s", body.data), 0);
    mf_buf_release(&body);
}

/* A RESULT with an extreme number is refused with the field and the value, before and after a restart of the
 * coordinator. An honest worker then completes the batch. */
MF_TEST(refuses_extreme_numbers, .rows = MF_ARRAY_LEN(numbers))
{
    struct farm f;
    struct fake_worker w, honest;
    start(&f);
    join(&f, &w, "w");
    int64_t batch = submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_work_until(&w, numbers[_i].kind, LIMIT_MS);
    ck_assert_ptr_nonnull(unit);
    double before = metric(&f, "moefarm_messages_refused_total");
    send_members(&w, unit, numbers[_i].members);
    expect_refusal(&w, numbers[_i].field);
    ck_assert_double_eq(metric(&f, "moefarm_messages_refused_total"), before + 1);
    log_has(&f, numbers[_i].field);
    ck_assert_int_eq(farm_process_kill(&f.process, SIGTERM), 0);
    farm_process_start(&f.process, BEAT_MS);
    ck_assert_int_eq(fake_worker_greet(&w, "[]", LIMIT_MS), 0);
    send_members(&w, unit, numbers[_i].members);
    expect_refusal(&w, numbers[_i].field);
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_BYE, "{}"), 0);
    join(&f, &honest, "honest");
    finish(&f, &honest, batch);
    fake_worker_close(&w);
    fake_worker_close(&honest);
    stop(&f);
}

/* device: members of HELLO and BEAT */
static const struct {
    const char *device, *field;
} device_numbers[] = {
    {"\"gap_us\":1e308", "device.gap_us: 1e+308"},
    {"\"gap_us\":-1", "device.gap_us: -1"},
    {"\"peak_gflops\":{\"bf16\":1e308}", "device.peak_gflops.bf16: 1e+308"},
    {"\"peak_gflops\":{\"other\":1e308}", "device.peak_gflops.other: 1e+308"},
    {"\"mem_read_gbs\":1e308", "device.mem_read_gbs: 1e+308"},
    {"\"llc\":1e308", "device.llc: 1e+308"},
    {"\"cores\":1e308", "device.cores: 1e+308"},
};

MF_TEST(refuses_extreme_devices, .rows = MF_ARRAY_LEN(device_numbers))
{
    struct farm f;
    struct fake_worker w, other;
    start(&f);
    ck_assert_int_eq(fake_worker_open(&w, f.zmq, f.process.hub, "w"), 0);
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_HELLO,
                                      "{\"worker\":\"w\",\"instance\":\"i\",\"class\":\"gfx942/304\","
                                      "\"model\":\"m\",\"device\":{%s},\"revision\":\"r1\",\"families\":[],"
                                      "\"simulated\":true}",
                                      device_numbers[_i].device),
                     0);
    expect_refusal(&w, device_numbers[_i].field);
    join(&f, &other, "other");
    ck_assert_int_eq(fake_worker_send(&other, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{},\"device\":{%s}}",
                                      device_numbers[_i].device),
                     0);
    expect_refusal(&other, device_numbers[_i].field);
    _cleanup_(mf_freep) char *body = query_text(&f, "SELECT body FROM device_model");
    ck_assert_msg(strstr(body, "\"gap_us\":0.5"), "%s", body);
    fake_worker_close(&w);
    fake_worker_close(&other);
    stop(&f);
}

/* A message that passes all checks but cannot be stored. A trigger in the database makes the insert of a
 * config fail. The farm undoes the message, refuses it, and applies the other messages. */
MF_TEST(undoes_a_message_that_cannot_be_applied)
{
    struct farm f;
    struct fake_worker w, other;
    start(&f);
    join(&f, &w, "w");
    int64_t batch = submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *race = fake_worker_work_until(&w, "race", LIMIT_MS);
    ck_assert_ptr_nonnull(race);
    run_sql(&f, "CREATE TRIGGER planted BEFORE INSERT ON config BEGIN SELECT RAISE(ABORT, 'planted'); END");
    int n = fake_unit_results(race);
    ck_assert_int_eq(fake_worker_answer(&w, race), 0);
    expect_refusal(&w, "cannot be applied");
    ck_assert_double_eq(metric(&f, "moefarm_messages_undone_total"), 1);
    log_has(&f, "planted");
    /* the results of the pipelines are kept, the closing result is not */
    ck_assert_double_eq(query_number(&f, "SELECT count(*) FROM result WHERE pipeline IS NOT NULL"), n - 1);
    ck_assert_double_eq(query_number(&f, "SELECT count(*) FROM result WHERE extra LIKE '%\"race\"%'"), 0);
    run_sql(&f, "DROP TRIGGER planted");
    join(&f, &other, "other");
    ck_assert_int_eq(fake_worker_greet(&w, "[]", LIMIT_MS), 0); /* without the unit, which is then released */
    finish(&f, &other, batch);
    ck_assert_double_eq(query_number(&f, "SELECT count(*) FROM config"), 1);
    fake_worker_close(&w);
    fake_worker_close(&other);
    stop(&f);
}

int main(void)
{
    return mf_check_main(NULL);
}
