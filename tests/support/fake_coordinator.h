/* A fake coordinator for tests of the worker agent (worker/agent/agent.c). Its ROUTER socket and the agent
 * share one thread of the test process. The agent's runners are real processes on the simulated device. All
 * functions and variables are static, so include this file in one source file of a test program only. */
#pragma once

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/net/wire.h"
#include "support/remove_tree.h"
#include "worker/agent/agent.h"

#define WORKER   MF_BINARY_DIR "/worker/moefarm-worker"
#define DEADLINE 20000
/* time cap of a step, long enough that a slow step on a busy machine does not count as hung */
#define LONG_CAP_MS 60000
/* time cap for tests of hung steps, long enough that a correct step ends in time on a busy machine */
#define SHORT_CAP_MS 2500
#define SHAPE \
    "16,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

static char folder[64], endpoint[64], device[160];
static void *zmq, *router;
static struct mf_agent *agent;
static zmq_msg_t peer;
static bool peer_known;
static uint64_t sequence; /* sequence number of the last message received */
/* true after WELCOME was sent; a HELLO that was sent before this WELCOME may still arrive */
static bool welcome_sent;
static int64_t silence_ms, idle_ms; /* options of the next agent */
static int n_beats, time_cap_ms;    /* time_cap_ms: time cap in the units that the coordinator sends */

/* ---- the fake coordinator ---- */

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
    /* The kernel frees the port of a closed socket with a delay. */
    int64_t until = mf_now_ms() + DEADLINE;
    while (zmq_bind(router, endpoint[0] ? endpoint : "tcp://127.0.0.1:*") < 0)
        ck_assert_int_lt(mf_now_ms(), until);
    ck_assert_int_eq(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &len), 0);
}

/* ---- the agent's log ---- */

static int log_fd = -1, stderr_was;

static void log_begin(void)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/log", folder);
    log_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    stderr_was = dup(STDERR_FILENO);
    mf_log_init("check_agent", MF_LOG_INFO);
    ck_assert_int_ge(dup2(log_fd, STDERR_FILENO), 0);
}

static const char *log_text(void)
{
    static char text[8192];
    ssize_t n = pread(log_fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void log_end(void)
{
    ck_assert_int_ge(dup2(stderr_was, STDERR_FILENO), 0);
}

/* ---- setup and teardown ---- */

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/check_agent.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    zmq = zmq_ctx_new();
    endpoint[0] = '\0';
    bind_router();
    peer_known = false;
    n_beats = 0;
    time_cap_ms = LONG_CAP_MS;
    silence_ms = idle_ms = 0;
    welcome_sent = false;
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
                                 .reserve = true,
                                 .silence_warning_ms = silence_ms,
                                 .runner_idle_timeout_ms = idle_ms};
    return mf_agent_new(&o, why, why_cap, &agent);
}

static void start_agent(const char *spec)
{
    char why[256] = "";
    ck_assert_msg(start(spec, NULL, why, sizeof(why)) == 0, "%s", why);
}

/* Receives one message from the router without blocking. Returns false if no message is waiting. */
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

/* Runs one iteration of the agent, then waits for an event or until the time `until`. */
static void pump(int64_t until)
{
    zmq_pollitem_t items[MF_AGENT_POLLITEMS + 1], own[MF_AGENT_POLLITEMS];
    int n = 0, code;
    mf_agent_run_once(agent);
    if (router)
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

/* Returns the next message of the worker, or NULL on timeout. Skips BEATs, and a HELLO that was sent before
 * WELCOME arrived. */
static cJSON *next_message(enum mf_message *ret_type, int64_t within_ms)
{
    int64_t until = mf_now_ms() + within_ms;
    while (mf_now_ms() < until) {
        cJSON *m = NULL;
        while (receive(ret_type, &m)) {
            bool again = welcome_sent && *ret_type == MF_MESSAGE_HELLO;
            n_beats += *ret_type == MF_MESSAGE_BEAT;
            if (*ret_type != MF_MESSAGE_BEAT && !again) {
                welcome_sent = false;
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
    ck_assert_msg(m != NULL, "no %s received within %d ms", mf_message_name(type), DEADLINE);
    _cleanup_(mf_freep) char *text = mf_json_print(m);
    ck_assert_msg(got == type, "received %s, expected %s: %s", mf_message_name(got), mf_message_name(type),
                  text);
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
    welcome_sent |= type == MF_MESSAGE_WELCOME;
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

/* Prints a probe unit of n simulated steps. The first step has id 1. */
static void probe(char *text, size_t cap, int unit, const char *const *names, int n)
{
    int at = snprintf(text, cap,
                      "{\"unit\":%d,\"attempt\":1,\"epoch\":3,\"kind\":\"probe\",\"shape\":\"" SHAPE
                      "\",\"options\":{\"seed\":1,\"time_cap_ms\":%d},\"steps\":[",
                      unit, time_cap_ms);
    for (int i = 0; i < n; i++)
        at +=
            snprintf(text + at, cap - (size_t)at,
                     "%s{\"id\":%d,\"name\":\"%s\",\"family\":\"sim\",\"stage\":\"move\",\"covers\":\"sort\","
                     "\"block_m\":%s,\"ksplit\":0,\"needs\":[\"topk/index/none/token\"],"
                     "\"gives\":[\"sorted/index/none/sorted.%s\"],"
                     "\"workspace\":0,\"flops\":0,\"bytes\":1000,\"reorder_tolerance\":0}",
                     i ? "," : "", i + 1, names[i], strrchr(names[i], 'm') + 1, strrchr(names[i], 'm') + 1);
    ck_assert_int_lt(at, (int)cap - 4);
    (void)snprintf(text + at, cap - (size_t)at, "]}");
}

static const char *const five[] = {"sim_sort_m16", "sim_sort_m32", "sim_sort_m64", "sim_sort_m128",
                                   "sim_sort_m256"};

static void give_probe(int unit, const char *const *names, int n)
{
    char text[4096];
    probe(text, sizeof(text), unit, names, n);
    tell(MF_MESSAGE_UNIT, text);
}
