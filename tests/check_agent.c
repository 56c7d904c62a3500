/* worker/agent.c and worker/job.c against a coordinator of cardboard: a ROUTER in this process. The runners are
 * real, on the simulated device. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "common/wire.h"
#include "mf_check.h"
#include "remove_tree.h"
#include "worker/agent.h"

#define WORKER   MF_BINARY_DIR "/worker/moefarm-worker"
#define DEADLINE 20000
#define CALM_MS  60000 /* of a step: no step that is slow counts as hung */
#define HUNG_MS  2500  /* where one has to, a good step still has time on a busy machine */
#define SHAPE \
    "16,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

static char folder[64], endpoint[64], device[160];
static void *zmq, *router;
static struct mf_agent *agent;
static zmq_msg_t peer;
static bool peer_known;
static uint64_t sequence; /* of the last message received */
static bool greets; /* it has been told WELCOME, and may have said HELLO once more before that reached it */
static int n_beats, time_cap_ms; /* of the units that are given */

/* ---- the cardboard ---- */

static void write_file(const char *name, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static void bind_router(void)
{
    const int zero = 0;
    size_t len = sizeof(endpoint);
    router = zmq_socket(zmq, ZMQ_ROUTER);
    ck_assert_int_eq(zmq_setsockopt(router, ZMQ_LINGER, &zero, sizeof(zero)), 0);
    /* A socket that was closed gives its port back a little later. */
    int64_t until = mf_now_ms() + DEADLINE;
    while (zmq_bind(router, endpoint[0] ? endpoint : "tcp://127.0.0.1:*") < 0)
        ck_assert_int_lt(mf_now_ms(), until);
    ck_assert_int_eq(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &len), 0);
}

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/check_agent.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    zmq = zmq_ctx_new();
    endpoint[0] = '\0';
    bind_router();
    peer_known = false;
    n_beats = 0;
    time_cap_ms = CALM_MS;
    greets = false;
}

static void teardown(void)
{
    mf_agent_free(agent);
    agent = NULL;
    if (peer_known)
        zmq_msg_close(&peer);
    zmq_close(router);
    zmq_ctx_term(zmq);
    (void)remove_tree(folder);
}

static int start(const char *spec, const char *script, char *why, size_t why_cap)
{
    static const char *argv[8];
    int n = 0;
    if (script) {
        argv[n++] = "/bin/sh";
        argv[n++] = "-c";
        argv[n++] = script;
    } else {
        write_file("spec.json", spec);
        (void)snprintf(device, sizeof(device), "sim:gfx942/304:0:%s/spec.json", folder);
        argv[n++] = WORKER;
        argv[n++] = "--runner-child";
        argv[n++] = "--device";
        argv[n++] = device;
    }
    argv[n] = NULL;
    struct mf_agent_options o = {.zmq = zmq,
                                 .coordinator = endpoint,
                                 .name = "w",
                                 .device = "sim:gfx942/304:0",
                                 .spool_folder = folder,
                                 .lock_folder = folder,
                                 .runner_argv = argv,
                                 .keep_bytes = 1 << 20,
                                 .reserve = true};
    return mf_agent_new(&o, why, why_cap, &agent);
}

static void start_agent(const char *spec)
{
    char why[256] = "";
    ck_assert_msg(start(spec, NULL, why, sizeof(why)) == 0, "%s", why);
}

/* One message from the router, when there is one. */
static bool receive(enum mf_message *ret_type, cJSON **ret)
{
    zmq_msg_t id, header, body;
    struct mf_wire_header h;
    int version;
    zmq_msg_init(&id);
    if (zmq_msg_recv(&id, router, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&id);
        return false;
    }
    zmq_msg_init(&header);
    zmq_msg_init(&body);
    ck_assert_int_ge(zmq_msg_recv(&header, router, 0), 0);
    ck_assert_int_ge(zmq_msg_recv(&body, router, 0), 0);
    ck_assert(!zmq_msg_more(&body));
    ck_assert_int_eq(mf_wire_decode(zmq_msg_data(&header), zmq_msg_size(&header), &h, &version), 0);
    *ret = mf_json_parse(zmq_msg_data(&body), zmq_msg_size(&body), MF_WIRE_BODY_MAX);
    ck_assert_ptr_nonnull(*ret);
    *ret_type = h.type;
    sequence = h.sequence;
    if (peer_known)
        zmq_msg_close(&peer);
    zmq_msg_init(&peer);
    zmq_msg_move(&peer, &id);
    peer_known = true;
    zmq_msg_close(&id);
    zmq_msg_close(&header);
    zmq_msg_close(&body);
    return true;
}

/* Lets the agent work until something happens, or the time is up. */
static void pump(int64_t until)
{
    zmq_pollitem_t items[MF_AGENT_POLLITEMS + 1], own[MF_AGENT_POLLITEMS];
    int n = 0, code;
    mf_agent_turn(agent);
    items[n++] = (zmq_pollitem_t){.socket = router, .events = ZMQ_POLLIN};
    if (!mf_agent_ended(agent, &code)) {
        mf_agent_pollitems(agent, own);
        for (int i = 0; i < MF_AGENT_POLLITEMS; i++) {
            if (own[i].socket || own[i].fd >= 0)
                items[n++] = own[i];
        }
    }
    int64_t due = MF_MIN(mf_agent_due_ms(agent), until) - mf_now_ms();
    (void)zmq_poll(items, n, MF_MAX(due, 0));
}

/* The next message of the worker but BEATs, and a HELLO that crossed with its answer. NULL: none within the time. */
static cJSON *next_message(enum mf_message *ret_type, int64_t within_ms)
{
    int64_t until = mf_now_ms() + within_ms;
    while (mf_now_ms() < until) {
        cJSON *m = NULL;
        while (receive(ret_type, &m)) {
            bool again = greets && *ret_type == MF_MESSAGE_HELLO;
            n_beats += *ret_type == MF_MESSAGE_BEAT;
            if (*ret_type != MF_MESSAGE_BEAT && !again) {
                greets = false;
                return m;
            }
            cJSON_Delete(m);
        }
        pump(until);
    }
    return NULL;
}

static cJSON *expect(enum mf_message type)
{
    enum mf_message got;
    cJSON *m = next_message(&got, DEADLINE);
    ck_assert_msg(m != NULL, "no %s within %d ms", mf_message_name(type), DEADLINE);
    _cleanup_(mf_freep) char *text = mf_json_print(m);
    ck_assert_msg(got == type, "%s in place of %s: %s", mf_message_name(got), mf_message_name(type), text);
    return m;
}

static void skip(enum mf_message type)
{
    cJSON_Delete(expect(type));
}

static void tell(enum mf_message type, const char *text)
{
    uint8_t header[MF_WIRE_HEADER_SIZE];
    static uint64_t own;
    zmq_msg_t id;
    zmq_msg_init(&id);
    zmq_msg_copy(&id, &peer);
    greets |= type == MF_MESSAGE_WELCOME;
    mf_wire_encode(&(struct mf_wire_header){.type = type, .sequence = ++own}, header);
    ck_assert_int_ge(zmq_msg_send(&id, router, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(router, header, sizeof(header), ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(router, text, strlen(text), 0), 0);
}

static const char *text_of(const cJSON *m, const char *key)
{
    const char *text = NULL;
    ck_assert_int_eq(mf_json_text(m, key, &text), 0);
    return text;
}

static int64_t number_of(const cJSON *m, const char *key)
{
    int64_t n = -1;
    ck_assert_int_eq(mf_json_i64(m, key, 0, INT64_C(1) << 53, &n), 0);
    return n;
}

static void acknowledge(const cJSON *result)
{
    char text[128];
    (void)snprintf(text, sizeof(text), "{\"acks\":[[%ld,%ld,%ld]]}", (long)number_of(result, "unit"),
                   (long)number_of(result, "attempt"), (long)number_of(result, "seq"));
    tell(MF_MESSAGE_ACK, text);
}

static void welcome(const char *keep)
{
    char text[256];
    (void)snprintf(text, sizeof(text), "{\"epoch\":3,\"beat_ms\":1000,\"lease_ms\":%d,\"keep\":%s}", DEADLINE,
                   keep);
    tell(MF_MESSAGE_WELCOME, text);
}

static void join(const char *spec)
{
    start_agent(spec);
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    skip(MF_MESSAGE_READY);
}

/* Some of the simulated steps, with ids from 1. */
static void probe(char *text, size_t cap, int unit, const char *const *names, int n)
{
    int at = snprintf(text, cap,
                      "{\"unit\":%d,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"shape\":\"" SHAPE
                      "\",\"options\":{\"seed\":1,\"time_cap_ms\":%d},\"steps\":[",
                      unit, time_cap_ms);
    for (int i = 0; i < n; i++)
        at += snprintf(
            text + at, cap - (size_t)at,
            "%s{\"id\":%d,\"name\":\"%s\",\"family\":\"sim\",\"stage\":\"move\",\"covers\":\"sort\",\"block_"
            "m\":32,"
            "\"ksplit\":0,\"needs\":[\"topk/index/none/token\"],\"gives\":[\"sorted/index/none/sorted.32\"],"
            "\"workspace\":0,\"flops\":0,\"bytes\":1000,\"reorder_tolerance\":0}",
            i ? "," : "", i + 1, names[i]);
    ck_assert_int_lt(at, (int)cap - 4);
    (void)snprintf(text + at, cap - (size_t)at, "]}");
}

static const char *const five[] = {"a1", "a2", "a3", "a4", "a5"};

static void give_probe(int unit, const char *const *names, int n)
{
    char text[4096];
    probe(text, sizeof(text), unit, names, n);
    tell(MF_MESSAGE_UNIT, text);
}

/* ---- tests ---- */

START_TEST(says_who_it_is)
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
    ck_assert_int_ge(cJSON_GetArraySize(mf_json_array(hello, "families")), 1);
    ck_assert_str_eq(text_of(mf_json_object(hello, "device"), "class"), "gfx942/304");
    /* It says so again until it is answered. */
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    _cleanup_(cJSON_Deletep) cJSON *ready = expect(MF_MESSAGE_READY);
    ck_assert_int_eq(number_of(ready, "credit"), 1);
}
END_TEST

START_TEST(enumerates_in_pieces)
{
    join("{}");
    tell(MF_MESSAGE_UNIT,
         "{\"unit\":5,\"attempt\":2,\"epoch\":3,\"kind\":\"enumerate\",\"shape\":\"4096,4096,1536,128,8,"
         "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz,"
         "QuantType.per_Token,1,0\"}");
    skip(MF_MESSAGE_READY); /* the next unit is asked for while this one runs */
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
END_TEST

/* Results of a probe until the last: the statuses in order of arrival. */
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
    {"{\"faults\":[{\"match\":\"a3\",\"fault\":\"crash\"}]}", {"ok", "ok", "crash", "ok", "ok"}},
    {"{\"faults\":[{\"match\":\"a1\",\"fault\":\"exit\"}]}", {"crash", "ok", "ok", "ok", "ok"}},
    {"{\"faults\":[{\"match\":\"a5\",\"fault\":\"abort\"}]}", {"ok", "ok", "ok", "ok", "crash"}},
    {"{\"faults\":[{\"match\":\"a2\",\"fault\":\"hang\"}]}", {"ok", "hang", "ok", "ok", "ok"}},
    {"{\"faults\":[{\"match\":\"a?\",\"fault\":\"crash\"}]}", {"crash", "crash", "crash", "crash", "crash"}},
    {"{\"faults\":[{\"match\":\"a4\",\"fault\":\"nan\"}]}", {"ok", "ok", "ok", "wrong", "ok"}},
};
/* clang-format on */

START_TEST(one_result_a_step)
{
    join(probes[_i].spec);
    time_cap_ms = HUNG_MS;
    give_probe(9, five, 5);
    expect_probe(5, probes[_i].statuses);
    /* And the next unit runs as if nothing had been. */
    give_probe(10, five, 5);
    expect_probe(5, probes[_i].statuses);
}
END_TEST

/* The log says what the way back from a death was spent on. */
START_TEST(tells_the_way_back)
{
    char path[128], log[4096] = "";
    (void)snprintf(path, sizeof(path), "%s/log", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), was = dup(STDERR_FILENO);
    mf_log_init("check_agent", MF_LOG_INFO);
    ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
    join("{\"faults\":[{\"match\":\"a3\",\"fault\":\"crash\"}]}");
    give_probe(9, five, 5);
    expect_probe(5, (const char *const[]){"ok", "ok", "crash", "ok", "ok"});
    ck_assert_int_ge(dup2(was, STDERR_FILENO), 0);
    ck_assert_int_gt(pread(fd, log, sizeof(log) - 1, 0), 0);
    const char *line = strstr(log, "w: next step ");
    double total = 0, context = 0, data = 0, step = 0;
    ck_assert_msg(
        line &&
            sscanf(line, "w: next step %lf ms after its runner's death: context %lf + data %lf + step %lf",
                   &total, &context, &data, &step) == 4,
        "%s", log);
    ck_assert_double_eq_tol(total, context + data + step, 0.2);
    ck_assert_ptr_null(strstr(line + 1, "w: next step ")); /* once a death */
}
END_TEST

START_TEST(one_unit_ahead)
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
END_TEST

/* Whose READY is lost, and whose connection is not, asks again once it has waited for a lease. */
START_TEST(asks_again)
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
    ck_assert_int_ge(mf_now_ms() - start, LEASE_MS - 50); /* it began to count a little before it was heard */
    cJSON_Delete(m);
    /* The first was only late: both are answered, and so is the READY that follows. Nothing of the three is dropped. */
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
END_TEST

START_TEST(races)
{
    join("{}");
    tell(MF_MESSAGE_UNIT, "{\"unit\":4,\"attempt\":1,\"epoch\":3,\"kind\":\"race\",\"shape\":\"" SHAPE
                          "\",\"options\":{\"seed\":1},"
                          "\"plan\":{\"rounds\":[{\"rounds\":6,\"keep\":2},{\"rounds\":6,\"keep\":2}],"
                          "\"fresh\":5,\"alpha\":0.05},\"pipelines\":["
                          "{\"id\":1,\"forecast_us\":10,\"steps\":[{\"name\":\"p1\",\"family\":\"sim\","
                          "\"stage\":\"move\",\"covers\":\"sort\","
                          "\"block_m\":32,\"ksplit\":0,\"needs\":[],\"gives\":[],\"workspace\":0,\"flops\":0,"
                          "\"bytes\":1e9,\"reorder_tolerance\":0}]},"
                          "{\"id\":2,\"forecast_us\":10,\"steps\":[{\"name\":\"p2\",\"family\":\"sim\","
                          "\"stage\":\"move\",\"covers\":\"sort\","
                          "\"block_m\":32,\"ksplit\":0,\"needs\":[],\"gives\":[],\"workspace\":0,\"flops\":0,"
                          "\"bytes\":9e9,\"reorder_tolerance\":0}]}]}");
    skip(MF_MESSAGE_READY);
    for (int i = 1; i <= 2; i++) {
        _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
        ck_assert_int_eq(number_of(result, "pipeline"), i);
        ck_assert_str_eq(text_of(result, "status"), "ok");
        /* The second takes nine times as long, and one round is enough to see it */
        int n = cJSON_GetArraySize(mf_json_array(result, "samples"));
        ck_assert_msg(i == 1 ? n >= 6 : n == 1 && number_of(result, "dropped_at") == 1, "%d samples of %d", n,
                      i);
        ck_assert(!cJSON_IsTrue(cJSON_GetObjectItem(result, "last")));
    }
    _cleanup_(cJSON_Deletep) cJSON *closing = expect(MF_MESSAGE_RESULT);
    ck_assert_int_eq(number_of(mf_json_object(closing, "race"), "winner"), 1);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(closing, "last")));
}
END_TEST

/* What is not acknowledged is sent again, in order, after every WELCOME: of a coordinator that forgot us, and by a worker
 * that was started anew. */
START_TEST(sent_until_acknowledged)
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
            agent = mf_agent_free(agent); /* no BYE: as if killed */
            start_agent("{}");
        }
    }
    /* Acknowledged now: a further hello is followed by nothing. */
    tell(MF_MESSAGE_REFUSE, "{\"code\":\"unknown_worker\",\"reason\":\"say hello\"}");
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    skip(MF_MESSAGE_READY);
}
END_TEST

/* A coordinator that was restarted learns of the unit that still runs, and lets it run. */
START_TEST(goes_on_over_a_restart_of_the_coordinator)
{
    join("{\"step_ms\":100}");
    give_probe(6, five, 5);
    skip(MF_MESSAGE_READY);
    skip(MF_MESSAGE_RESULT);
    zmq_close(router);
    bind_router();
    /* Its beat comes to somebody who does not know it. */
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
    /* It may have ended it in the meantime; then all is in the spool. */
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
END_TEST

START_TEST(silence_ends_its_units)
{
    start_agent("{\"step_ms\":5000}");
    skip(MF_MESSAGE_HELLO);
    tell(MF_MESSAGE_WELCOME, "{\"epoch\":3,\"beat_ms\":500,\"lease_ms\":2500,\"keep\":[]}");
    skip(MF_MESSAGE_READY);
    give_probe(1, five, 5);
    skip(MF_MESSAGE_READY);
    /* Nothing more is said: within a lease it gives up and says who it is, with nothing running. */
    _cleanup_(cJSON_Deletep) cJSON *hello = expect(MF_MESSAGE_HELLO);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(hello, "running")), 0);
    ck_assert_int_ge(n_beats, 1);
    welcome("[]");
    skip(MF_MESSAGE_READY);
}
END_TEST

START_TEST(units_not_kept_are_dropped)
{
    join("{\"step_ms\":5000}");
    give_probe(1, five, 5);
    skip(MF_MESSAGE_READY);
    tell(MF_MESSAGE_REFUSE, "{\"code\":\"unknown_worker\",\"reason\":\"say hello\"}");
    _cleanup_(cJSON_Deletep) cJSON *hello = expect(MF_MESSAGE_HELLO);
    ck_assert_int_eq(cJSON_GetArraySize(mf_json_array(hello, "running")), 1);
    write_file("spec.json", "{}"); /* for the next runner */
    welcome("[]");
    skip(MF_MESSAGE_READY);
    give_probe(2, five, 1);
    static const char *const ok[] = {"ok"};
    expect_probe(1, ok);
}
END_TEST

START_TEST(cancelled)
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
END_TEST

START_TEST(drained)
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
END_TEST

START_TEST(stopped)
{
    join("{\"step_ms\":50000}"); /* it does not wait for a step: expect() would give up first */
    give_probe(1, five, 2);
    skip(MF_MESSAGE_READY);
    mf_agent_stop(agent, "stopped");
    _cleanup_(cJSON_Deletep) cJSON *bye = expect(MF_MESSAGE_BYE);
    ck_assert_str_eq(text_of(bye, "reason"), "stopped");
}
END_TEST

/* clang-format off */
static const struct {
    const char *unit, *says;
} bad_units[] = {
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"dance\"}", "kind has to be"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"steps\":[]}", "steps has to be"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"steps\":[{\"name\":\"a\"}]}", "steps[0].id"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"race\"}", "pipelines has to be"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"steps\":[{\"id\":1}]}", "shape"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"enumerate\",\"shape\":\"no\"}", "shape has to hold"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"shape\":\"" SHAPE "\",\"steps\":[{\"id\":1}]}", "name"},
    {"{\"unit\":1,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"shape\":\"" SHAPE "\",\"options\":{\"seed\":-1},"
     "\"steps\":[{\"id\":1}]}", "seed"},
};
/* clang-format on */

START_TEST(refuses_in_words)
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
        ck_assert_msg(strstr(text_of(m, "reason"), bad_units[_i].says) != NULL, "%s", text_of(m, "reason"));
        ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(m, "last")));
        break;
    }
    /* It is still there for a good one. */
    static const char *const ok[] = {"ok"};
    give_probe(2, five, 1);
    expect_probe(1, ok);
}
END_TEST

START_TEST(rubbish_is_ignored)
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
END_TEST

/* A result that the coordinator will never take must not be sent for ever. */
START_TEST(refused_result_is_dropped)
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
END_TEST

/* One that the coordinator has no memory for is sent again, and so is what was asked. */
START_TEST(refused_for_want_of_memory_is_sent_again)
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
END_TEST

START_TEST(one_worker_a_device)
{
    join("{}");
    struct mf_agent *first = agent;
    char why[256] = "", pid[32];
    ck_assert_int_eq(start("{}", NULL, why, sizeof(why)), -EBUSY);
    (void)snprintf(pid, sizeof(pid), "pid %ld", (long)getpid());
    ck_assert_msg(strstr(why, pid) != NULL, "%s", why);
    agent = first;
}
END_TEST

#define DESCRIBED                                                                                           \
    "read l <&3; echo "                                                                                     \
    "'{\"op\":\"described\",\"class\":\"x/1\",\"model\":\"m\",\"isa\":\"\",\"compiler\":\"\",\"memory\":1," \
    "\"llc\":1,\"cores\":1,\"peak_gflops\":{\"bf16\":1,\"f32\":1},\"mem_read_gbs\":1,\"gap_us\":1,"         \
    "\"simulated\":true}' >&3; "
#define HELLO                                                                                             \
    "echo "                                                                                               \
    "'{\"op\":\"hello\",\"protocol\":1,\"name\":\"sh\",\"revision\":\"r\",\"families\":[\"f\"],\"can\":[" \
    "\"unit\"]}' >&3; "

/* clang-format off */
static const struct {
    const char *script, *status, *says;
} bad_runners[] = {
    {HELLO DESCRIBED "read l <&3; echo no data >&2; exit 5", "crash", "exit code 5; stderr: no data"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"result\",\"step\":99,\"status\":\"ok\"}' >&3; exec sleep 100", "crash",
     "nothing that was asked"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"begin\",\"step\":1}' >&3; exec sleep 100", "crash", "without a limit"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"sing\"}' >&3; exec sleep 100", "crash", "no message for a unit"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"end\"}' >&3; exec sleep 100", "unsupported", "gave no result"},
    {HELLO DESCRIBED "read l <&3; echo '{\"op\":\"error\",\"status\":\"no_memory\",\"reason\":\"w1 is too large\"}' >&3; "
                     "exec sleep 100", "no_memory", "w1 is too large"},
};
/* clang-format on */

/* Programs that are runners in name only: the unit ends with the reason, after three tries where a try may help. */
START_TEST(bad_runner)
{
    char why[256] = "";
    ck_assert_int_eq(start(NULL, bad_runners[_i].script, why, sizeof(why)), 0);
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    skip(MF_MESSAGE_READY);
    give_probe(1, five, 1);
    skip(MF_MESSAGE_READY);
    _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
    ck_assert_str_eq(text_of(result, "status"), bad_runners[_i].status);
    ck_assert_msg(strstr(text_of(result, "reason"), bad_runners[_i].says) != NULL, "%s",
                  text_of(result, "reason"));
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(result, "last")));
}
END_TEST

/* A device that dies in mid-life takes no unit with it: its worker gives back what it has and ends, and is not given more to fail. */
START_TEST(a_sick_device_leaves)
{
    static char script[4096];
    char why[256] = "";
    enum mf_message got = MF_MESSAGE_HELLO;
    int code = -1;
    (void)snprintf(script, sizeof(script),
                   "if [ -e %s/sick ]; then " HELLO "read l <&3; "
                   "echo '{\"op\":\"error\",\"status\":\"unsupported\",\"reason\":\"the device is gone\"}' "
                   ">&3; exec sleep 100; "
                   "fi; touch %s/sick; " HELLO DESCRIBED "read l <&3; exit 5",
                   folder, folder);
    ck_assert_int_eq(start(NULL, script, why, sizeof(why)), 0);
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    skip(MF_MESSAGE_READY);
    give_probe(1, five, 1);
    skip(MF_MESSAGE_READY);
    _cleanup_(cJSON_Deletep) cJSON *bye = next_message(&got, 2 * DEADLINE);
    _cleanup_(mf_freep) char *text = mf_json_print(bye);
    ck_assert_msg(got == MF_MESSAGE_BYE, "%s in place of BYE: %s", mf_message_name(got), text);
    ck_assert_str_eq(text_of(bye, "reason"), "no runner starts on its device any more");
    pump(mf_now_ms());
    ck_assert(mf_agent_ended(agent, &code));
    ck_assert_int_eq(code, 1);
}
END_TEST

/* A shape that does not fit is a status on each of its steps, not a failed unit. */
START_TEST(too_large_is_said_of_each_step)
{
    char why[256] = "";
    ck_assert_int_eq(start(NULL, bad_runners[MF_ARRAY_LEN(bad_runners) - 1].script, why, sizeof(why)), 0);
    skip(MF_MESSAGE_HELLO);
    welcome("[]");
    skip(MF_MESSAGE_READY);
    give_probe(1, five, 3);
    skip(MF_MESSAGE_READY);
    for (int i = 0; i < 3; i++) {
        _cleanup_(cJSON_Deletep) cJSON *result = expect(MF_MESSAGE_RESULT);
        ck_assert_str_eq(text_of(result, "status"), "no_memory");
        ck_assert_str_eq(text_of(result, "reason"), "w1 is too large");
        ck_assert(cJSON_IsNumber(cJSON_GetObjectItem(result, "step")));
        ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(result, "last")), i == 2);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("agent");
    TCase *tc = tcase_create("agent");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, says_who_it_is);
    tcase_add_test(tc, enumerates_in_pieces);
    tcase_add_loop_test(tc, one_result_a_step, 0, (int)MF_ARRAY_LEN(probes));
    tcase_add_test(tc, tells_the_way_back);
    tcase_add_test(tc, one_unit_ahead);
    tcase_add_test(tc, asks_again);
    tcase_add_test(tc, races);
    tcase_add_test(tc, sent_until_acknowledged);
    tcase_add_test(tc, goes_on_over_a_restart_of_the_coordinator);
    tcase_add_test(tc, silence_ends_its_units);
    tcase_add_test(tc, units_not_kept_are_dropped);
    tcase_add_test(tc, cancelled);
    tcase_add_test(tc, drained);
    tcase_add_test(tc, stopped);
    tcase_add_loop_test(tc, refuses_in_words, 0, (int)MF_ARRAY_LEN(bad_units));
    tcase_add_test(tc, rubbish_is_ignored);
    tcase_add_test(tc, refused_result_is_dropped);
    tcase_add_test(tc, refused_for_want_of_memory_is_sent_again);
    tcase_add_test(tc, one_worker_a_device);
    tcase_add_test(tc, too_large_is_said_of_each_step);
    tcase_add_loop_test(tc, bad_runner, 0, (int)MF_ARRAY_LEN(bad_runners));
    tcase_add_test(tc, a_sick_device_leaves);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
