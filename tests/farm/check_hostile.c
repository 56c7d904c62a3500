/* Tests hostile texts: in some context each text is SQL, shell code, an option, a path, markup, a formula or
 * a log line. The test sends these texts to every place where the farm accepts text from users or workers.
 * The farm must refuse each text with a reason, or store it and return it unchanged. Uses a real moefarmd
 * with a fake worker. */
#include "support/mf_check.h"
#include "support/table_columns.h"

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/batch_options.h"
#include "common/table/table.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"
#include "support/run_program.h"

#include <ctype.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define BEAT_MS  20000 /* long, because fake workers send no BEAT between messages */
#define LIMIT_MS 30000
#define MARK     "HOSTILE"

/* line: true if the text contains control characters, which no name may contain */
static const struct {
    const char *text;
    bool line;
} hostile[] = {
    {"'; DROP TABLE batch; --", false},
    {"\" OR \"\"=\"", false},
    {"$(touch " MARK ") `touch " MARK "` | touch " MARK "; & > " MARK, false},
    {"-fplugin=" MARK ".so -DX=1 @" MARK, false},
    {"../../../../../../tmp/" MARK, false},
    {"<script>alert(1)</script><img src=x onerror=alert(1)>", false},
    {"\"},{\"state\":\"done\"}", false},
    {"=cmd|' /C " MARK "'!A0", false},
    {"%s%n%p${jndi:ldap://x}{{7*7}}", false},
    {"a,b;c\td", true},
    {"x\r\nSet-Cookie: " MARK "=1\r\n\r\n<b>", true},
    {"\x1b[31m\n2026-01-01T00:00:00.000Z moefarmd error: forged", true},
};
#define N_HOSTILE ((int)MF_ARRAY_LEN(hostile))

static const char head[] = SHAPE_COLUMNS ",form\n";
static const char *const cells[] = {"4",
                                    "2048",
                                    "96",
                                    "128",
                                    "8",
                                    "ActivationType.Silu",
                                    "torch.bfloat16",
                                    "torch.bfloat16",
                                    "torch.bfloat16",
                                    "QuantType.No",
                                    "1",
                                    "0",
                                    ""};
#define N_CELLS MF_ARRAY_LEN(cells)

struct farm {
    struct farm_process process;
    void *zmq;
};

static void start(struct farm *f)
{
    *f = (struct farm){.zmq = zmq_ctx_new(), .process.log = "log"};
    farm_process_start(&f->process, BEAT_MS);
}

/* Checks that no text created a file, and that moefarmd wrote every line of the log itself. */
static void stop(struct farm *f)
{
    char path[320], line[8192];
    ck_assert_int_eq(farm_process_kill(&f->process, SIGTERM), 0);
    (void)snprintf(path, sizeof(path), "%s/log", f->process.folder);
    FILE *log = fopen(path, "re");
    ck_assert_ptr_nonnull(log);
    while (fgets(line, sizeof(line), log))
        ck_assert_msg(strncmp(line, "20", 2) == 0 && strstr(line, " moefarmd ") == line + 24 &&
                          !strchr(line, '\x1b'),
                      "%s", line);
    (void)fclose(log);
    ck_assert_int_ne(access(MARK, F_OK), 0);
    ck_assert_int_ne(access("/tmp/" MARK, F_OK), 0);
    (void)snprintf(path, sizeof(path), "%s/" MARK, f->process.folder);
    ck_assert_int_ne(access(path, F_OK), 0);
    farm_process_remove(&f->process);
    (void)zmq_ctx_term(f->zmq);
}

static void add_encoded(struct mf_buf *b, const char *text)
{
    for (; *text; text++)
        (void)mf_buf_addf(b, isalnum((unsigned char)*text) ? "%c" : "%%%02x", (unsigned char)*text);
}

/* Sends a request whose path ends with the encoded text. The answer must be JSON or a table. */
static cJSON *request(struct farm *f, const char *method, const char *path, const char *text,
                      const char *type, const char *body, int *ret_status)
{
    struct mf_buf full;
    mf_buf_init(&full, 65536);
    (void)mf_buf_adds(&full, path);
    add_encoded(&full, text);
    _cleanup_(mf_freep) char *answer =
        farm_process_http(&f->process, method, full.data, type, body, ret_status);
    ck_assert_msg(answer && *ret_status != 500, "%s %s: %d %s", method, full.data, *ret_status,
                  answer ? answer : "");
    cJSON *json = mf_json_parse(answer, strlen(answer), 1u << 24);
    ck_assert_msg(json || *answer != '{', "%s %s: %s", method, full.data, answer);
    mf_buf_release(&full);
    return json;
}

static void expect(struct farm *f, const char *method, const char *path, const char *text, const char *type,
                   const char *body, int wanted)
{
    int status = 0;
    _cleanup_(cJSON_Deletep) cJSON *json = request(f, method, path, text, type, body, &status);
    _cleanup_(mf_freep) char *printed = mf_json_print(json);
    ck_assert_msg(status == wanted, "%s %s%s: status %d, expected %d: %s", method, path, text, status, wanted,
                  printed);
}

/* Returns a table of one row in which the quoted text replaces one cell. The caller frees it. */
static char *table(size_t cell, const char *text)
{
    struct mf_buf b;
    mf_buf_init(&b, 65536);
    (void)mf_buf_adds(&b, head);
    for (size_t i = 0; i < N_CELLS; i++) {
        (void)mf_buf_adds(&b, i ? "," : "");
        if (i != cell) {
            (void)mf_buf_adds(&b, cells[i]);
            continue;
        }
        (void)mf_buf_adds(&b, "\"");
        for (const char *p = text; *p; p++)
            (void)mf_buf_addf(&b, *p == '"' ? "\"\"" : "%c", *p);
        (void)mf_buf_adds(&b, "\"");
    }
    (void)mf_buf_adds(&b, "\n");
    return mf_buf_take(&b);
}

/* Returns a JSON submission with the given texts; NULL for the default text. The caller frees it. */
static char *body_of(const char *name, const char *option, const char *value, const char *column)
{
    cJSON *json = cJSON_CreateObject();
    if (name)
        cJSON_AddStringToObject(json, "name", name);
    if (option)
        cJSON_AddStringToObject(cJSON_AddObjectToObject(json, "options"), option, value);
    cJSON *shape = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(json, "shapes"), shape);
    for (size_t i = 0; i + 1 < N_CELLS; i++)
        cJSON_AddStringToObject(shape,
                                i == 0 && column
                                    ? column
                                    : (char[12][20]){"token", "model_dim", "inter_dim", "expert", "topk",
                                                     "act_type", "dtype", "q_dtype_a", "q_dtype_w", "q_type",
                                                     "use_g1u1", "doweight_stage1"}[i],
                                cells[i]);
    char *text = mf_json_print(json);
    cJSON_Delete(json);
    return text;
}

/* Paths and query parameters to which the test appends the text. */
static const char *const filters[] = {
    "/api/v1/batches?cursor=",
    "/api/v1/batches?limit=",
    "/api/v1/batches/1/tasks?state=",
    "/api/v1/shapes?layer_model=",
    "/api/v1/shapes?class=",
    "/api/v1/tasks/1/steps?family=",
    "/api/v1/tasks/1/steps?status=",
    "/api/v1/tasks/1/steps?covers=",
    "/api/v1/tasks/1/rejections?kernel=",
    "/api/v1/tasks/1/pipelines?finalists=",
    "/api/v1/export/tuned_fmoe.csv?class=",
    "/api/v1/export/tuned_fmoe.csv?model=",
    "/api/v1/export/tuned_fmoe.csv?gfx=",
    "/api/v1/export/tuned_fmoe.csv?layer_model=",
    "/api/v1/export/left_out?model=",
    "/api/v1/events?last_event_id=",
    "/page/",
    "/api/v1/batches/",
    "/",
};

static void submit_names(struct farm *f, int *n_batches)
{
    _cleanup_(mf_freep) char *good = table(N_CELLS, "");
    for (int i = 0; i < N_HOSTILE; i++) {
        int status = 0;
        expect(f, "POST", "/api/v1/batches?name=", hostile[i].text, "text/csv", good,
               hostile[i].line ? 400 : 201);
        _cleanup_(mf_freep) char *json = body_of(hostile[i].text, NULL, NULL, NULL);
        expect(f, "POST", "/api/v1/batches", "", "application/json", json, hostile[i].line ? 400 : 201);
        if (hostile[i].line)
            continue;
        *n_batches += 2;
        _cleanup_(cJSON_Deletep) cJSON *list =
            request(f, "GET", "/api/v1/batches?limit=2", "", "", "", &status);
        const cJSON *batch;
        cJSON_ArrayForEach (batch, mf_json_array(list, "items"))
            ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(batch, "name")), hostile[i].text);
    }
}

MF_TEST(keeps_texts_of_users)
{
    struct farm f;
    int n_batches = 0, status = 0;
    start(&f);
    submit_names(&f, &n_batches);
    _cleanup_(mf_freep) char *good = table(N_CELLS, "");
    for (int i = 0; i < N_HOSTILE; i++) {
        const char *text = hostile[i].text;
        for (size_t c = 0; c < N_CELLS; c++) {
            _cleanup_(mf_freep) char *csv = table(c, text);
            expect(&f, "POST", "/api/v1/batches", "", "text/csv", csv, 422);
        }
        for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o)) {
            char path[64];
            (void)snprintf(path, sizeof(path), "/api/v1/batches?%s=", o->name);
            expect(&f, "POST", path, text, "text/csv", good, 400);
            _cleanup_(mf_freep) char *json = body_of(NULL, o->name, text, NULL);
            expect(&f, "POST", "/api/v1/batches", "", "application/json", json, 400);
        }
        _cleanup_(mf_freep) char *option = body_of(NULL, text, "1", NULL);
        expect(&f, "POST", "/api/v1/batches", "", "application/json", option, 400);
        _cleanup_(mf_freep) char *column = body_of(NULL, NULL, NULL, text);
        expect(&f, "POST", "/api/v1/batches", "", "application/json", column, 422);
        expect(&f, "POST", "/api/v1/batches?", text, "text/csv", good, 400);
        for (size_t p = 0; p < MF_ARRAY_LEN(filters); p++) {
            _cleanup_(cJSON_Deletep) cJSON *json = request(&f, "GET", filters[p], text, "", "", &status);
            ck_assert_msg(status == 200 || status == 400 || status == 404, "%s%s: status %d", filters[p],
                          text, status);
        }
    }
    _cleanup_(cJSON_Deletep) cJSON *list =
        request(&f, "GET", "/api/v1/batches?limit=1000", "", "", "", &status);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(list, "items")), n_batches);
    stop(&f);
}

/* Merges a foreign table that has the text as kernel name. The row stays unchanged or is reported as invalid.
 */
MF_TEST(keeps_texts_of_merged_tables)
{
    static const char columns[] = TUNED_COLUMNS "\n";
    struct farm f;
    int status = 0;
    start(&f);
    for (int i = 0; i < N_HOSTILE; i++) {
        struct mf_buf b;
        mf_buf_init(&b, 65536);
        (void)mf_buf_addf(
            &b,
            "%sgfx942,304,4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch."
            "bfloat16,QuantType.No,1,0,16,0,1.0,\"",
            columns);
        for (const char *p = hostile[i].text; *p; p++)
            (void)mf_buf_addf(&b, *p == '"' ? "\"\"" : "%c", *p);
        (void)mf_buf_adds(&b, "\",0.0%,1.0,k,0.0%,2.0,0,0,0,1.0,1.0\n");
        _cleanup_(cJSON_Deletep) cJSON *json =
            request(&f, "POST", "/api/v1/export/merge", "", "text/csv", b.data, &status);
        mf_buf_release(&b);
        ck_assert_msg(status == 200 || status == 422, "status %d, expected 200 or 422", status);
        const char *csv = "";
        if (status == 200)
            ck_assert_int_eq(mf_json_text(json, "csv", &csv), 0);
        /* a merged table must parse as one table with the same columns and at most the one row */
        struct mf_table *t = NULL;
        char why[MF_REASON_MAX] = "";
        if (*csv) {
            ck_assert_msg(mf_table_read("merged", csv, strlen(csv), &t, why) == 0, "%s", why);
            ck_assert_uint_le(t->n_rows, 1);
            ck_assert(t->n_rows == 0 || strcmp(t->rows[0].kernel1, hostile[i].text) == 0);
            mf_table_free(t);
        }
    }
    stop(&f);
}

/* --- workers --- */

/* Prints a HELLO with the text in one member. The caller frees it. */
static char *hello(const char *name, const char *member, const char *text)
{
    const char *const members[][2] = {{"worker", name},  {"instance", name},      {"host", "h"},
                                      {"version", "0"},  {"class", "gfx942/304"}, {"model", "m"},
                                      {"revision", "r1"}};
    cJSON *json = cJSON_CreateObject();
    for (size_t i = 0; i < MF_ARRAY_LEN(members); i++)
        cJSON_AddStringToObject(json, members[i][0],
                                strcmp(members[i][0], member) == 0 ? text : members[i][1]);
    cJSON *device = cJSON_AddObjectToObject(json, "device");
    cJSON_AddStringToObject(device, "compiler", text);
    cJSON_AddStringToObject(device, "driver", text);
    cJSON_AddNumberToObject(device, "gap_us", 0.5);
    cJSON_AddNumberToObject(json, "pid", 1);
    cJSON_AddTrueToObject(json, "simulated");
    cJSON_AddStringToObject(cJSON_AddObjectToObject(json, "families"),
                            strcmp(member, "families") == 0 ? text : "fake", "r1");
    cJSON_AddItemToObject(json, "running", cJSON_CreateArray());
    char *printed = mf_json_print(json);
    cJSON_Delete(json);
    return printed;
}

/* Members that identify a worker have a fixed syntax. Members that describe it may contain any text. */
static const struct {
    const char *member;
    bool free_text;
} hello_members[] = {{"worker", false},   {"instance", false}, {"class", false}, {"revision", false},
                     {"families", false}, {"model", true},     {"host", true},   {"version", true}};

MF_TEST(keeps_texts_of_hello)
{
    struct farm f;
    struct fake_worker w;
    start(&f);
    for (int i = 0; i < N_HOSTILE; i++) {
        for (size_t m = 0; m < MF_ARRAY_LEN(hello_members); m++) {
            bool fits = hello_members[m].free_text && strlen(hostile[i].text) <= 64;
            char name[24];
            (void)snprintf(name, sizeof(name), "w%d.%zu", i, m);
            _cleanup_(mf_freep) char *text = hello(name, hello_members[m].member, hostile[i].text);
            ck_assert_int_eq(fake_worker_open(&w, f.zmq, f.process.hub, name), 0);
            ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_HELLO, "%s", text), 0);
            _cleanup_(cJSON_Deletep) cJSON *answer =
                fake_worker_await(&w, fits ? MF_MESSAGE_WELCOME : MF_MESSAGE_REFUSE, LIMIT_MS);
            ck_assert_msg(answer != NULL, "no answer to %s = %s", hello_members[m].member, hostile[i].text);
            fake_worker_close(&w);
            if (!fits || strcmp(hello_members[m].member, "host") != 0)
                continue;
            int status = 0;
            _cleanup_(cJSON_Deletep) cJSON *list =
                request(&f, "GET", "/api/v1/workers?limit=1000", "", "", "", &status);
            const cJSON *worker;
            int n = 0;
            cJSON_ArrayForEach (worker, mf_json_array(list, "items"))
                n += strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(worker, "name")), name) == 0 &&
                     strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(worker, "host")), hostile[i].text) == 0;
            ck_assert_int_eq(n, 1);
        }
    }
    /* every line of /metrics must be a comment or a metric of moefarmd */
    int status = 0;
    _cleanup_(mf_freep) char *metrics = farm_process_http(&f.process, "GET", "/metrics", "", "", &status);
    for (char *save = NULL, *line = strtok_r(metrics, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        ck_assert_msg(strncmp(line, "# ", 2) == 0 || strncmp(line, "moefarm_", 8) == 0, "%s", line);
    stop(&f);
}

static void reject_with(struct fake_worker *w, const cJSON *unit, const char *text)
{
    cJSON *json = cJSON_CreateObject(), *no = cJSON_CreateObject();
    static const char *const ids[] = {"unit", "attempt", "epoch"};
    for (size_t i = 0; i < MF_ARRAY_LEN(ids); i++)
        cJSON_AddNumberToObject(json, ids[i], cJSON_GetNumberValue(cJSON_GetObjectItem(unit, ids[i])));
    cJSON_AddNumberToObject(json, "seq", 1);
    cJSON_AddStringToObject(json, "status", "ok");
    cJSON_AddTrueToObject(json, "last");
    cJSON_AddItemToObject(json, "steps", cJSON_CreateArray());
    cJSON_AddItemToArray(cJSON_AddArrayToObject(json, "rejections"), no);
    cJSON_AddStringToObject(no, "family", "fake");
    cJSON_AddStringToObject(no, "kernel", text);
    cJSON_AddStringToObject(no, "rule", "dtype");
    cJSON_AddStringToObject(no, "reason", text);
    _cleanup_(mf_freep) char *printed = mf_json_print(json);
    cJSON_Delete(json);
    ck_assert_int_eq(fake_worker_send(w, MF_MESSAGE_RESULT, "%s", printed), 0);
}

/* If the name or family of a step is a hostile text, the step is refused together with its enumeration. If
 * the reason of a rejection is a hostile text, the reason is stored and returned unchanged. */
MF_TEST(keeps_texts_of_enumerations)
{
    struct farm f;
    struct fake_worker w;
    start(&f);
    ck_assert_int_eq(fake_worker_open(&w, f.zmq, f.process.hub, "w"), 0);
    ck_assert_int_eq(fake_worker_greet(&w, "[]", LIMIT_MS), 0);
    for (int i = 0; i < N_HOSTILE; i++) {
        char csv[512], path[96], key[FAKE_UNIT_KEY_MAX];
        int status = 0, task = i + 1;
        (void)snprintf(
            csv, sizeof(csv),
            "%s%d,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType."
            "No,1,0,\n",
            head, task);
        expect(&f, "POST", "/api/v1/batches", "", "text/csv", csv, 201);
        ck_assert_int_eq(fake_worker_ready(&w), 0);
        _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&w, MF_MESSAGE_UNIT, LIMIT_MS);
        ck_assert_ptr_nonnull(unit);
        cJSON *step = cJSON_Parse(
            "{\"name\":\"x\",\"family\":\"fake\",\"covers\":\"sort\",\"stage\":\"move\",\"block_m\":0,"
            "\"ksplit\":0,\"needs\":[],\"gives\":[],\"workspace\":0,\"flops\":1,\"bytes\":1,"
            "\"reorder_tolerance\":0}");
        cJSON_ReplaceItemInObject(step, i % 2 ? "name" : "family", cJSON_CreateString(hostile[i].text));
        _cleanup_(mf_freep) char *text = mf_json_print(step);
        cJSON_Delete(step);
        fake_unit_key(unit, key);
        ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_RESULT,
                                          "{%s,\"seq\":1,\"status\":\"ok\",\"steps\":[%s],\"rejections\":[]}",
                                          key, text),
                         0);
        _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(&w, MF_MESSAGE_REFUSE, LIMIT_MS);
        ck_assert_msg(refusal != NULL, "a step with the text %s is not refused", hostile[i].text);
        ck_assert_int_eq(fake_worker_ready(&w), 0);
        _cleanup_(cJSON_Deletep) cJSON *again = fake_worker_await(&w, MF_MESSAGE_UNIT, LIMIT_MS);
        ck_assert_ptr_nonnull(again);
        ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItem(again, "unit")),
                            cJSON_GetNumberValue(cJSON_GetObjectItem(unit, "unit")));
        reject_with(&w, again, hostile[i].text);
        _cleanup_(cJSON_Deletep) cJSON *ack = fake_worker_await(&w, MF_MESSAGE_ACK, LIMIT_MS);
        ck_assert_ptr_nonnull(ack);
        (void)snprintf(path, sizeof(path), "/api/v1/tasks/%d/rejections?kernel=", task);
        _cleanup_(cJSON_Deletep) cJSON *list = request(&f, "GET", path, "*", "", "", &status);
        const cJSON *no = cJSON_GetArrayItem(mf_json_array(list, "items"), 0);
        ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(no, "reason")), hostile[i].text);
        ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(no, "kernel")), hostile[i].text);
    }
    fake_worker_close(&w);
    stop(&f);
}

/* The device model is a hostile text. The exported table then has the usual columns, and no cell of the table
 * is a formula. */
MF_TEST(exports_no_formula, .rows = N_HOSTILE)
{
    struct farm f;
    struct fake_worker w;
    int status = 0;
    start(&f);
    ck_assert_int_eq(fake_worker_open(&w, f.zmq, f.process.hub, "w"), 0);
    _cleanup_(mf_freep) char *text = hello("w", "model", hostile[_i].text);
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_HELLO, "%s", text), 0);
    _cleanup_(cJSON_Deletep) cJSON *welcome = fake_worker_await(&w, MF_MESSAGE_WELCOME, LIMIT_MS);
    ck_assert_ptr_nonnull(welcome);
    _cleanup_(mf_freep) char *good = table(N_CELLS, "");
    expect(&f, "POST", "/api/v1/batches?regret=none&topk=1", "", "text/csv", good, 201);
    _cleanup_(cJSON_Deletep) cJSON *race = fake_worker_work_until(&w, "race", LIMIT_MS);
    ck_assert_ptr_nonnull(race);
    ck_assert_int_eq(fake_worker_answer(&w, race), 0);
    _cleanup_(mf_freep) char *csv = NULL;
    for (int64_t end = mf_now_ms() + LIMIT_MS; !csv || !strchr(csv, '\n')[1];) {
        ck_assert_int_lt(mf_now_ms(), end);
        free(csv);
        csv = farm_process_http(&f.process, "GET", "/api/v1/export/tuned_fmoe.csv?simulated=1", "", "",
                                &status);
        ck_assert_int_eq(status, 200);
    }
    struct mf_table *t = NULL;
    char why[MF_REASON_MAX] = "";
    ck_assert_msg(mf_table_read("exported", csv, strlen(csv), &t, why) == 0, "%s", why);
    ck_assert_uint_eq(t->n_rows, 1);
    ck_assert_uint_eq(t->n_problems, 0);
    for (int own = 0; own < MF_OWN_N_; own++)
        ck_assert_msg(!t->rows[0].own[own] || !strchr("=+-@", t->rows[0].own[own][0]) ||
                          !t->rows[0].own[own][0],
                      "%s", t->rows[0].own[own]);
    mf_table_free(t);
    fake_worker_close(&w);
    stop(&f);
}

/* A worker rejects a hostile text as name, device or architecture before it uses the text in a path or an
 * option. */
MF_TEST(worker_rejects_texts)
{
    static const char *const options_and_errors[][2] = {{"--name", "--name: expected"},
                                                        {"--arch", "--arch: expected"},
                                                        {"--arch=nvidia:", "--arch: expected"}};
    static const char *const program[] = {MF_BINARY_DIR "/worker/moefarm-worker", NULL};
    for (int i = 0; i < N_HOSTILE; i++) {
        for (size_t k = 0; k < MF_ARRAY_LEN(options_and_errors); k++) {
            char joined[256];
            (void)snprintf(joined, sizeof(joined), "%s%s%s", options_and_errors[k][0],
                           strchr(options_and_errors[k][0], '=') ? "" : "=", hostile[i].text);
            const char *const more[] = {joined,     "--device",
                                        "cpu:0",    k ? "--compile-only" : NULL,
                                        "--shapes", MF_SOURCE_DIR "/examples/h200.csv",
                                        NULL};
            struct ran r = run_program(program, more);
            ck_assert_int_ne(r.code, 0);
            assert_says(r, options_and_errors[k][1]);
        }
    }
    ck_assert_int_ne(access(MARK, F_OK), 0);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
