/* Tests worker/agent/agent.c and worker/agent/job.c against a fake coordinator. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/moe/status.h"
#include "support/fake_coordinator.h"
#include "support/mf_check.h"

/* ---- tests ---- */

MF_TEST(sends_hello)
{
    start_agent("{}");
    _cleanup_(cJSON_Deletep) cJSON *hello = expect(MF_MESSAGE_HELLO);
    ck_assert_str_eq(text_of(hello, "worker"), "w");
    ck_assert_str_eq(text_of(hello, "class"), "gfx942/304");
    ck_assert_str_eq(text_of(hello, "version"), MF_VERSION);
    ck_assert_uint_eq(strlen(text_of(hello, "instance")), 16);
    ck_assert_int_eq(number_of(hello, "pid"), getpid());
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(hello, "simulated")));
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(hello, "running")), 0);
    ck_assert_int_ge(cJSON_GetArraySize(mf_json_object(hello, "families")), 1);
    ck_assert_str_eq(text_of(mf_json_object(hello, "device"), "class"), "gfx942/304");
    /* The agent repeats HELLO until the coordinator answers. */
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    _cleanup_(cJSON_Deletep) cJSON *ready = expect(MF_MESSAGE_READY);
    ck_assert_int_eq(number_of(ready, "credit"), 1);
}

MF_TEST(enumerates_in_several_results)
{
    join("{}");
    tell(MF_MESSAGE_UNIT,
         "{\"unit\":5,\"attempt\":2,\"epoch\":3,\"kind\":\"enumerate\",\"shape\":\"4096,4096,1536,128,8,"
         "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz,"
         "QuantType.per_Token,1,0\"}");
    skip(MF_MESSAGE_READY); /* the agent requests the next unit while this unit runs */
    int n_steps = 0, n_rejections = 0, seq = 0;
    for (bool last = false; !last;) {
        _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
        ck_assert_int_eq(number_of(result, "unit"), 5);
        ck_assert_int_eq(number_of(result, "attempt"), 2);
        ck_assert_int_eq(number_of(result, "seq"), ++seq);
        ck_assert_int_le(cJSON_GetArraySize(mf_json_array(result, "steps")), 256);
        n_steps += cJSON_GetArraySize(mf_json_array(result, "steps"));
        n_rejections += cJSON_GetArraySize(mf_json_array(result, "rejections"));
        last = cJSON_IsTrue(cJSON_GetObjectItem(result, "last"));
        acknowledge(result);
    }
    ck_assert_int_gt(n_steps, 100);
    ck_assert_int_ge(n_rejections, 1);
}

/* Receives n results of a probe and checks their statuses, in order of arrival. */
static void expect_probe(int n, const char *const *statuses)
{
    for (int i = 0; i < n; i++) {
        enum mf_message type;
        cJSON *m = next_message(&type, DEADLINE);
        if (m && type == MF_MESSAGE_READY) {
            cJSON_Delete(m);
            i--;
            continue;
        }
        ck_assert_ptr_nonnull(m);
        ck_assert_int_eq(type, MF_MESSAGE_RESULT);
        ck_assert_int_eq(number_of(m, "seq"), i + 1);
        ck_assert_int_eq(number_of(m, "step"), i + 1);
        ck_assert_int_eq(number_of(m, "epoch"), 3);
        ck_assert_int_gt(number_of(m, "at_ms"), 0);
        ck_assert_msg(strcmp(text_of(m, "status"), statuses[i]) == 0, "step %d: %s: %s", i + 1,
                      text_of(m, "status"), text_of(m, "reason"));
        if (strcmp(statuses[i], "ok") != 0)
            ck_assert_str_ne(text_of(m, "reason"), "");
        ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(m, "last")), i == n - 1);
        acknowledge(m);
        cJSON_Delete(m);
    }
}

/* clang-format off */
static const struct {
    const char *spec, *statuses[5];
} probes[] = {
    {"{}", {"ok", "ok", "ok", "ok", "ok"}},
    {"{\"faults\":[{\"match\":\"sim_sort_m64\",\"fault\":\"crash\"}]}", {"ok", "ok", "crash", "ok", "ok"}},
    {"{\"faults\":[{\"match\":\"sim_sort_m16\",\"fault\":\"exit\"}]}", {"crash", "ok", "ok", "ok", "ok"}},
    {"{\"faults\":[{\"match\":\"sim_sort_m256\",\"fault\":\"abort\"}]}", {"ok", "ok", "ok", "ok", "crash"}},
    {"{\"faults\":[{\"match\":\"sim_sort_m32\",\"fault\":\"hang\"}]}", {"ok", "hang", "ok", "ok", "ok"}},
    {"{\"faults\":[{\"match\":\"sim_sort_*\",\"fault\":\"crash\"}]}",
     {"crash", "crash", "crash", "crash", "crash"}},
    {"{\"faults\":[{\"match\":\"sim_sort_m128\",\"fault\":\"nan\"}]}", {"ok", "ok", "ok", "wrong", "ok"}},
};
/* clang-format on */

MF_TEST(sends_one_result_per_step, .rows = MF_ARRAY_LEN(probes))
{
    join(probes[_i].spec);
    time_cap_ms = SHORT_CAP_MS;
    give_probe(9, five, 5);
    expect_probe(5, probes[_i].statuses);
    /* The probe of the next unit gives the same statuses. */
    give_probe(10, five, 5);
    expect_probe(5, probes[_i].statuses);
}

/* After a crash the log reports how long each phase of the recovery took. */
MF_TEST(logs_recovery_time)
{
    log_begin();
    join("{\"faults\":[{\"match\":\"sim_sort_m64\",\"fault\":\"crash\"}]}");
    give_probe(9, five, 5);
    expect_probe(5, (const char *const[]){"ok", "ok", "crash", "ok", "ok"});
    log_end();
    const char *log = log_text(), *line = strstr(log, "w: recovered ");
    double total = 0, context = 0, data = 0, step = 0;
    ck_assert_msg(line && sscanf(line,
                                 "w: recovered %lf ms after a runner died: context %lf + data %lf + step %lf",
                                 &total, &context, &data, &step) == 4,
                  "%s", log);
    ck_assert_double_eq_tol(total, context + data + step, 0.2);
    ck_assert_ptr_null(strstr(line + 1, "w: recovered ")); /* one report per crash */
}

MF_TEST(requests_one_unit_ahead)
{
    join("{\"step_ms\":30}");
    give_probe(1, five, 5);
    skip(MF_MESSAGE_READY);
    give_probe(2, five, 5);
    int last_of_first = 0, first_of_second = 0, n_ready = 0;
    for (int i = 0; i < 11; i++) {
        enum mf_message type;
        _cleanup_(cJSON_Deletep) cJSON *m = next_message(&type, DEADLINE);
        ck_assert_ptr_nonnull(m);
        if (type == MF_MESSAGE_READY) {
            n_ready++;
            continue;
        }
        int unit = (int)number_of(m, "unit");
        if (unit == 1)
            last_of_first = i;
        else if (!first_of_second)
            first_of_second = i;
    }
    ck_assert_int_gt(first_of_second, last_of_first);
    ck_assert_int_eq(n_ready, 1);
}

/* If a READY is lost and the connection stays open, the agent repeats READY after one lease. */
MF_TEST(repeats_a_lost_ready)
{
    enum { LEASE_MS = 300 };
    enum mf_message type;
    cJSON *m = NULL;
    int n_results = 0, n_ready = 0;

    start_agent("{\"step_ms\":1}");
    skip(MF_MESSAGE_HELLO);
    tell(MF_MESSAGE_WELCOME, "{\"epoch\":3,\"beat_ms\":100,\"lease_ms\":300,\"keep\":[]}");
    skip(MF_MESSAGE_READY);
    int64_t start = mf_now_ms(), until = start + DEADLINE;
    while (!m && mf_now_ms() < until) {
        tell(MF_MESSAGE_BEAT, "{}");
        m = next_message(&type, 50);
    }
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(type, MF_MESSAGE_READY);
    /* 50 ms less, because the agent's timer started earlier than the test's */
    ck_assert_int_ge(mf_now_ms() - start, LEASE_MS - 50);
    cJSON_Delete(m);
    /* The first READY was late, not lost. So the coordinator answers all three READYs, and the agent runs
     * every unit. */
    for (int unit = 1; unit <= 3; unit++)
        give_probe(unit, five, 1);
    while (n_results < 3 && mf_now_ms() < until) {
        tell(MF_MESSAGE_BEAT, "{}");
        m = next_message(&type, 50);
        n_results += m && type == MF_MESSAGE_RESULT;
        n_ready += m && type == MF_MESSAGE_READY;
        cJSON_Delete(m);
    }
    ck_assert_int_eq(n_results, 3);
    ck_assert_int_le(n_ready, 3);
}

#define RACE_STEP(name, block_m)                                                                            \
    "{\"name\":\"" name "\",\"family\":\"sim\",\"stage\":\"move\",\"covers\":\"sort\",\"block_m\":" block_m \
    ",\"ksplit\":0,\"needs\":[\"topk/index/none/token\"],\"gives\":[\"sorted/index/none/sorted." block_m    \
    "\"],\"workspace\":0,\"flops\":0,\"bytes\":1000,\"reorder_tolerance\":0}"

MF_TEST(runs_a_race)
{
    join("{\"times\":[{\"match\":\"sim_sort_m32\",\"factor\":9}]}");
    tell(MF_MESSAGE_UNIT, "{\"unit\":4,\"attempt\":1,\"epoch\":3,\"kind\":\"race\",\"shape\":\"" SHAPE
                          "\",\"options\":{\"seed\":1},"
                          "\"plan\":{\"rounds\":[{\"rounds\":6,\"keep\":2},{\"rounds\":6,\"keep\":2}],"
                          "\"fresh\":5,\"alpha\":0.05},\"pipelines\":["
                          "{\"id\":1,\"forecast_us\":10,\"steps\":[" RACE_STEP(
                              "sim_sort_m16", "16") "]},"
                                                    "{\"id\":2,\"forecast_us\":10,\"steps\":[" RACE_STEP(
                                                        "sim_sort_m32", "32") "]}]}");
    skip(MF_MESSAGE_READY);
    for (int i = 1; i <= 2; i++) {
        _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
        ck_assert_int_eq(number_of(result, "pipeline"), i);
        ck_assert_str_eq(text_of(result, "status"), "ok");
        /* The second pipeline takes nine times as long as the first, so the race drops it after one round. */
        int n = cJSON_GetArraySize(mf_json_array(result, "samples"));
        ck_assert_msg(i == 1 ? n >= 6 : n == 1 && number_of(result, "dropped_at") == 1,
                      "%d samples of pipeline %d", n, i);
        ck_assert(!cJSON_IsTrue(cJSON_GetObjectItem(result, "last")));
    }
    _cleanup_(cJSON_Deletep) cJSON *closing = expect(MF_MESSAGE_RESULT);
    ck_assert_int_eq(number_of(mf_json_object(closing, "race"), "winner"), 1);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(closing, "last")));
}

/* The agent sends unacknowledged results again, in order, after every WELCOME: first to a coordinator that
 * has lost its state, then after a restart of the worker. */
MF_TEST(resends_until_acknowledged)
{
    join("{}");
    give_probe(1, five, 3);
    skip(MF_MESSAGE_READY);
    for (int i = 1; i <= 3; i++) {
        _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
        if (i == 2)
            acknowledge(result);
    }
    tell(MF_MESSAGE_REFUSE, "{\"code\":\"unknown_worker\",\"reason\":\"say hello\"}");
    for (int again = 0; again < 2; again++) {
        skip(MF_MESSAGE_HELLO);
        welcome("[]");
        for (int i = 1; i <= 3; i += 2) {
            _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
            ck_assert_int_eq(number_of(result, "seq"), i);
            if (again)
                acknowledge(result);
        }
        skip(MF_MESSAGE_READY);
        if (again == 0) {
            agent = mf_agent_free(agent); /* sends no BYE, like a killed worker */
            start_agent("{}");
        }
    }
    /* All results are acknowledged, so the agent sends no result after the next HELLO. */
    tell(MF_MESSAGE_REFUSE, "{\"code\":\"unknown_worker\",\"reason\":\"say hello\"}");
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    skip(MF_MESSAGE_READY);
}

/* A restarted coordinator learns of the running unit from HELLO, and lets the unit run. */
MF_TEST(keeps_its_unit_when_the_coordinator_restarts)
{
    join("{\"step_ms\":100}");
    give_probe(6, five, 5);
    skip(MF_MESSAGE_READY);
    skip(MF_MESSAGE_RESULT);
    zmq_close(router);
    bind_router();
    /* The new coordinator does not know the worker that sends this BEAT. */
    enum mf_message type;
    cJSON *m = NULL;
    while (!receive(&type, &m))
        pump(mf_now_ms() + 1000);
    cJSON_Delete(m);
    tell(MF_MESSAGE_REFUSE, "{\"code\":\"unknown_worker\",\"reason\":\"say hello\"}");
    _cleanup_(cJSON_Deletep) cJSON *hello = NULL;
    while (!hello) {
        m = next_message(&type, DEADLINE);
        ck_assert_ptr_nonnull(m);
        if (type == MF_MESSAGE_HELLO)
            hello = m;
        else
            cJSON_Delete(m);
    }
    const cJSON *running = cJSON_GetArrayItem(mf_json_array(hello, "running"), 0);
    /* If HELLO names no running unit, the unit has ended and its results are in the spool. */
    if (running)
        ck_assert_int_eq(number_of(running, "unit"), 6);
    welcome("[{\"unit\":6,\"attempt\":1}]");
    unsigned seen = 0;
    while (seen != 0x1f) {
        m = next_message(&type, DEADLINE);
        ck_assert_ptr_nonnull(m);
        if (type == MF_MESSAGE_RESULT) {
            ck_assert_str_eq(text_of(m, "status"), "ok");
            seen |= 1u << (number_of(m, "step") - 1);
            acknowledge(m);
        }
        cJSON_Delete(m);
    }
}

MF_TEST(drops_units_when_the_lease_expires)
{
    start_agent("{\"step_ms\":5000}");
    skip(MF_MESSAGE_HELLO);
    tell(MF_MESSAGE_WELCOME, "{\"epoch\":3,\"beat_ms\":500,\"lease_ms\":2500,\"keep\":[]}");
    skip(MF_MESSAGE_READY);
    give_probe(1, five, 5);
    skip(MF_MESSAGE_READY);
    /* From here on the coordinator is silent. Within one lease the agent drops its units and sends HELLO
     * again. */
    _cleanup_(cJSON_Deletep) cJSON *hello = expect(MF_MESSAGE_HELLO);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(hello, "running")), 0);
    ck_assert_int_ge(n_beats, 1);
    welcome("[]");
    skip(MF_MESSAGE_READY);
}

static int count_in_log(const char *text)
{
    int n = 0;
    for (const char *at = log_text(); (at = strstr(at, text)) != NULL; at++)
        n++;
    return n;
}

static void pump_until_logged(const char *text, int times)
{
    int64_t until = mf_now_ms() + DEADLINE;
    while (count_in_log(text) < times) {
        ck_assert_msg(mf_now_ms() < until, "expected %d times '%s' in:\n%s", times, text, log_text());
        pump(mf_now_ms() + 50);
    }
}

/* Replaces the router by a listening socket that never answers, which also reserves the port. */
static int bind_silent_listener(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)},
                                  .sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1))};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int64_t until = mf_now_ms() + DEADLINE;
    zmq_close(router);
    router = NULL;
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    while (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        ck_assert_int_lt(mf_now_ms(), until);
    ck_assert_int_eq(listen(fd, 8), 0);
    return fd;
}

/* The agent logs a missing answer after silence_ms, then after twice silence_ms and after four times
 * silence_ms, until an answer arrives. After WELCOME it logs that the coordinator was silent for one lease.
 */
MF_TEST(logs_a_silent_coordinator)
{
    char message[128];
    (void)snprintf(message, sizeof(message), "w: no answer from %s for ", endpoint);
    int listener = bind_silent_listener();
    silence_ms = 300;
    log_begin();
    int64_t begun = mf_now_ms();
    start_agent("{}");
    pump_until_logged(message, 1);
    ck_assert_int_ge(mf_now_ms() - begun, silence_ms);
    ck_assert_ptr_nonnull(strstr(log_text(), "moefarmd --hub"));
    pump_until_logged(message, 2);
    ck_assert_int_ge(mf_now_ms() - begun, 2 * silence_ms);
    pump_until_logged(message, 3);
    ck_assert_int_ge(mf_now_ms() - begun, 4 * silence_ms);
    (void)close(listener);
    bind_router();
    skip(MF_MESSAGE_HELLO);
    int before = count_in_log(message);
    tell(MF_MESSAGE_WELCOME, "{\"epoch\":3,\"beat_ms\":500,\"lease_ms\":1500,\"keep\":[]}");
    skip(MF_MESSAGE_READY);
    ck_assert_int_eq(count_in_log(message), before);
    pump_until_logged("no message from the coordinator for 1500 ms", 1);
    pump_until_logged(message, before + 1);
    log_end();
}

/* A refusal counts as an answer, so the agent logs the refusal and no missing answer. */
MF_TEST(logs_a_refusal)
{
    silence_ms = 3000;
    log_begin();
    start_agent("{}");
    for (int i = 0; i < 3; i++) {
        skip(MF_MESSAGE_HELLO);
        tell(MF_MESSAGE_REFUSE, "{\"code\":\"device\",\"reason\":\"test\"}");
    }
    log_end();
    ck_assert_int_eq(count_in_log("no answer from"), 0);
    ck_assert_int_eq(count_in_log("refuses this worker (device): test"), 1);
}

MF_TEST(drops_units_not_kept)
{
    join("{\"step_ms\":5000}");
    give_probe(1, five, 5);
    skip(MF_MESSAGE_READY);
    tell(MF_MESSAGE_REFUSE, "{\"code\":\"unknown_worker\",\"reason\":\"say hello\"}");
    _cleanup_(cJSON_Deletep) cJSON *hello = expect(MF_MESSAGE_HELLO);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(hello, "running")), 1);
    write_file("spec.json", "{}"); /* the next runner measures without a delay */
    welcome("[]");
    skip(MF_MESSAGE_READY);
    give_probe(2, five, 1);
    static const char *const ok[] = {"ok"};
    expect_probe(1, ok);
}

MF_TEST(cancels_a_unit)
{
    join("{\"step_ms\":5000}");
    give_probe(1, five, 5);
    skip(MF_MESSAGE_READY);
    write_file("spec.json", "{}");
    tell(MF_MESSAGE_CANCEL, "{\"unit\":1,\"attempt\":1}");
    tell(MF_MESSAGE_CANCEL, "{\"unit\":77,\"attempt\":1}");
    give_probe(2, five, 2);
    static const char *const ok[] = {"ok", "ok"};
    expect_probe(2, ok);
}

MF_TEST(drains_on_request)
{
    join("{\"step_ms\":20}");
    give_probe(1, five, 2);
    skip(MF_MESSAGE_READY);
    tell(MF_MESSAGE_DRAIN, "{}");
    static const char *const ok[] = {"ok", "ok"};
    expect_probe(2, ok);
    _cleanup_(cJSON_Deletep) cJSON *bye = expect(MF_MESSAGE_BYE);
    ck_assert_str_eq(text_of(bye, "reason"), "drained");
    int code = -1;
    pump(mf_now_ms());
    ck_assert(mf_agent_ended(agent, &code));
    ck_assert_int_eq(code, 0);
}

MF_TEST(stops_without_waiting)
{
    /* longer than expect() waits, so the test fails if the agent waits for the step */
    join("{\"step_ms\":50000}");
    give_probe(1, five, 2);
    skip(MF_MESSAGE_READY);
    mf_agent_stop(agent, "stopped");
    _cleanup_(cJSON_Deletep) cJSON *bye = expect(MF_MESSAGE_BYE);
    ck_assert_str_eq(text_of(bye, "reason"), "stopped");
}

/* clang-format off */
static const struct {
    const char *unit, *message;
} bad_units[] = {
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"dance\"}", "kind: expected"},
    /* a time that is not finite, as printf prints it */
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"race\",\"pipelines\":[{\"id\":1,\"forecast_us\":inf,"
     "\"steps\":[]}]}", "unreadable UNIT: not a JSON object"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"best_us\":{\"sort\":NaN}}", "unreadable"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"race\",\"pipelines\":[{\"id\":1,"
     "\"forecast_us\":1e308,\"steps\":[]}]}", "pipelines[].forecast_us: 1e+308 is out of bounds"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"steps\":[]}", "steps: expected"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"steps\":[{\"name\":\"a\"}]}", "steps[0].id"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"race\"}", "pipelines: expected"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"steps\":[{\"id\":1}]}", "shape"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"enumerate\",\"shape\":\"no\"}", "shape: expected"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"shape\":\"" SHAPE "\","
     "\"steps\":[{\"id\":1}]}", "name"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"shape\":\"" SHAPE "\","
     "\"options\":{\"seed\":-1},\"steps\":[{\"id\":1}]}", "seed"},
};
/* clang-format on */

MF_TEST(rejects_malformed_units, .rows = MF_ARRAY_LEN(bad_units))
{
    join("{}");
    tell(MF_MESSAGE_UNIT, bad_units[_i].unit);
    for (;;) {
        enum mf_message type;
        _cleanup_(cJSON_Deletep) cJSON *m = next_message(&type, DEADLINE);
        ck_assert_ptr_nonnull(m);
        if (type != MF_MESSAGE_RESULT)
            continue;
        ck_assert_str_eq(text_of(m, "status"), "unsupported");
        ck_assert_msg(strstr(text_of(m, "reason"), bad_units[_i].message) != NULL, "%s",
                      text_of(m, "reason"));
        ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(m, "last")));
        break;
    }
    /* The agent still accepts a valid unit. */
    static const char *const ok[] = {"ok"};
    give_probe(2, five, 1);
    expect_probe(1, ok);
}

MF_TEST(ignores_malformed_messages)
{
    join("{}");
    zmq_msg_t id;
    static const char *const frames[] = {"", "MF", "MF\x01\x02 not sixteen",
                                         "MF\x09\x01\0\0\0\0\0\0\0\0\0\0\0\0"};
    for (size_t i = 0; i < MF_ARRAY_LEN(frames); i++) {
        zmq_msg_init(&id);
        zmq_msg_copy(&id, &peer);
        zmq_msg_send(&id, router, ZMQ_SNDMORE);
        zmq_send(router, frames[i], i == 3 ? 16 : strlen(frames[i]), i % 2 ? ZMQ_SNDMORE : 0);
        if (i % 2)
            zmq_send(router, "{", 1, 0);
    }
    tell(MF_MESSAGE_UNIT, "[]");
    tell(MF_MESSAGE_ACK, "{\"acks\":[[1],[1,2,\"x\"],7,[-1,0,0]]}");
    tell(MF_MESSAGE_CANCEL, "{}");
    tell(MF_MESSAGE_HELLO, "{}");
    give_probe(1, five, 1);
    static const char *const ok[] = {"ok"};
    expect_probe(1, ok);
}

/* A result that the coordinator rejects as malformed must not be sent again. */
MF_TEST(drops_a_refused_result)
{
    join("{}");
    give_probe(1, five, 1);
    skip(MF_MESSAGE_READY);
    skip(MF_MESSAGE_RESULT);
    char text[128];
    (void)snprintf(text, sizeof(text), "{\"code\":\"malformed\",\"reason\":\"test\",\"sequence\":%lu}",
                   (unsigned long)sequence);
    tell(MF_MESSAGE_REFUSE, text);
    tell(MF_MESSAGE_REFUSE, "{\"code\":\"unknown_worker\",\"reason\":\"say hello\"}");
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    skip(MF_MESSAGE_READY);
}

/* The agent sends a result again if the coordinator refused it for lack of memory. The agent also repeats a
 * READY that was refused for this reason. */
MF_TEST(resends_after_no_memory)
{
    join("{}");
    give_probe(1, five, 1);
    skip(MF_MESSAGE_READY);
    skip(MF_MESSAGE_RESULT);
    tell(MF_MESSAGE_REFUSE, "{\"code\":\"no_memory\",\"reason\":\"test\"}");
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
    acknowledge(result);
    skip(MF_MESSAGE_READY);
}

MF_TEST(allows_one_worker_per_device)
{
    join("{}");
    struct mf_agent *first = agent;
    char why[256] = "", pid[32];
    ck_assert_int_eq(start("{}", NULL, why, sizeof(why)), -EBUSY);
    (void)snprintf(pid, sizeof(pid), "pid %ld", (long)getpid());
    ck_assert_msg(strstr(why, pid) != NULL, "%s", why);
    agent = first;
}

#define DESCRIBED                                                                                           \
    "read l <&3; echo "                                                                                     \
    "'{\"op\":\"described\",\"class\":\"x/1\",\"model\":\"m\",\"isa\":\"\",\"compiler\":\"\",\"memory\":1," \
    "\"llc\":1,\"cores\":1,\"peak_gflops\":{\"bf16\":1,\"f32\":1},\"mem_read_gbs\":1,\"gap_us\":1,"         \
    "\"simulated\":true}' >&3; "
#define HELLO                                                                                          \
    "echo "                                                                                            \
    "'{\"op\":\"hello\",\"protocol\":1,\"name\":\"sh\",\"revision\":\"r\",\"families\":{\"f\":\"r\"}," \
    "\"can\":["                                                                                        \
    "\"unit\"]}' >&3; "

/* clang-format off */
static const struct {
    const char *script, *status, *message;
} bad_runners[] = {
    {HELLO DESCRIBED "read l <&3; echo no data >&2; exit 5", "crash", "exit code 5; stderr: no data"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"result\",\"step\":99,\"status\":\"ok\"}' >&3; "
                     "exec sleep 100",
     "crash", "not an item of the unit"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"begin\",\"step\":1}' >&3; exec sleep 100",
     "crash", "limit_ms missing or invalid"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"sing\"}' >&3; exec sleep 100",
     "crash", "invalid for a unit"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"end\"}' >&3; exec sleep 100",
     "unsupported", "sent no result"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"error\",\"status\":\"no_memory\","
                     "\"reason\":\"w1 is too large\"}' >&3; exec sleep 100",
     "no_memory", "w1 is too large"},
};
/* clang-format on */

/* Starts an agent with a script as runner and gives it a probe of n steps. */
static void probe_with_runner(const char *script, int n)
{
    char why[256] = "";
    ck_assert_msg(start(NULL, script, why, sizeof(why)) == 0, "%s", why);
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    skip(MF_MESSAGE_READY);
    give_probe(1, five, n);
    skip(MF_MESSAGE_READY);
}

/* With a defective runner the unit fails with the reason. The agent first makes three attempts if a retry may
 * help. */
MF_TEST(reports_a_bad_runner, .rows = MF_ARRAY_LEN(bad_runners))
{
    probe_with_runner(bad_runners[_i].script, 1);
    _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
    ck_assert_str_eq(text_of(result, "status"), bad_runners[_i].status);
    ck_assert_msg(strstr(text_of(result, "reason"), bad_runners[_i].message) != NULL, "%s",
                  text_of(result, "reason"));
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(result, "last")));
}

/* A runner may be silent for longer than idle_ms while it makes data, but not in other phases. */
static const struct {
    const char *phase;
    bool allowed;
} silent_phases[] = {{"data", true}, {"timing", false}};

MF_TEST(allows_silence_while_making_data, .rows = MF_ARRAY_LEN(silent_phases))
{
    static char script[4096];
    (void)snprintf(script, sizeof(script),
                   HELLO DESCRIBED
                   "read l <&3; echo '{\"op\":\"phase\",\"name\":\"%s\"}' >&3; sleep 2; "
                   "echo '{\"op\":\"error\",\"status\":\"no_memory\",\"reason\":\"at last\"}' >&3; "
                   "exec sleep 100",
                   silent_phases[_i].phase);
    idle_ms = 500;
    probe_with_runner(script, 1);
    _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
    const char *message = silent_phases[_i].allowed ? "at last" : "silent for more than 500 ms";
    ck_assert_msg(strstr(text_of(result, "reason"), message) != NULL, "%s", text_of(result, "reason"));
}

/* If no runner can open the device any more, the worker returns its unit and exits. It must not fail further
 * units. */
MF_TEST(leaves_when_the_device_fails)
{
    static char script[4096];
    enum mf_message got = MF_MESSAGE_HELLO;
    int code = -1;
    (void)snprintf(script, sizeof(script),
                   "if [ -e %s/sick ]; then " HELLO "read l <&3; "
                   "echo '{\"op\":\"error\",\"status\":\"unsupported\",\"reason\":\"the device is gone\"}' "
                   ">&3; exec sleep 100; "
                   "fi; touch %s/sick; " HELLO DESCRIBED "read l <&3; exit 5",
                   folder, folder);
    probe_with_runner(script, 1);
    _cleanup_(cJSON_Deletep) cJSON *bye = next_message(&got, 2 * DEADLINE);
    _cleanup_(mf_freep) char *text = mf_json_print(bye);
    ck_assert_msg(got == MF_MESSAGE_BYE, "received %s instead of BYE: %s", mf_message_name(got), text);
    ck_assert_str_eq(text_of(bye, "reason"), "cannot start a runner on the device any more");
    pump(mf_now_ms());
    ck_assert(mf_agent_ended(agent, &code));
    ck_assert_int_eq(code, 1);
}

/* If a shape is too large for the device, each step gets a status; the unit does not fail. */
MF_TEST(reports_no_memory_per_step)
{
    probe_with_runner(bad_runners[MF_ARRAY_LEN(bad_runners) - 1].script, 3);
    for (int i = 0; i < 3; i++) {
        _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
        ck_assert_str_eq(text_of(result, "status"), "no_memory");
        ck_assert_str_eq(text_of(result, "reason"), "w1 is too large");
        ck_assert(cJSON_IsNumber(cJSON_GetObjectItem(result, "step")));
        ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(result, "last")), i == 2);
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = setup, .teardown = teardown});
}
