/* Measures the memory of a real moefarmd while peers send as much as they can: an endless message, a huge
 * message of a peer that has only an enrolment token, the longest messages on many connections, and waves of
 * connections. Each attack must end with closed connections, and workers must still be served. */
#include "support/mf_check.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/farm/fake_worker.h"
#include "support/farm/farm_process.h"
#include "support/farm/http_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#define BEAT_MS      20000 /* long enough that the coordinator does not lose workers on a busy machine */
#define LIMIT_MS     60000
#define GROWTH_MAX   (256l << 10) /* KiB above the idle coordinator */
#define MIB          (1u << 20)
#define N_CONNECTED  20
#define N_MESSAGES   16 /* per connection */
#define TOKEN_FRAMES 1000
#define N_PER_WAVE   400
#define N_WAVES      6

static struct farm_process process;
static void *zmq;
static uint8_t zeros[8 * MIB];

static void start(const char *const *more)
{
    process = (struct farm_process){.more = more};
    zmq = zmq_ctx_new();
    farm_process_start(&process, BEAT_MS);
}

static void stop(void)
{
    (void)farm_process_kill(&process, SIGKILL);
    farm_process_remove(&process);
}

/* Returns a value of /proc/PID/status in KiB. */
static long memory_kib(const char *name)
{
    char path[64], line[256];
    long kib = 0;
    mf_format(path, sizeof(path), "/proc/%ld/status", (long)process.pid);
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f)) {
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtol(line + strlen(name) + 1, NULL, 10);
    }
    ck_assert_int_gt(kib, 0);
    return kib;
}

static void check_growth(const char *attack, long idle_kib)
{
    long more = memory_kib("VmHWM") - idle_kib;
    printf("%s: %ld KiB above idle\n", attack, more);
#ifndef __SANITIZE_ADDRESS__ /* AddressSanitizer keeps freed memory */
    ck_assert_msg(more < GROWTH_MAX, "%s: the coordinator grew by %ld KiB", attack, more);
#endif
}

/* A worker without keys joins, so the attack did not stop the hub. */
static void check_served(const char *name)
{
    struct fake_worker w;
    ck_assert_int_eq(fake_worker_open(&w, zmq, process.hub, name), 0);
    ck_assert_int_eq(fake_worker_greet(&w, "[]", LIMIT_MS), 0);
    fake_worker_close(&w);
}

/* ---- an endless message on a plain TCP connection ---- */

static const uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
static const uint8_t ready[] = "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06"
                               "DEALER";

/* The hub closes a connection at once while it has too many. */
static int open_peer(void)
{
    int fd = http_connect(process.hub);
    ck_assert_int_ge(fd, 0);
    (void)!send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL);
    (void)!send(fd, ready, sizeof(ready) - 1, MSG_NOSIGNAL);
    return fd;
}

/* Sends frames that all announce another frame, until the hub closes the connection. Returns the number of
 * bytes sent, at most `most`. */
static size_t send_endless(const uint8_t *frames, size_t len, size_t most)
{
    int fd = open_peer();
    size_t sent = 0;
    while (sent < most) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        size_t at = sent % len;
        ck_assert_msg(poll(&p, 1, LIMIT_MS) == 1, "the hub neither reads nor closes the connection");
        ssize_t n = send(fd, frames + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN)
            break;
        sent += n > 0 ? (size_t)n : 0;
    }
    (void)close(fd);
    return sent;
}

static const struct {
    const char *name;
    size_t frame; /* body of each frame */
    size_t most;  /* bytes to send if the hub does not close the connection */
} endless[] = {
    {"an endless message of empty frames", 0, 32u << 20},
    {"an endless message of long frames", 1u << 20, 1u << 30},
};

MF_TEST(endless_message, .rows = MF_ARRAY_LEN(endless))
{
    size_t frame = endless[_i].frame, head = frame < 256 ? 2 : 9, len = 0;
    uint8_t *frames = calloc(2, MIB + 64);
    ck_assert_ptr_nonnull(frames);
    for (; len + head + frame <= 2 * MIB; len += head + frame) {
        frames[len] = frame < 256 ? 1 : 3; /* more frames follow; LONG */
        for (size_t i = 0; i + 1 < head; i++)
            frames[len + head - 1 - i] = (uint8_t)(frame >> (8 * i));
    }
    start(NULL);
    check_served("before");
    long idle_kib = memory_kib("VmRSS");
    size_t sent = send_endless(frames, len, endless[_i].most);
    check_growth(endless[_i].name, idle_kib);
    ck_assert_msg(sent < endless[_i].most, "the hub took %zu bytes of one message", sent);
    check_served("after");
    free(frames);
    (void)zmq_ctx_term(zmq);
}

/* ---- waves of plain TCP connections ---- */

/* What each connection sends after READY: `head`, then `fill` in turns until `size` bytes are sent. */
static const struct {
    const char *name;
    size_t n_head, n_fill, size;
    const char *head, *fill;
    bool closes; /* the hub closes the connections; otherwise the peers do */
} waves[] = {
    {"waves of endless empty frames", 0, 2, 400000, "", "\1\0", true},
    {"waves of unfinished frames", 9, 1, 480000, "\2\0\0\0\0\0\x07\xa1\x20", "x", false},
    {"waves of unfinished messages", 9, 1, 480009, "\3\0\0\0\0\0\x07\x53\x00", "x", false},
    {"waves of short messages", 0, 2, 400000, "", "\0\0", false},
};

static void fill_wave(int row, uint8_t *bytes)
{
    for (size_t i = 0; i < waves[row].size; i++)
        bytes[i] =
            (uint8_t)(i < waves[row].n_head ? waves[row].head[i] : waves[row].fill[i % waves[row].n_fill]);
}

/* Waits until libzmq has answered the handshake, so that it takes the bytes that follow. */
static void await_ready(int fd)
{
    uint8_t bytes[sizeof(greeting) + 1];
    (void)!recv(fd, bytes, sizeof(bytes), MSG_WAITALL);
}

static void await_close(int fd)
{
    uint8_t bytes[256];
    while (recv(fd, bytes, sizeof(bytes), 0) > 0)
        ;
    ck_assert_msg(errno != EAGAIN, "the hub did not close the connection");
}

MF_TEST(connection_waves, .rows = MF_ARRAY_LEN(waves))
{
    static uint8_t bytes[MIB];
    int fds[N_PER_WAVE];
    start(NULL);
    check_served("before");
    long idle_kib = memory_kib("VmRSS");
    fill_wave(_i, bytes);
    for (int wave = 0; wave < N_WAVES; wave++) {
        for (int k = 0; k < N_PER_WAVE; k++)
            fds[k] = open_peer();
        for (int k = 0; k < N_PER_WAVE; k++)
            await_ready(fds[k]);
        for (int k = 0; k < N_PER_WAVE; k++)
            (void)!send(fds[k], bytes, waves[_i].size, MSG_NOSIGNAL | MSG_DONTWAIT);
        for (int k = 0; k < N_PER_WAVE; k++) {
            errno = 0;
            if (waves[_i].closes)
                await_close(fds[k]);
            (void)close(fds[k]);
        }
    }
    check_served("after");
    check_growth(waves[_i].name, idle_kib);
    (void)zmq_ctx_term(zmq);
}

/* ---- ZeroMQ peers ---- */

static void *watch_disconnects(void *socket, const char *endpoint)
{
    void *monitor = zmq_socket(zmq, ZMQ_PAIR);
    int wait_ms = LIMIT_MS, none = 0;
    ck_assert_int_eq(zmq_socket_monitor(socket, endpoint, ZMQ_EVENT_DISCONNECTED), 0);
    ck_assert_int_eq(zmq_connect(monitor, endpoint), 0);
    (void)zmq_setsockopt(monitor, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    (void)zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof(none));
    return monitor;
}

static void await_disconnect(void *socket, void *monitor)
{
    uint8_t event[6];
    ck_assert_msg(zmq_recv(monitor, event, sizeof(event), 0) == sizeof(event),
                  "the hub did not close the connection");
    (void)zmq_socket_monitor(socket, NULL, 0);
    (void)zmq_close(monitor);
}

/* Queues a frame without copying it, so that this process stays small. */
static void send_zeros(void *socket, size_t len, int flags)
{
    zmq_msg_t frame;
    ck_assert_int_eq(zmq_msg_init_data(&frame, zeros, len, NULL, NULL), 0);
    ck_assert_int_ge(zmq_msg_send(&frame, socket, flags), 0);
}

static void make_token(struct fake_keys *ret)
{
    int status = 0;
    const char *text = "";
    uint8_t secret[MF_KEY_SIZE];
    _cleanup_(mf_freep) char *body =
        farm_process_http(&process, "POST", "/api/v1/tokens?role=worker&name=t", "text/csv", "", &status);
    ck_assert_int_eq(status, 201);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(body, strlen(body), MIB);
    ck_assert_int_eq(mf_json_text(json, "token", &text), 0);
    *ret = (struct fake_keys){0};
    ck_assert_int_eq(mf_enrol_token_parse(text, secret, ret->coordinator), 0);
    ck_assert_int_eq(mf_key_pair_from_secret(secret, &ret->own), 0);
}

/* The holder of an enrolment token sends one message of 1,000 frames of 1 MiB. */
MF_TEST(token_holder)
{
    static const char *const keyed[] = {"--keys", NULL};
    struct fake_keys keys;
    struct fake_worker w;
    start(keyed);
    make_token(&keys);
    long idle_kib = memory_kib("VmRSS");
    ck_assert_int_eq(fake_worker_open_keys(&w, zmq, process.hub, "token", &keys), 0);
    void *monitor = watch_disconnects(w.socket, "inproc://token");
    for (int i = 0; i < TOKEN_FRAMES; i++)
        send_zeros(w.socket, MIB, i + 1 < TOKEN_FRAMES ? ZMQ_SNDMORE : 0);
    await_disconnect(w.socket, monitor);
    check_growth("a message of an enrolment token", idle_kib);
    fake_worker_close(&w);
    make_token(&keys);
    ck_assert_int_eq(fake_worker_open_keys(&w, zmq, process.hub, "other", &keys), 0);
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_ENROL, "{}"), 0);
    _cleanup_(cJSON_Deletep) cJSON *answer = fake_worker_await(&w, MF_MESSAGE_REFUSE, LIMIT_MS);
    ck_assert_msg(answer != NULL, "the hub does not answer any more");
    fake_worker_close(&w);
    (void)zmq_ctx_term(zmq);
}

/* Twenty workers that have joined send long messages faster than the coordinator can parse them. fill: the
 * body, repeated. A body of small JSON values takes many times its size after parsing. */
static const struct {
    const char *name;
    size_t len;
    const char *fill;
    bool too_long; /* the hub closes the connections */
} longest[] = {
    {"20 connections with messages of 8 MiB", 8 * MIB, "\0\0", true},
    {"20 connections with messages of 2 MiB", 2 * MIB, "  ", false},
    {"20 connections with 2 MiB of small values", 2 * MIB, "1,", false},
};

MF_TEST(long_messages, .rows = MF_ARRAY_LEN(longest))
{
    struct fake_worker workers[N_CONNECTED];
    void *monitors[N_CONNECTED];
    uint8_t header[MF_WIRE_HEADER_SIZE];
    start(NULL);
    check_served("before");
    long idle_kib = memory_kib("VmRSS");
    for (int k = 0; k < N_CONNECTED; k++) {
        char text[32];
        mf_format(text, sizeof(text), "w%d", k);
        ck_assert_int_eq(fake_worker_open(&workers[k], zmq, process.hub, text), 0);
        ck_assert_int_eq(fake_worker_greet(&workers[k], "[]", LIMIT_MS), 0);
        mf_format(text, sizeof(text), "inproc://w%d", k);
        monitors[k] = watch_disconnects(workers[k].socket, text);
    }
    for (size_t i = 0; i < sizeof(zeros); i++)
        zeros[i] = (uint8_t)longest[_i].fill[i % 2];
    zeros[0] = '[';
    mf_wire_encode(&(struct mf_wire_header){.type = MF_MESSAGE_BEAT}, header);
    for (int i = 0; i < N_MESSAGES; i++) {
        for (int k = 0; k < N_CONNECTED; k++) {
            ck_assert_int_ge(zmq_send(workers[k].socket, header, sizeof(header), ZMQ_SNDMORE), 0);
            send_zeros(workers[k].socket, longest[_i].len, 0);
        }
    }
    for (int k = 0; k < N_CONNECTED; k++) {
        if (longest[_i].too_long)
            await_disconnect(workers[k].socket, monitors[k]);
        else
            cJSON_Delete(fake_worker_await(&workers[k], MF_MESSAGE_REFUSE, LIMIT_MS));
    }
    check_served("after");
    check_growth(longest[_i].name, idle_kib);
    /* The test process ends without closing the sockets, which still have unsent messages. */
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300, .teardown = stop});
}
