/* Tests hostile and broken workers: messages with extreme numbers, messages that the farm cannot apply, false
 * statistics, results of other workers' units, and leases without progress. The farm must refuse each of them
 * with a reason, keep running, and keep serving the other workers. Uses a real moefarmd with fake workers. */
#include "support/mf_check.h"

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/fake_farm.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

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
    struct fake_farm f;
    struct fake_worker w, honest;
    fake_farm_start(&f);
    fake_farm_join(&f, &w, "w");
    int64_t batch = fake_farm_submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_work_until(&w, numbers[_i].kind, FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(unit);
    double before = fake_farm_metric(&f, "moefarm_messages_refused_total");
    send_members(&w, unit, numbers[_i].members);
    fake_farm_expect_refusal(&w, numbers[_i].field);
    ck_assert_double_eq(fake_farm_metric(&f, "moefarm_messages_refused_total"), before + 1);
    fake_farm_expect_log(&f, numbers[_i].field);
    ck_assert_int_eq(farm_process_kill(&f.process, SIGTERM), 0);
    farm_process_start(&f.process, FAKE_FARM_BEAT_MS);
    ck_assert_int_eq(fake_worker_greet(&w, "[]", FAKE_FARM_LIMIT_MS), 0);
    send_members(&w, unit, numbers[_i].members);
    fake_farm_expect_refusal(&w, numbers[_i].field);
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_BYE, "{}"), 0);
    fake_farm_join(&f, &honest, "honest");
    fake_farm_finish(&f, &honest, batch);
    fake_worker_close(&w);
    fake_worker_close(&honest);
    fake_farm_stop(&f);
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
    struct fake_farm f;
    struct fake_worker w, other;
    fake_farm_start(&f);
    ck_assert_int_eq(fake_worker_open(&w, f.zmq, f.process.hub, "w"), 0);
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_HELLO,
                                      "{\"worker\":\"w\",\"instance\":\"i\",\"class\":\"gfx942/304\","
                                      "\"model\":\"m\",\"device\":{%s},\"revision\":\"r1\",\"families\":{},"
                                      "\"simulated\":true}",
                                      device_numbers[_i].device),
                     0);
    fake_farm_expect_refusal(&w, device_numbers[_i].field);
    fake_farm_join(&f, &other, "other");
    ck_assert_int_eq(fake_worker_send(&other, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{},\"device\":{%s}}",
                                      device_numbers[_i].device),
                     0);
    fake_farm_expect_refusal(&other, device_numbers[_i].field);
    _cleanup_(mf_freep) char *body = fake_farm_text(&f, "SELECT body FROM device_model");
    ck_assert_msg(strstr(body, "\"gap_us\":0.5"), "%s", body);
    fake_worker_close(&w);
    fake_worker_close(&other);
    fake_farm_stop(&f);
}

/* A message that passes all checks but cannot be stored. A trigger in the database makes the insert of a
 * config fail. The farm undoes the message, refuses it, and applies the other messages. */
MF_TEST(undoes_a_message_that_cannot_be_applied)
{
    struct fake_farm f;
    struct fake_worker w, other;
    fake_farm_start(&f);
    fake_farm_join(&f, &w, "w");
    int64_t batch = fake_farm_submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *race = fake_worker_work_until(&w, "race", FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(race);
    fake_farm_sql(&f,
                  "CREATE TRIGGER planted BEFORE INSERT ON config BEGIN SELECT RAISE(ABORT, 'planted'); END");
    int n = fake_unit_results(race);
    ck_assert_int_eq(fake_worker_answer(&w, race), 0);
    fake_farm_expect_refusal(&w, "cannot be applied");
    ck_assert_double_eq(fake_farm_metric(&f, "moefarm_messages_undone_total"), 1);
    fake_farm_expect_log(&f, "planted");
    /* the results of the pipelines are kept, the closing result is not */
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM result WHERE pipeline IS NOT NULL"),
                        n - 1);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM result WHERE extra LIKE '%\"race\"%'"), 0);
    fake_farm_sql(&f, "DROP TRIGGER planted");
    fake_farm_join(&f, &other, "other");
    ck_assert_int_eq(fake_worker_greet(&w, "[]", FAKE_FARM_LIMIT_MS),
                     0); /* without the unit, which is then released */
    fake_farm_finish(&f, &other, batch);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM config"), 1);
    fake_worker_close(&w);
    fake_worker_close(&other);
    fake_farm_stop(&f);
}

/* A worker with two units leaves, and the farm cannot release the first one. Only this message is undone. */
MF_TEST(undoes_a_leave_that_cannot_be_applied)
{
    struct fake_farm f;
    struct fake_worker w;
    fake_farm_start(&f);
    fake_farm_join(&f, &w, "w");
    int64_t batch = fake_farm_submit(&f, 2, "");
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_READY, "{\"credit\":2}"), 0);
    for (int i = 0; i < 2; i++) {
        _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&w, MF_MESSAGE_UNIT, FAKE_FARM_LIMIT_MS);
        ck_assert_ptr_nonnull(unit);
    }
    fake_farm_sql(&f, "CREATE TRIGGER planted BEFORE UPDATE OF state ON unit WHEN new.state = 'ready' BEGIN"
                      " SELECT RAISE(ABORT, 'planted'); END");
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_BYE, "{}"), 0);
    fake_farm_expect_refusal(&w, "BYE cannot be applied");
    fake_farm_sql(&f, "DROP TRIGGER planted");
    ck_assert_int_eq(fake_worker_greet(&w, "[]", FAKE_FARM_LIMIT_MS), 0);
    fake_farm_finish(&f, &w, batch);
    fake_worker_close(&w);
    fake_farm_stop(&f);
}

/* ---- statistics ---- */

static double slow_race(const struct fake_worker *w, const cJSON *unit, const cJSON *pipeline)
{
    (void)w;
    (void)unit;
    (void)pipeline;
    return 80;
}

static double absurd_race(const struct fake_worker *w, const cJSON *unit, const cJSON *pipeline)
{
    (void)w;
    (void)unit;
    (void)pipeline;
    return 1e6;
}

/* Returns the largest forecast correction of the batch's pipelines. */
static double correction(const struct fake_farm *f, int64_t batch)
{
    char sql[200];
    (void)snprintf(sql, sizeof(sql),
                   "SELECT max(forecast_us / sum_us) FROM pipeline p JOIN task g ON g.id = p.task"
                   " WHERE g.batch = %" PRId64,
                   batch);
    return fake_farm_number(f, sql);
}

/* Runs a batch on one worker and returns the largest correction of its forecasts. The other workers are idle.
 */
static double run_batch(struct fake_farm *f, struct fake_worker *w, int seed)
{
    char query[40];
    (void)snprintf(query, sizeof(query), "&seed=%d", seed);
    int64_t batch = fake_farm_submit(f, 1, query);
    fake_farm_finish(f, w, batch);
    /* The worker is left without credit, so that the next batch runs on another worker. The answer to BEAT
     * shows that the READY before it was handled. */
    ck_assert_int_eq(fake_worker_send(w, MF_MESSAGE_READY, "{\"credit\":0}"), 0);
    ck_assert_int_eq(fake_worker_send(w, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{}}"), 0);
    _cleanup_(cJSON_Deletep) cJSON *answer = fake_worker_await(w, MF_MESSAGE_BEAT, FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(answer);
    return correction(f, batch);
}

/* The races of a hostile worker take 80 times as long as its steps. Its own forecasts are corrected, as on
 * any device where it is the only one of its model. The forecasts of other workers are not, until a second
 * worker confirms a ratio. */
MF_TEST(ratios_need_a_second_worker)
{
    struct fake_farm f;
    struct fake_worker hostile, b, c;
    fake_farm_start(&f);
    fake_farm_join(&f, &hostile, "hostile");
    hostile.factor = slow_race;
    ck_assert_double_eq_tol(run_batch(&f, &hostile, 1), 1, 1e-9);
    ck_assert_double_gt(run_batch(&f, &hostile, 2), 50);
    fake_farm_join(&f, &b, "b");
    ck_assert_double_eq_tol(run_batch(&f, &b, 3), 1, 1e-9); /* b has no ratio to confirm the 80 */
    ck_assert_double_eq_tol(run_batch(&f, &b, 4), 1, 1e-9); /* the two disagree */
    fake_farm_join(&f, &c, "c");
    (void)run_batch(&f, &c, 5);
    ck_assert_double_lt(run_batch(&f, &b, 6), 1.1); /* c confirms b */
    ck_assert_double_lt(run_batch(&f, &c, 7), 1.1);
    fake_worker_close(&hostile);
    fake_worker_close(&b);
    fake_worker_close(&c);
    fake_farm_stop(&f);
}

/* A race that takes a million times as long as its steps says nothing about its structure. */
MF_TEST(drops_absurd_ratios)
{
    struct fake_farm f;
    struct fake_worker w;
    fake_farm_start(&f);
    fake_farm_join(&f, &w, "w");
    w.factor = absurd_race;
    (void)run_batch(&f, &w, 1);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM structure_ratio"), 0);
    ck_assert_double_eq_tol(run_batch(&f, &w, 2), 1, 1e-9);
    fake_worker_close(&w);
    fake_farm_stop(&f);
}

/* Deviation of the launch gap that the farm added to its forecasts from 0.5 us per step. */
static const char gap_sql[] =
    "SELECT max(abs(p.sum_us - 0.5 * json_array_length(p.steps) - (SELECT sum(r.us) FROM json_each(p.steps) j"
    " JOIN result r ON r.step = j.value AND r.task = p.task AND r.final = 1))) FROM pipeline p";

MF_TEST(launch_gap_needs_a_majority)
{
    struct fake_farm f;
    struct fake_worker a, hostile, c;
    fake_farm_start(&f);
    fake_farm_join(&f, &a, "a");
    ck_assert_int_eq(fake_worker_open(&hostile, f.zmq, f.process.hub, "hostile"), 0);
    hostile.gap_us = 1e5;
    ck_assert_int_eq(fake_worker_greet(&hostile, "[]", FAKE_FARM_LIMIT_MS), 0);
    fake_farm_expect_quarantine(&f, "hostile", ""); /* one other worker is no majority */
    fake_farm_join(&f, &c, "c");
    fake_farm_expect_quarantine(&f, "hostile",
                                "its launch gap is 1e+05 us; the median of 2 other workers of the model is");
    _cleanup_(mf_freep) char *body = fake_farm_text(&f, "SELECT body FROM device_model");
    ck_assert_msg(strstr(body, "\"gap_us\":0.5"), "%s", body);
    (void)run_batch(&f, &a, 1);
    ck_assert_double_lt(fake_farm_number(&f, gap_sql), 1e-6);
    fake_worker_close(&a);
    fake_worker_close(&hostile);
    fake_worker_close(&c);
    fake_farm_stop(&f);
}

static double fast_steps(const struct fake_worker *w, const char *name)
{
    (void)w;
    (void)name;
    return 1;
}

/* The best times of a UNIT let a worker drop slow steps early. False times of another worker are not in them.
 */
MF_TEST(best_times_need_a_second_worker)
{
    struct fake_farm f;
    struct fake_worker hostile, b;
    const cJSON *best;
    fake_farm_start(&f);
    ck_assert_int_eq(fake_worker_open(&hostile, f.zmq, f.process.hub, "hostile"), 0);
    ck_assert_int_eq(fake_worker_open(&b, f.zmq, f.process.hub, "b"), 0);
    hostile.real = b.real = true;
    hostile.us = fast_steps;
    ck_assert_int_eq(fake_worker_greet(&hostile, "[]", FAKE_FARM_LIMIT_MS), 0);
    ck_assert_int_eq(fake_worker_greet(&b, "[]", FAKE_FARM_LIMIT_MS), 0);
    (void)fake_farm_submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *first = fake_worker_work_until(&hostile, "probe", FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(first);
    ck_assert_int_eq(fake_worker_answer(&hostile, first), 0);
    ck_assert_int_eq(fake_worker_ready(&hostile), 0);
    _cleanup_(cJSON_Deletep) cJSON *own = fake_worker_await(&hostile, MF_MESSAGE_UNIT, FAKE_FARM_LIMIT_MS);
    ck_assert_int_gt(cJSON_GetArraySize(mf_json_object(own, "best_us")), 0);
    ck_assert_int_eq(fake_worker_send(&hostile, MF_MESSAGE_BYE, "{}"), 0);
    ck_assert_int_eq(fake_worker_ready(&b), 0);
    _cleanup_(cJSON_Deletep) cJSON *second = fake_worker_await(&b, MF_MESSAGE_UNIT, FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(mf_json_object(second, "best_us"));
    cJSON_ArrayForEach (best, mf_json_object(second, "best_us"))
        ck_assert_msg(best->valuedouble >= 10, "%s: %g us", best->string, best->valuedouble);
    fake_worker_close(&hostile);
    fake_worker_close(&b);
    fake_farm_stop(&f);
}

/* Another worker contradicts the list of a worker, or the worker contradicts its own list. */
MF_TEST(contradicted_steps_are_listed_again, .rows = 2)
{
    struct fake_farm f;
    struct fake_worker hostile, b, *probing = _i ? &hostile : &b;
    char key[FAKE_UNIT_KEY_MAX];
    int64_t step = 0;
    int status = 0;
    fake_farm_start(&f);
    fake_farm_join(&f, &hostile, "hostile");
    fake_farm_join(&f, &b, "b");
    (void)fake_farm_submit(&f, 1, "&search=enumerate");
    ck_assert_int_eq(fake_worker_ready(&hostile), 0);
    _cleanup_(cJSON_Deletep) cJSON *list = fake_worker_await(&hostile, MF_MESSAGE_UNIT, FAKE_FARM_LIMIT_MS);
    ck_assert_int_eq(fake_worker_answer(&hostile, list), 0);
    for (int i = 0; i < 2; i++) {
        (void)fake_farm_submit(&f, 1, i ? "&name=second" : "&name=first");
        ck_assert_int_eq(fake_worker_ready(probing), 0);
        _cleanup_(cJSON_Deletep) cJSON *unit =
            fake_worker_await(probing, MF_MESSAGE_UNIT, FAKE_FARM_LIMIT_MS);
        ck_assert_ptr_nonnull(unit);
        ck_assert_str_eq(cJSON_GetObjectItem(unit, "kind")->valuestring,
                         i == 0 || probing == &hostile ? "probe" : "enumerate");
        if (i == 1)
            break;
        const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItem(unit, "steps"), 0);
        ck_assert_int_eq(mf_json_i64(first, "id", 1, INT64_MAX, &step), 0);
        fake_unit_key(unit, key);
        ck_assert_int_eq(fake_worker_send(probing, MF_MESSAGE_RESULT,
                                          "{%s,\"seq\":1,\"at_ms\":1,\"step\":%" PRId64 ","
                                          "\"status\":\"unsupported\",\"differs\":true}",
                                          key, step),
                         0);
        _cleanup_(cJSON_Deletep) cJSON *ack = fake_worker_await(probing, MF_MESSAGE_ACK, FAKE_FARM_LIMIT_MS);
        ck_assert_ptr_nonnull(ack);
        _cleanup_(mf_freep) char *cancelled =
            farm_process_http(&f.process, "POST", "/api/v1/batches/2/cancel", "text/csv", "", &status);
        ck_assert_int_eq(status, 200);
    }
    fake_worker_close(&hostile);
    fake_worker_close(&b);
    fake_farm_stop(&f);
}

/* A worker lists a false step and leaves before the list is complete. The next worker lists all steps. */
MF_TEST(partial_list_ends_with_its_worker)
{
    struct fake_farm f;
    struct fake_worker hostile, b;
    char key[FAKE_UNIT_KEY_MAX];
    fake_farm_start(&f);
    fake_farm_join(&f, &hostile, "hostile");
    fake_farm_join(&f, &b, "b");
    int64_t batch = fake_farm_submit(&f, 1, "");
    ck_assert_int_eq(fake_worker_ready(&hostile), 0);
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_await(&hostile, MF_MESSAGE_UNIT, FAKE_FARM_LIMIT_MS);
    fake_unit_key(unit, key);
    ck_assert_int_eq(
        fake_worker_send(&hostile, MF_MESSAGE_RESULT,
                         "{%s,\"seq\":1,\"at_ms\":1,\"status\":\"ok\",\"steps\":[{\"name\":\"sort_m16\","
                         "\"family\":\"fake\",\"stage\":\"move\",\"covers\":\"sort\",\"block_m\":16,"
                         "\"ksplit\":0,\"needs\":[],\"gives\":[],\"workspace\":4096,\"flops\":1,"
                         "\"bytes\":1,\"reorder_tolerance\":0}]}",
                         key),
        0);
    _cleanup_(cJSON_Deletep) cJSON *ack = fake_worker_await(&hostile, MF_MESSAGE_ACK, FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(ack);
    ck_assert_int_eq(fake_worker_send(&hostile, MF_MESSAGE_BYE, "{}"), 0);
    fake_farm_finish(&f, &b, batch);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM step WHERE body ->> '$.workspace' > 0"),
                        0);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM step s JOIN kernel k ON k.id = s.kernel"
                                             " WHERE k.name = 'sort_m16'"),
                        1);
    fake_worker_close(&hostile);
    fake_worker_close(&b);
    fake_farm_stop(&f);
}

/* A worker claims first that the model is a real device. Honest workers of the same model name still connect.
 * With one of each, the older worker is trusted; with two honest workers, the majority is. */
MF_TEST(false_claim_does_not_lock_others_out)
{
    struct fake_farm f;
    struct fake_worker hostile, a, b;
    fake_farm_start(&f);
    ck_assert_int_eq(fake_worker_open(&hostile, f.zmq, f.process.hub, "hostile"), 0);
    hostile.real = true;
    ck_assert_int_eq(fake_worker_greet(&hostile, "[]", FAKE_FARM_LIMIT_MS), 0);
    fake_farm_join(&f, &a, "a");
    fake_farm_expect_quarantine(&f, "hostile", "");
    fake_farm_expect_quarantine(&f, "a", "it claims that model m is simulated; 1 of 2");
    fake_farm_join(&f, &b, "b");
    fake_farm_expect_quarantine(&f, "hostile", "it claims that model m is a real device; 2 of 3");
    fake_farm_expect_quarantine(&f, "a", "");
    fake_farm_expect_quarantine(&f, "b", "");
    fake_farm_expect_log(&f, "quarantined worker hostile: it claims");
    int64_t batch = fake_farm_submit(&f, 1, "");
    ck_assert_int_eq(fake_worker_ready(&hostile), 0);
    fake_farm_finish(&f, &a, batch);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM result r JOIN worker w ON w.id = r.worker"
                                             " WHERE w.name = 'hostile'"),
                        0);
    fake_worker_close(&hostile);
    fake_worker_close(&a);
    fake_worker_close(&b);
    fake_farm_stop(&f);
}

/* An admin ends the quarantine of a worker whose messages could not be applied. */
MF_TEST(quarantines_after_undone_messages)
{
    struct fake_farm f;
    struct fake_worker w;
    int status = 0;
    fake_farm_start(&f);
    fake_farm_join(&f, &w, "w");
    int64_t batch = fake_farm_submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *race = fake_worker_work_until(&w, "race", FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(race);
    fake_farm_sql(&f,
                  "CREATE TRIGGER planted BEFORE INSERT ON config BEGIN SELECT RAISE(ABORT, 'planted'); END");
    for (int i = 0; i < 3; i++) {
        char key[FAKE_UNIT_KEY_MAX], running[FAKE_UNIT_KEY_MAX + 4];
        fake_farm_expect_quarantine(&f, "w", "");
        ck_assert_int_eq(fake_worker_answer(&w, race), 0);
        fake_farm_expect_refusal(&w, "cannot be applied");
        fake_unit_key(race, key);
        mf_format(running, sizeof(running), "[{%s}]", key);
        ck_assert_int_eq(fake_worker_greet(&w, running, FAKE_FARM_LIMIT_MS), 0);
    }
    fake_farm_expect_quarantine(&f, "w", "messages that cannot be applied");
    fake_farm_sql(&f, "DROP TRIGGER planted");
    free(farm_process_http(&f.process, "POST", "/api/v1/workers/1/revive", "", "", &status));
    ck_assert_int_eq(status, 200);
    free(farm_process_http(&f.process, "POST", "/api/v1/workers/1/revive", "", "", &status));
    ck_assert_int_eq(status, 404);
    fake_farm_expect_quarantine(&f, "w", "");
    fake_farm_finish(&f, &w, batch);
    fake_worker_close(&w);
    fake_farm_stop(&f);
}

/* ---- lies ---- */

/* Sends the results of a race. The named pipeline gets `members` instead of correct ones; the closing result
 * names it as the winner, with the time race_us. */
static void lie_about(struct fake_worker *w, const cJSON *race, int64_t liar, const char *members,
                      const char *race_us)
{
    char key[FAKE_UNIT_KEY_MAX];
    int n = fake_unit_results(race) - 1;
    fake_unit_key(race, key);
    for (int i = 0; i < n; i++) {
        int64_t id = 0;
        (void)mf_json_i64(cJSON_GetArrayItem(mf_json_array(race, "pipelines"), i), "id", 1, INT64_MAX, &id);
        if (id != liar || !members)
            ck_assert_int_eq(fake_worker_result(w, race, i), 0);
        else
            ck_assert_int_eq(fake_worker_send(w, MF_MESSAGE_RESULT,
                                              "{%s,\"seq\":%d,\"status\":\"ok\",\"pipeline\":%" PRId64 ",%s}",
                                              key, i + 1, id, members),
                             0);
    }
    ck_assert_int_eq(fake_worker_send(w, MF_MESSAGE_RESULT,
                                      "{%s,\"seq\":%d,\"status\":\"ok\",\"last\":true,\"race\":{\"winner\":"
                                      "%" PRId64 ",\"ties\":[],\"us\":%s,\"mad\":0}}",
                                      key, n + 1, liar, race_us),
                     0);
}

static const struct {
    const char *members, *race_us;
} lies[] = {
    {NULL, "1e-6"},                       /* shorter than any kernel */
    {NULL, "0.002"},                      /* shorter than any GEMM */
    {"\"us\":0.5,\"verified\":0", "0.5"}, /* never verified */
    {"\"us\":0.5,\"verified\":1", "0.5"},
    {"\"us\":0.002,\"verified\":2", "0.002"},
};

/* A false winner does not win; another pipeline of the race does. */
MF_TEST(false_winner_does_not_win, .rows = MF_ARRAY_LEN(lies))
{
    struct fake_farm f;
    struct fake_worker w;
    fake_farm_start(&f);
    fake_farm_join(&f, &w, "w");
    int64_t batch = fake_farm_submit(&f, 1, "&layout=free");
    _cleanup_(cJSON_Deletep) cJSON *race = fake_worker_work_until(&w, "race", FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(race);
    int64_t liar = first_item(race);
    lie_about(&w, race, liar, lies[_i].members, lies[_i].race_us);
    fake_farm_finish(&f, &w, batch);
    ck_assert_double_gt(fake_farm_number(&f, "SELECT us FROM config"), 5);
    ck_assert(fake_farm_number(&f, "SELECT pipeline FROM config") != (double)liar);
    fake_worker_close(&w);
    fake_farm_stop(&f);
}

/* Only the worker that had an attempt may send its results late, and only one for each step. */
MF_TEST(late_results_need_their_owner)
{
    struct fake_farm f;
    struct fake_worker a, b;
    char key[FAKE_UNIT_KEY_MAX];
    fake_farm_start(&f);
    fake_farm_join(&f, &a, "a");
    fake_farm_join(&f, &b, "b");
    (void)fake_farm_submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *first = fake_worker_work_until(&a, "probe", FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(first);
    ck_assert_int_eq(fake_worker_send(&a, MF_MESSAGE_BYE, "{}"), 0);
    ck_assert_int_eq(fake_worker_ready(&b), 0);
    _cleanup_(cJSON_Deletep) cJSON *second = fake_worker_await(&b, MF_MESSAGE_UNIT, FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(second);
    ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItem(second, "attempt")), 2);
    ck_assert_int_eq(fake_worker_result(&b, first, 0), 0);
    fake_farm_expect_refusal(&b, "granted to another worker");
    ck_assert_int_eq(fake_worker_greet(&a, "[]", FAKE_FARM_LIMIT_MS), 0);
    fake_unit_key(first, key);
    for (int seq = 1; seq <= 20; seq++) {
        ck_assert_int_eq(fake_worker_send(&a, MF_MESSAGE_RESULT,
                                          "{%s,\"seq\":%d,\"step\":%" PRId64 ",\"status\":\"ok\",\"us\":5}",
                                          key, seq, first_item(first)),
                         0);
        _cleanup_(cJSON_Deletep) cJSON *ack = fake_worker_await(&a, MF_MESSAGE_ACK, FAKE_FARM_LIMIT_MS);
        ck_assert_ptr_nonnull(ack);
    }
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM result WHERE late = 1"), 1);
    ck_assert_int_eq(fake_worker_send(&a, MF_MESSAGE_RESULT,
                                      "{%s,\"seq\":99,\"step\":123456,\"status\":\"ok\",\"us\":5}", key),
                     0);
    fake_farm_expect_refusal(&a, "not in this unit");
    fake_worker_close(&a);
    fake_worker_close(&b);
    fake_farm_stop(&f);
}

/* A race has one closing result, so its rows are bounded. */
MF_TEST(race_has_one_closing_result)
{
    struct fake_farm f;
    struct fake_worker w;
    fake_farm_start(&f);
    fake_farm_join(&f, &w, "w");
    (void)fake_farm_submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *race = fake_worker_work_until(&w, "race", FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(race);
    send_members(&w, race, "\"race\":{\"winner\":%lld,\"us\":50}");
    fake_farm_expect_refusal(&w, "expected a pipeline, or last");
    fake_worker_close(&w);
    fake_farm_stop(&f);
}

/* A worker that only sends heartbeats loses its unit to another worker. */
MF_TEST(heartbeats_do_not_keep_a_lease)
{
    static const char *const more[] = {"--lease-max-s", "1", NULL};
    struct fake_farm f;
    struct fake_worker idle, other;
    char key[FAKE_UNIT_KEY_MAX];
    fake_farm_start_with(&f, FAKE_FARM_BEAT_MS, more);
    fake_farm_join(&f, &idle, "idle");
    int64_t batch = fake_farm_submit(&f, 1, "");
    _cleanup_(cJSON_Deletep) cJSON *unit = fake_worker_work_until(&idle, "probe", FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(unit);
    fake_unit_key(unit, key);
    cJSON *cancel = NULL;
    for (int64_t end = mf_now_ms() + FAKE_FARM_LIMIT_MS; !cancel && mf_now_ms() < end;) {
        (void)fake_worker_send(&idle, MF_MESSAGE_BEAT,
                               "{\"running\":[{%s,\"step\":\"\",\"done\":0,\"total\":1}],\"busy\":{}}", key);
        cancel = fake_worker_await(&idle, MF_MESSAGE_CANCEL, 50);
    }
    ck_assert_msg(cancel != NULL, "the idle worker still has its unit");
    cJSON_Delete(cancel);
    fake_farm_expect_log(&f, "its worker held it longer than its limit");
    ck_assert_int_eq(fake_worker_ready(&idle), 0);
    fake_farm_join(&f, &other, "other");
    fake_farm_finish(&f, &other, batch);
    fake_worker_close(&idle);
    fake_worker_close(&other);
    fake_farm_stop(&f);
}

/* ---- sizes ---- */

/* Sends a HELLO with these families and refused families, which must be refused. */
static void expect_refused_hello(struct fake_worker *w, const char *families, const char *refused,
                                 const char *why)
{
    ck_assert_int_eq(
        fake_worker_send(w, MF_MESSAGE_HELLO,
                         "{\"worker\":\"v\",\"instance\":\"i\",\"class\":\"gfx942/304\",\"model\":"
                         "\"m\",\"device\":{},\"revision\":\"r1\",\"families\":%s,"
                         "\"refused_families\":%s,\"simulated\":true}",
                         families, refused),
        0);
    fake_farm_expect_refusal(w, why);
}

/* Appends 65 items, one more than HELLO may have, and the end of the list. */
static void add_items(char *list, size_t cap, const char *format, const char *end)
{
    for (int i = 0; i < 65; i++) {
        size_t len = strlen(list);
        (void)snprintf(list + len, cap - len, "%s\"f%d\"%s", i ? "," : "", i, format);
    }
    size_t len = strlen(list);
    (void)snprintf(list + len, cap - len, "%s", end);
}

/* The texts of HELLO that are stored have a limit, and so have the log lines that HELLO causes. */
MF_TEST(hello_is_bounded)
{
    struct fake_farm f;
    struct fake_worker w;
    static char text[4096], list[8192];
    fake_farm_start(&f);
    fake_farm_join(&f, &w, "w");
    for (int i = 0; i < 400; i++)
        ck_assert_int_eq(fake_worker_greet(&w, "[]", FAKE_FARM_LIMIT_MS), 0);
    ck_assert_int_le(fake_farm_count_log(&f, "worker w connected"), 100);
    memset(text, 'f', sizeof(text) - 1);
    (void)snprintf(list, sizeof(list), "{\"%s\":\"r1\"}", text);
    expect_refused_hello(&w, list, "[]", "families: expected");
    (void)snprintf(list, sizeof(list), "{\"f\":\"%s\"}", text);
    expect_refused_hello(&w, list, "[]", "families: expected");
    (void)snprintf(list, sizeof(list), "{");
    add_items(list, sizeof(list), ":\"r1\"", "}");
    expect_refused_hello(&w, list, "[]", "families: expected");
    expect_refused_hello(&w, "[\"f\"]", "[]", "families: expected");
    (void)snprintf(list, sizeof(list), "[{\"name\":\"f\",\"why\":\"%s\"}]", text);
    expect_refused_hello(&w, "{}", list, "refused_families: expected");
    (void)snprintf(list, sizeof(list), "[");
    add_items(list, sizeof(list), "", "]");
    expect_refused_hello(&w, "{}", list, "refused_families: expected");
    expect_refused_hello(&w, "{}", "[{\"name\":\"f g\",\"why\":\"\"}]", "refused_families: expected");
    fake_worker_close(&w);
    fake_farm_stop(&f);
}

int main(void)
{
    return mf_check_main(NULL);
}
