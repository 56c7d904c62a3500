/* Tests a real moefarmd with fake workers. The workers and the coordinator die at various points. Afterwards
 * the configs must equal those of an undisturbed run, each step must have one final result, and no result may
 * be lost or counted twice. */
#include "support/mf_check.h"
#include "support/table_columns.h"

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/store/store_backup.h"
#include "server/store/store_private.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define BEAT_MS           100  /* for tests in which a lease (three beats) must expire */
#define LONG_BEAT_MS      3000 /* for tests in which no lease may expire, even on a busy machine */
#define LIMIT_MS          30000
#define EVENT_INTERVAL_MS 500 /* interval of worker events in moefarmd */
#define N_SHAPES          3

static const char csv_head[] = SHAPE_COLUMNS "\n";

struct farm {
    struct farm_process process;
    void *zmq;
    struct fake_worker worker;
};

static void submit(struct farm *f)
{
    int status = 0;
    struct mf_buf csv;
    mf_buf_init(&csv, 1u << 16);
    (void)mf_buf_adds(&csv, csv_head);
    for (int i = 0; i < N_SHAPES; i++)
        (void)mf_buf_addf(&csv,
                          "%d,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,"
                          "QuantType.No,1,0\n",
                          1 << i);
    _cleanup_(mf_freep) char *answer = farm_process_http(&f->process, "POST", "/api/v1/batches?name=t&topk=4",
                                                         "text/csv", csv.data, &status);
    mf_buf_release(&csv);
    ck_assert_msg(status == 201, "%d %s", status, answer ? answer : "");
}

static void farm_start(struct farm *f, int beat_ms)
{
    *f = (struct farm){.zmq = zmq_ctx_new()};
    farm_process_start(&f->process, beat_ms);
}

static void farm_stop(struct farm *f)
{
    fake_worker_close(&f->worker);
    ck_assert_int_eq(farm_process_kill(&f->process, SIGTERM), 0);
    farm_process_remove(&f->process);
    (void)zmq_ctx_term(f->zmq);
}

static void join(struct farm *f, const char *name)
{
    ck_assert_int_eq(fake_worker_open(&f->worker, f->zmq, f->process.hub, name), 0);
    ck_assert_int_eq(fake_worker_greet(&f->worker, "[]", LIMIT_MS), 0);
    ck_assert_int_eq(fake_worker_ready(&f->worker), 0);
}

static int64_t number(const cJSON *json, const char *key)
{
    int64_t value = 0;
    (void)mf_json_i64(json, key, 0, INT64_MAX, &value);
    return value;
}

/* True if the batch is done; there is only one batch. */
static bool is_done(struct farm *f)
{
    int status = 0;
    _cleanup_(mf_freep) char *answer =
        farm_process_http(&f->process, "GET", "/api/v1/batches/1", "", "", &status);
    return answer && strstr(answer, "\"state\":\"done\"");
}

static void beat(struct farm *f, const cJSON *unit)
{
    char key[FAKE_UNIT_KEY_MAX];
    fake_unit_key(unit, key);
    (void)fake_worker_send(
        &f->worker, MF_MESSAGE_BEAT,
        "{\"running\":[{%s,\"step\":\"\",\"done\":0,\"total\":1}],\"busy\":{\"timing\":0.5}}", key);
}

/* ---- disturbances: each happens once, after the n-th result of the run ---- */

struct plan {
    const char *what;
    void (*disturb)(struct farm *f, const cJSON *unit, int sent);
    int beat_ms;
};

/* The worker vanishes without BYE. A worker with another name continues. */
static void lose_worker(struct farm *f, const cJSON *unit, int sent)
{
    (void)unit;
    (void)sent;
    fake_worker_close(&f->worker);
    join(f, "second");
}

static void leave_and_return(struct farm *f, const cJSON *unit, int sent)
{
    (void)unit;
    (void)sent;
    (void)fake_worker_send(&f->worker, MF_MESSAGE_BYE, "{\"reason\":\"preempted\"}");
    (void)fake_worker_hello(&f->worker, "[]");
    (void)fake_worker_ready(&f->worker);
}

/* Sends HELLO with the running unit, then sends the unit's results again, as a worker does from its spool.
 * WELCOME keeps the unit unless its last result was committed. */
static void rejoin(struct farm *f, const cJSON *unit, int sent)
{
    char key[FAKE_UNIT_KEY_MAX], running[FAKE_UNIT_KEY_MAX + 4];
    fake_unit_key(unit, key);
    mf_format(running, sizeof(running), "[{%s}]", key);
    (void)fake_worker_hello(&f->worker, running);
    _cleanup_(cJSON_Deletep) cJSON *welcome = fake_worker_await(&f->worker, MF_MESSAGE_WELCOME, LIMIT_MS);
    ck_assert_ptr_nonnull(welcome);
    int kept = cJSON_GetArraySize(mf_json_array(welcome, "keep"));
    ck_assert_int_ge(kept, sent < fake_unit_results(unit));
    for (int i = 0; i < sent; i++)
        ck_assert_int_eq(fake_worker_result(&f->worker, unit, i), 0);
}

/* The worker is killed and restarted immediately. Its HELLO names no running unit, so the coordinator refuses
 * the worker until its old lease expires. */
static void restart_worker(struct farm *f, const cJSON *unit, int sent)
{
    (void)unit;
    (void)sent;
    fake_worker_close(&f->worker);
    ck_assert_int_eq(fake_worker_open(&f->worker, f->zmq, f->process.hub, "first"), 0);
    int64_t end = mf_now_ms() + LIMIT_MS;
    while (fake_worker_greet(&f->worker, "[]", BEAT_MS) < 0)
        ck_assert_msg(mf_now_ms() < end, "the restarted worker is still refused");
    ck_assert_int_eq(fake_worker_ready(&f->worker), 0);
}

/* The coordinator is killed and restarted. The worker keeps its unit, sends unacknowledged results again, and
 * continues. */
static void kill_coordinator(struct farm *f, const cJSON *unit, int sent)
{
    (void)farm_process_kill(&f->process, SIGKILL);
    farm_process_start(&f->process, LONG_BEAT_MS);
    rejoin(f, unit, sent);
}

/* The coordinator starts from a backup and so loses everything that it stored after the backup. The running
 * unit is in the backup. A unit granted after the backup is refused, even if its id has been assigned again.
 */
static void restore_backup(struct farm *f, const cJSON *unit, int sent)
{
    char database[320], log[330], old[320], why[256] = "";
    int64_t bytes;
    mf_format(database, sizeof(database), "%s/state/farm.db", f->process.folder);
    mf_format(log, sizeof(log), "%s-wal", database);
    mf_format(old, sizeof(old), "%s/old.db", f->process.folder);
    int r = mf_store_backup(database, old, &bytes, why, sizeof(why));
    ck_assert_msg(r == 0, "%s", why);
    for (int i = sent; i < fake_unit_results(unit); i++)
        ck_assert_int_eq(fake_worker_result(&f->worker, unit, i), 0);
    (void)fake_worker_ready(&f->worker);
    _cleanup_(cJSON_Deletep) cJSON *lost = fake_worker_await(&f->worker, MF_MESSAGE_UNIT, LIMIT_MS);
    ck_assert_ptr_nonnull(lost);
    (void)farm_process_kill(&f->process, SIGKILL);
    (void)unlink(log);
    ck_assert_int_eq(rename(old, database), 0);
    farm_process_start(&f->process, LONG_BEAT_MS);
    rejoin(f, unit, sent);
    ck_assert_int_eq(fake_worker_result(&f->worker, lost, 0), 0);
    _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(&f->worker, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_ptr_nonnull(refusal);
}

/* The worker sends its results again, as after a reconnect. */
static void send_twice(struct farm *f, const cJSON *unit, int sent)
{
    for (int i = 0; i < sent; i++)
        ck_assert_int_eq(fake_worker_result(&f->worker, unit, i), 0);
}

static void do_nothing(struct farm *f, const cJSON *unit, int sent)
{
    (void)f;
    (void)unit;
    (void)sent;
}

static const struct plan plans[] = {
    {"nothing", do_nothing, LONG_BEAT_MS},
    {"worker lost", lose_worker, BEAT_MS},
    {"worker leaves", leave_and_return, LONG_BEAT_MS},
    {"worker restarted", restart_worker, BEAT_MS},
    {"coordinator killed", kill_coordinator, LONG_BEAT_MS},
    {"results sent twice", send_twice, LONG_BEAT_MS},
    {"database restored", restore_backup, LONG_BEAT_MS},
};

/* Returns the next unit, or NULL if no unit comes within a beat. Sends HELLO again if the coordinator does
 * not know the worker. */
static cJSON *next_unit(struct farm *f)
{
    for (int64_t end = mf_now_ms() + BEAT_MS; mf_now_ms() <= end;) {
        enum mf_message got;
        const char *code = "";
        cJSON *json;
        if (fake_worker_recv(&f->worker, BEAT_MS / 5, &got, &json) <= 0)
            continue;
        if (got == MF_MESSAGE_UNIT)
            return json;
        bool lost = got == MF_MESSAGE_REFUSE && mf_json_text(json, "code", &code) == 0 &&
                    strcmp(code, "unknown_worker") == 0;
        cJSON_Delete(json);
        if (lost) {
            ck_assert_int_eq(fake_worker_greet(&f->worker, "[]", LIMIT_MS), 0);
            ck_assert_int_eq(fake_worker_ready(&f->worker), 0);
        }
    }
    return NULL;
}

/* Works until the batch is done. Causes the disturbance after the run's result number `at`. Returns 1 if the
 * disturbance happened. */
static int work(struct farm *f, const struct plan *plan, int at)
{
    int n_sent = 0, has_happened = 0;
    for (int64_t end = mf_now_ms() + LIMIT_MS; !is_done(f);) {
        ck_assert_msg(mf_now_ms() < end, "%s after result %d: the batch is not done in time", plan->what, at);
        (void)fake_worker_send(&f->worker, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}");
        _cleanup_(cJSON_Deletep) cJSON *unit = next_unit(f);
        if (!unit)
            continue;
        bool gone = false;
        for (int i = 0; i < fake_unit_results(unit) && !gone; i++) {
            ck_assert_int_eq(fake_worker_result(&f->worker, unit, i), 0);
            if (++n_sent != at)
                continue;
            beat(f, unit);
            plan->disturb(f, unit, i + 1);
            has_happened = 1;
            gone = plan->disturb == lose_worker || plan->disturb == leave_and_return ||
                   plan->disturb == restart_worker;
        }
        if (!gone)
            (void)fake_worker_ready(&f->worker);
    }
    return has_happened;
}

/* Returns the first column of the only row that a query returns. */
static char *query_text(struct farm *f, const char *sql)
{
    char path[320];
    struct mf_store *s = NULL;
    mf_format(path, sizeof(path), "%s/state/farm.db", f->process.folder);
    ck_assert_int_eq(mf_store_open_reader(path, &s), 0);
    struct mf_sql *q = NULL;
    ck_assert_int_eq(mf_sql_dynamic(s, sql, &q), 0);
    ck_assert_int_eq(mf_sql_next(q), 1);
    char *text = strdup(mf_sql_text(q, 0));
    mf_sql_done(q);
    mf_store_free(s);
    return text;
}

/* Text of all configs, without their ids. */
static const char configs_sql[] = "SELECT group_concat(line, '; ') FROM (SELECT s.row || ' ' || p.structure "
                                  "|| ' ' || p.layout || ' ' || c.us || ' ' || c.us1 || ' '"
                                  " || (SELECT group_concat(k.name, '+') FROM json_each(p.steps) j JOIN step "
                                  "t ON t.id = j.value JOIN kernel k ON k.id = t.kernel)"
                                  " AS line FROM config c JOIN shape s ON s.id = c.shape JOIN pipeline p ON "
                                  "p.id = c.pipeline ORDER BY s.row)";

static const struct {
    const char *what, *sql, *expected;
} invariants[] = {
    {"tasks without a config", "SELECT count(*) FROM task WHERE state <> 'done'", "0"},
    {"steps without a deciding result",
     "SELECT count(*) FROM task g JOIN task_enumeration e ON e.task = g.id JOIN step s ON s.enumeration = "
     "e.enumeration WHERE NOT EXISTS"
     " (SELECT 1 FROM result r WHERE r.task = g.id AND r.step = s.id AND r.final = 1)",
     "0"},
    {"steps decided twice",
     "SELECT count(*) FROM (SELECT task, step FROM result WHERE final = 1 AND step IS NOT NULL GROUP BY "
     "task, step HAVING count(*) > 1)",
     "0"},
    {"counters that differ from what was measured",
     "SELECT count(*) FROM task g WHERE n_measured <> (SELECT count(*) FROM result r WHERE r.task = g.id AND "
     "r.step IS NOT NULL"
     " AND r.final = 1) OR n_measured <> n_steps",
     "0"},
    {"late results that decide", "SELECT count(*) FROM result WHERE late = 1 AND final = 1", "0"},
    {"units left over", "SELECT count(*) FROM unit WHERE state <> 'done'", "0"},
    {"races counted twice",
     "SELECT count(*) FROM (SELECT task, pipeline FROM result WHERE final = 1 AND pipeline IS NOT NULL GROUP "
     "BY task, pipeline"
     " HAVING count(*) > 1)",
     "0"},
};

static char *run(const struct plan *plan, int at, int *ret_happened)
{
    struct farm f;
    farm_start(&f, plan->beat_ms);
    join(&f, "first");
    submit(&f);
    *ret_happened = work(&f, plan, at);
    for (size_t i = 0; i < MF_ARRAY_LEN(invariants); i++) {
        _cleanup_(mf_freep) char *got = query_text(&f, invariants[i].sql);
        ck_assert_msg(strcmp(got, invariants[i].expected) == 0, "%s after result %d: %s: %s", plan->what, at,
                      invariants[i].what, got);
    }
    char *configs = query_text(&f, configs_sql);
    farm_stop(&f);
    return configs;
}

/* Result numbers in the middle of enumerations, probes and races. */
static const int moments[] = {2, 7, 25, 60, 66};

MF_TEST(equals_an_undisturbed_run, .rows = MF_ARRAY_LEN(plans))
{
    static char *undisturbed;
    int has_happened;
    undisturbed = run(&plans[0], 1, &has_happened);
    ck_assert_int_gt((int)strlen(undisturbed), 300);
    for (size_t i = 0; i < MF_ARRAY_LEN(moments); i++) {
        _cleanup_(mf_freep) char *configs = run(&plans[_i], moments[i], &has_happened);
        ck_assert_msg(has_happened, "%s after result %d: the disturbance did not happen", plans[_i].what,
                      moments[i]);
        ck_assert_msg(strcmp(configs, undisturbed) == 0,
                      "%s after result %d: the configs are\n%s\nexpected\n%s", plans[_i].what, moments[i],
                      configs, undisturbed);
    }
    free(undisturbed);
}

/* ---- implausible results, and crashes ---- */

struct claim {
    const char *what;
    const char *members; /* members of the RESULT for one step, in place of those of a correct RESULT */
    int n_sent;          /* number of times that the worker sends this RESULT */
    const char *status;  /* final status of the step */
};

static const struct claim claims[] = {
    {"zero time", "\"status\":\"ok\",\"us\":0,\"verified\":2", 1, "implausible"},
    {"negative time, refused", "\"status\":\"ok\",\"us\":-3,\"verified\":2", 1, "ok"},
    {"shorter than a kernel", "\"status\":\"ok\",\"us\":1e-10,\"verified\":2", 1, "implausible"},
    {"no time", "\"status\":\"ok\",\"verified\":2", 1, "implausible"},
    {"beyond the peak", "\"status\":\"ok\",\"us\":0.0001,\"verified\":2", 1, "implausible"},
    {"wrong", "\"status\":\"wrong\",\"reason\":\"one NaN row\"", 1, "wrong"},
    {"one death, then nothing", "\"status\":\"crash\",\"reason\":\"signal 9\"", 1, "ok"},
    {"two deaths", "\"status\":\"crash\",\"reason\":\"signal 11\"", 2, "quarantined"},
    {"two hangs", "\"status\":\"hang\",\"reason\":\"silent for 10 s\"", 2, "quarantined"},
};

MF_TEST(judges_results, .rows = MF_ARRAY_LEN(claims))
{
    const struct claim *claim = &claims[_i];
    struct farm f;
    char key[FAKE_UNIT_KEY_MAX];
    int64_t victim = 0;
    int n_sent = 0;
    farm_start(&f, LONG_BEAT_MS);
    join(&f, "first");
    submit(&f);
    for (int64_t end = mf_now_ms() + LIMIT_MS; !is_done(&f);) {
        ck_assert_msg(mf_now_ms() < end, "%s: the batch is not done in time", claim->what);
        (void)fake_worker_send(&f.worker, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}");
        _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&f.worker, MF_MESSAGE_UNIT, BEAT_MS);
        if (!unit)
            continue;
        const cJSON *steps = mf_json_array(unit, "steps");
        int n = fake_unit_results(unit);
        for (int i = 0; i < n; i++) {
            const cJSON *step = cJSON_GetArrayItem(steps, i);
            if (step && !victim && cJSON_GetArraySize(steps) > 2)
                victim = number(step, "id");
            if (!step || number(step, "id") != victim || n_sent == claim->n_sent) {
                ck_assert_int_eq(fake_worker_result(&f.worker, unit, i), 0);
                continue;
            }
            n_sent++;
            fake_unit_key(unit, key);
            (void)fake_worker_send(&f.worker, MF_MESSAGE_RESULT, "{%s,\"seq\":%d,\"step\":%" PRId64 ",%s%s}",
                                   key, i + 1, victim, claim->members, i == n - 1 ? ",\"last\":true" : "");
        }
        (void)fake_worker_ready(&f.worker);
    }
    char sql[200];
    mf_format(sql, sizeof(sql),
              "SELECT group_concat(status || CASE WHEN reason = '' AND status <> 'ok' THEN '!' ELSE '' END) "
              "FROM result"
              " WHERE step = %" PRId64 " AND final = 1",
              victim);
    _cleanup_(mf_freep) char *status = query_text(&f, sql);
    ck_assert_msg(strcmp(status, claim->status) == 0, "%s: %s", claim->what, status);
    _cleanup_(mf_freep) char *quarantined = query_text(&f, "SELECT count(*) FROM quarantine");
    ck_assert_str_eq(quarantined, strcmp(claim->status, "quarantined") == 0 ? "1" : "0");
    _cleanup_(mf_freep) char *done =
        query_text(&f, "SELECT count(*) FROM task WHERE state = 'done' AND n_measured = n_steps");
    ck_assert_str_eq(done, "3");
    farm_stop(&f);
}

/* A worker is refused if another connected worker has its name. */
MF_TEST(refuses_a_name_in_use)
{
    struct farm f;
    struct fake_worker other;
    const char *code;
    farm_start(&f, LONG_BEAT_MS);
    join(&f, "first");
    ck_assert_int_eq(fake_worker_open(&other, f.zmq, f.process.hub, "first"), 0);
    (void)fake_worker_hello(&other, "[]");
    _cleanup_(cJSON_Deletep) cJSON *answer = fake_worker_await(&other, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_ptr_nonnull(answer);
    ck_assert_int_eq(mf_json_text(answer, "code", &code), 0);
    ck_assert_str_eq(code, "name_taken");
    fake_worker_close(&other);
    farm_stop(&f);
}

/* Waits until these worker states, and no others, have been published. */
static void await_states(struct farm *f, const char *states)
{
    for (int64_t end = mf_now_ms() + LIMIT_MS;; mf_sleep_ms(5)) {
        _cleanup_(mf_freep) char *got =
            query_text(f, "SELECT ifnull(group_concat(json_extract(body, '$.state')), "
                          "'') FROM event WHERE kind = 'worker'");
        if (strcmp(got, states) == 0)
            return;
        ck_assert_msg(mf_now_ms() < end, "published states: %s, expected: %s", got, states);
    }
}

/* A worker event is published only when the worker's state changes, not with every BEAT. */
MF_TEST(publishes_only_changes)
{
    struct farm f;
    int status = 0;
    farm_start(&f, LONG_BEAT_MS);
    join(&f, "first");
    await_states(&f, "idle");
    for (int64_t end = mf_now_ms() + 3 * EVENT_INTERVAL_MS; mf_now_ms() < end;) {
        (void)fake_worker_send(&f.worker, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}");
        _cleanup_(cJSON_Deletep) cJSON *answer = fake_worker_await(&f.worker, MF_MESSAGE_BEAT, LIMIT_MS);
        ck_assert_ptr_nonnull(answer);
    }
    free(farm_process_http(&f.process, "POST", "/api/v1/workers/1/drain", "", "", &status));
    ck_assert_int_eq(status, 200);
    _cleanup_(cJSON_Deletep) cJSON *drain = fake_worker_await(&f.worker, MF_MESSAGE_DRAIN, LIMIT_MS);
    ck_assert_ptr_nonnull(drain);
    await_states(&f, "idle,draining");
    farm_stop(&f);
}

/* ---- refused messages ---- */

struct bad {
    const char *what;
    enum mf_message type;
    const char *body;
    const char *code;
};

static const struct bad bad_messages[] = {
    {"not JSON", MF_MESSAGE_BEAT, "{", "malformed"},
    {"not an object", MF_MESSAGE_BEAT, "[]", "malformed"},
    {"a message of the coordinator", MF_MESSAGE_WELCOME, "{}", "malformed"},
    {"credit missing", MF_MESSAGE_READY, "{}", "malformed"},
    {"credit too high", MF_MESSAGE_READY, "{\"credit\":1000000}", "malformed"},
    {"result without unit", MF_MESSAGE_RESULT, "{\"attempt\":1,\"epoch\":1,\"seq\":1}", "malformed"},
    {"result of an unknown unit", MF_MESSAGE_RESULT,
     "{\"unit\":99999,\"attempt\":1,\"epoch\":1,\"seq\":1,\"step\":1}", "malformed"},
    {"status unknown", MF_MESSAGE_RESULT,
     "{\"unit\":1,\"attempt\":1,\"epoch\":1,\"seq\":1,\"step\":1,\"status\":\"fine\"}", "malformed"},
    {"samples are text", MF_MESSAGE_RESULT,
     "{\"unit\":1,\"attempt\":1,\"epoch\":1,\"seq\":1,\"step\":1,\"samples\":[\"a\"]}", "malformed"},
    {"a time beyond the range of double", MF_MESSAGE_RESULT,
     "{\"unit\":1,\"attempt\":1,\"epoch\":1,\"seq\":1,\"step\":1,\"us\":1e999}", "malformed"},
    {"another model under the name", MF_MESSAGE_HELLO,
     "{\"worker\":\"first\",\"instance\":\"other\",\"class\":\"gfx942/"
     "304\",\"model\":\"n\",\"device\":{},\"revision\":\"r\",\"families\":{}}",
     "name_taken"},
    {"a name with spaces", MF_MESSAGE_HELLO,
     "{\"worker\":\"a "
     "b\",\"instance\":\"x\",\"class\":\"gfx942/"
     "304\",\"model\":\"m\",\"device\":{},\"revision\":\"r\",\"families\":{}}",
     "malformed"},
    {"a malformed class", MF_MESSAGE_HELLO,
     "{\"worker\":\"w2\",\"instance\":\"x\",\"class\":\"gfx942\",\"model\":\"m\",\"device\":{},\"revision\":"
     "\"r\",\"families\":{}}",
     "malformed"},
};

MF_TEST(refuses_bad_messages, .rows = MF_ARRAY_LEN(bad_messages))
{
    const struct bad *bad = &bad_messages[_i];
    struct farm f;
    const char *code = "";
    farm_start(&f, LONG_BEAT_MS);
    join(&f, "first");
    ck_assert_int_eq(fake_worker_send(&f.worker, bad->type, "%s", bad->body), 0);
    _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(&f.worker, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_msg(refusal, "%s is not refused", bad->what);
    ck_assert_int_eq(mf_json_text(refusal, "code", &code), 0);
    ck_assert_msg(strcmp(code, bad->code) == 0, "%s: refused with code %s", bad->what, code);
    ck_assert_int_eq(number(refusal, "sequence"), (int64_t)f.worker.sequence);
    /* A refused message does not end the worker's session. */
    (void)fake_worker_send(&f.worker, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}");
    _cleanup_(cJSON_Deletep) cJSON *alive = fake_worker_await(&f.worker, MF_MESSAGE_BEAT, LIMIT_MS);
    ck_assert_ptr_nonnull(alive);
    farm_stop(&f);
}

/* After a restart from a backup, unit ids may be assigned again, so results of a lost epoch must not count.
 */
MF_TEST(refuses_results_of_a_lost_epoch)
{
    struct farm f;
    const char *reason = "";
    farm_start(&f, LONG_BEAT_MS);
    join(&f, "first");
    submit(&f);
    _cleanup_(cJSON_Deletep) cJSON *enumerate = fake_worker_await(&f.worker, MF_MESSAGE_UNIT, LIMIT_MS);
    ck_assert_ptr_nonnull(enumerate);
    for (int i = 0; i < fake_unit_results(enumerate); i++)
        ck_assert_int_eq(fake_worker_result(&f.worker, enumerate, i), 0);
    (void)fake_worker_ready(&f.worker);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&f.worker, MF_MESSAGE_UNIT, LIMIT_MS);
    ck_assert_ptr_nonnull(unit);
    int64_t epoch = number(unit, "epoch");
    cJSON_SetNumberValue(cJSON_GetObjectItem(unit, "epoch"), (double)(epoch + 7));
    ck_assert_int_eq(fake_worker_result(&f.worker, unit, 0), 0);
    _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(&f.worker, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_int_eq(mf_json_text(refusal, "reason", &reason), 0);
    ck_assert_msg(strstr(reason, "in an epoch that the database has lost"), "%s", reason);
    cJSON_SetNumberValue(cJSON_GetObjectItem(unit, "epoch"), (double)epoch);
    ck_assert_int_eq(fake_worker_result(&f.worker, unit, 0), 0);
    _cleanup_(cJSON_Deletep) cJSON *ack = fake_worker_await(&f.worker, MF_MESSAGE_ACK, LIMIT_MS);
    ck_assert_ptr_nonnull(ack);
    farm_stop(&f);
}

/* Waits for the ACK of a result of the unit, and skips ACKs of earlier units. */
static void await_ack(struct fake_worker *w, int64_t unit)
{
    for (bool found = false; !found;) {
        _cleanup_(cJSON_Deletep) cJSON *ack = fake_worker_await(w, MF_MESSAGE_ACK, LIMIT_MS);
        const cJSON *one;
        ck_assert_ptr_nonnull(ack);
        cJSON_ArrayForEach (one, mf_json_array(ack, "acks"))
            found |= (int64_t)cJSON_GetNumberValue(cJSON_GetArrayItem(one, 0)) == unit;
    }
}

/* A worker must not send results of another worker's unit, because they would count as results of the worker
 * that owns the unit. */
MF_TEST(refuses_results_of_anothers_unit)
{
    struct farm f;
    struct fake_worker other;
    const char *reason = "";
    char path[64];
    int status = 0;
    farm_start(&f, LONG_BEAT_MS);
    join(&f, "first");
    ck_assert_int_eq(fake_worker_open(&other, f.zmq, f.process.hub, "other"), 0);
    ck_assert_int_eq(fake_worker_greet(&other, "[]", LIMIT_MS), 0);
    submit(&f);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_work_until(&f.worker, "probe", LIMIT_MS);
    ck_assert_ptr_nonnull(unit);
    ck_assert_int_eq(fake_worker_result(&other, unit, 0), 0);
    _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(&other, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_ptr_nonnull(refusal);
    ck_assert_int_eq(mf_json_text(refusal, "reason", &reason), 0);
    ck_assert_msg(strstr(reason, "granted to another worker"), "%s", reason);
    ck_assert_int_eq(fake_worker_result(&f.worker, unit, 0), 0);
    await_ack(&f.worker, number(unit, "unit"));
    (void)snprintf(path, sizeof(path), "/api/v1/steps/%lld/results",
                   (long long)number(cJSON_GetArrayItem(mf_json_array(unit, "steps"), 0), "id"));
    _cleanup_(mf_freep) char *results = farm_process_http(&f.process, "GET", path, "", "", &status);
    ck_assert_msg(results && strstr(results, "\"worker\":\"first\"") && !strstr(results, "\"late\":true"),
                  "%s", results ? results : "");
    fake_worker_close(&other);
    farm_stop(&f);
}

/* Everything that the database stores from enumerations and from HELLO. */
static const char stored_sql[] =
    "SELECT (SELECT count(*) FROM kernel) || ' ' || (SELECT count(*) FROM step) || ' ' || "
    "(SELECT count(*) FROM rejection) || ' ' || (SELECT group_concat(gfx) FROM "
    "device_class) || ' ' || (SELECT group_concat(name || body) FROM device_model)";

#define GOOD_STEP                                                                                            \
    "{\"name\":\"x\",\"family\":\"fake\",\"stage\":\"move\",\"covers\":\"sort\",\"block_m\":0,\"ksplit\":0," \
    "\"needs\":[],\"gives\":[],\"workspace\":0,\"flops\":1,\"bytes\":1,\"reorder_tolerance\":0}"
#define GOOD_REJECTION "{\"family\":\"fake\",\"kernel\":\"x*\",\"rule\":\"dtype\",\"reason\":\"no\"}"
#define DEVICE_MEMBERS "\"device\":{\"gap_us\":1},\"revision\":\"r1\",\"families\":{},\"simulated\":true"

/* body: the end of a message that begins with the key of the running unit (RESULT), or with the worker's name
 * and instance (HELLO). */
static const struct {
    enum mf_message type;
    const char *what, *body;
} partly_bad[] = {
    {MF_MESSAGE_RESULT, "an invalid step after a valid one",
     "\"seq\":1,\"last\":true,\"steps\":[" GOOD_STEP ",{}],\"rejections\":[]"},
    {MF_MESSAGE_RESULT, "a rejection without a reason at the end",
     "\"seq\":1,\"last\":true,\"steps\":[" GOOD_STEP "],\"rejections\":[" GOOD_REJECTION ",{}]"},
    {MF_MESSAGE_HELLO, "a worker with another class than before",
     "\"class\":\"gfx950/256\",\"model\":\"m\"," DEVICE_MEMBERS},
    {MF_MESSAGE_HELLO, "a worker with another model than before",
     "\"class\":\"gfx942/304\",\"model\":\"other\"," DEVICE_MEMBERS},
};

/* A refused message leaves nothing in the database, even if its valid parts were written first, because the
 * worker does not send the message again. */
MF_TEST(rolls_back_refused_messages, .rows = MF_ARRAY_LEN(partly_bad))
{
    struct farm f;
    char key[FAKE_UNIT_KEY_MAX + 128];
    farm_start(&f, LONG_BEAT_MS);
    join(&f, "first");
    submit(&f);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&f.worker, MF_MESSAGE_UNIT, LIMIT_MS);
    ck_assert_ptr_nonnull(unit);
    if (partly_bad[_i].type == MF_MESSAGE_RESULT)
        fake_unit_key(unit, key);
    else
        mf_format(key, sizeof(key), "\"worker\":\"first\",\"instance\":\"%s\"", f.worker.instance);
    _cleanup_(mf_freep) char *before = query_text(&f, stored_sql);
    ck_assert_int_eq(fake_worker_send(&f.worker, partly_bad[_i].type, "{%s,%s}", key, partly_bad[_i].body),
                     0);
    _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(&f.worker, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_msg(refusal != NULL, "%s is not refused", partly_bad[_i].what);
    _cleanup_(mf_freep) char *after = query_text(&f, stored_sql);
    ck_assert_msg(strcmp(before, after) == 0, "%s: the database holds %s, expected %s", partly_bad[_i].what,
                  after, before);
    /* a valid result of the same unit is accepted */
    ck_assert_int_eq(fake_worker_answer(&f.worker, unit), 0);
    await_ack(&f.worker, number(unit, "unit"));
    farm_stop(&f);
}

/* If the coordinator refuses the second of three parts of an enumeration, it cancels the unit. The incomplete
 * enumeration is never tuned. After the maximum number of attempts the tasks fail with the reason. */
MF_TEST(drops_an_incomplete_enumeration)
{
    static const char *const parts[] = {
        "\"last\":false,\"steps\":[" GOOD_STEP "],\"rejections\":[]",
        "\"last\":false,\"steps\":[],\"rejections\":[{}]",
        "\"last\":true,\"steps\":[" GOOD_STEP "],\"rejections\":[]",
    };
    const int tries = 3 * N_SHAPES;
    struct farm f;
    farm_start(&f, LONG_BEAT_MS);
    join(&f, "first");
    submit(&f);
    for (int i = 0; i < tries; i++) {
        char key[FAKE_UNIT_KEY_MAX];
        _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&f.worker, MF_MESSAGE_UNIT, LIMIT_MS);
        ck_assert_msg(unit != NULL, "received %d units, expected %d", i, tries);
        fake_unit_key(unit, key);
        for (int p = 0; p < (int)MF_ARRAY_LEN(parts); p++)
            ck_assert_int_eq(
                fake_worker_send(&f.worker, MF_MESSAGE_RESULT, "{%s,\"seq\":%d,%s}", key, p + 1, parts[p]),
                0);
        _cleanup_(cJSON_Deletep) cJSON *end = fake_worker_await(&f.worker, MF_MESSAGE_CANCEL, LIMIT_MS);
        ck_assert_ptr_nonnull(end);
        ck_assert_int_eq(number(end, "unit"), number(unit, "unit"));
        ck_assert_int_eq(fake_worker_ready(&f.worker), 0);
    }
    char like[160];
    mf_format(like, sizeof(like), "SELECT count(*) FROM task WHERE state = 'failed' AND reason LIKE '%%%s%%'",
              "its list of steps was refused: rejections: expected family");
    _cleanup_(mf_freep) char *failed = query_text(&f, like);
    ck_assert_int_eq(atoi(failed), N_SHAPES);
    farm_stop(&f);
}

MF_TEST(refuses_an_unregistered_worker)
{
    struct farm f;
    const char *code = "";
    farm_start(&f, LONG_BEAT_MS);
    ck_assert_int_eq(fake_worker_open(&f.worker, f.zmq, f.process.hub, "first"), 0);
    (void)fake_worker_ready(&f.worker);
    _cleanup_(cJSON_Deletep) cJSON *refusal = fake_worker_await(&f.worker, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_int_eq(mf_json_text(refusal, "code", &code), 0);
    ck_assert_str_eq(code, "unknown_worker");
    farm_stop(&f);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
