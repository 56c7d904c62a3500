/* Fuzzes the HTTP API of a coordinator in this process with arbitrary bytes. No answer may have status 500,
 * every JSON answer must parse, and the next request must still be answered. A second coordinator requires
 * access tokens. It gets inputs with an Authorization or Cookie header, and inputs with the word TOKEN, which
 * is replaced by an admin token. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/notify.h"
#include "fuzz.h"
#include "server/farm/farm.h"
#include "server/http/http.h"
#include "server/http/reader.h"

#define ANSWER_TIMEOUT_MS  30000
#define SILENCE_MS         60 /* time to wait for an answer; an incomplete request gets no answer */
#define HEALTH_CHECK_EVERY 16 /* inputs between two health checks */
#define ANSWER_MAX         (4u << 20)

static struct coordinator {
    char folder[32], path[64], token_path[64], token[128];
    void *zmq;
    int stop_fd;
    pthread_t writer;
    struct mf_farm *farm;
    struct mf_readers *readers;
    struct mf_http *http;
} farms[2]; /* without and with access tokens */

static void *run_writer(void *coordinator)
{
    struct coordinator *c = coordinator;
    struct mf_notify no_manager = {.fd = -1};
    MF_MUST(mf_farm_run(c->farm, c->stop_fd, &no_manager) == 0);
    return NULL;
}

static void stop_one(struct coordinator *c)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    c->http = mf_http_stop(c->http, 2000);
    c->readers = mf_readers_stop(c->readers);
    MF_MUST(write(c->stop_fd, &(uint64_t){1}, sizeof(uint64_t)) == sizeof(uint64_t));
    (void)pthread_join(c->writer, NULL);
    c->farm = mf_farm_free(c->farm);
    (void)zmq_ctx_term(c->zmq);
    (void)close(c->stop_fd);
    for (size_t i = 0; i < MF_ARRAY_LEN(ends); i++) {
        char file[80];
        (void)snprintf(file, sizeof(file), "%s%s", c->path, ends[i]);
        (void)unlink(file);
    }
    (void)unlink(c->token_path);
    (void)rmdir(c->folder);
}

/* Blocks or unblocks SIGALRM. It must reach the thread that runs inputs, so it is blocked while a coordinator
 * starts or stops: threads that start then inherit the blocked signal. */
static void mask_alarm(int how)
{
    sigset_t alarm;
    (void)sigemptyset(&alarm);
    (void)sigaddset(&alarm, SIGALRM);
    MF_MUST(pthread_sigmask(how, &alarm, NULL) == 0);
}

static void stop(void)
{
    mask_alarm(SIG_BLOCK);
    stop_one(&farms[0]);
    stop_one(&farms[1]);
}

static void read_token(struct coordinator *c)
{
    FILE *f = fopen(c->token_path, "re");
    MF_MUST(f && fgets(c->token, sizeof(c->token), f) && fclose(f) == 0);
    c->token[strcspn(c->token, "\n")] = '\0';
}

static void start(struct coordinator *c, bool tokens)
{
    struct mf_farm_options options = MF_FARM_OPTIONS_INIT;
    char why[256];
    (void)snprintf(c->folder, sizeof(c->folder), "/tmp/moefarm-fuzz-XXXXXX");
    MF_MUST(mkdtemp(c->folder));
    (void)snprintf(c->path, sizeof(c->path), "%s/farm.db", c->folder);
    (void)snprintf(c->token_path, sizeof(c->token_path), "%s/admin.token", c->folder);
    options.path = c->path;
    options.first_token = tokens ? c->token_path : NULL;
    options.endpoint = "tcp://127.0.0.1:*";
    c->zmq = zmq_ctx_new();
    c->stop_fd = eventfd(0, EFD_CLOEXEC);
    MF_MUST(mf_farm_new(c->zmq, &options, &c->farm, why, sizeof(why)) == 0);
    MF_MUST(pthread_create(&c->writer, NULL, run_writer, c) == 0);
    MF_MUST(mf_readers_start(c->zmq, c->path, 1, &c->readers) == 0);
    const struct mf_http_options http = {
        .zmq = c->zmq, .address = "127.0.0.1", .tokens = tokens ? c->path : NULL, .rate = 100000};
    MF_MUST(mf_http_start(&http, &c->http, why, sizeof(why)) == 0);
    if (tokens)
        read_token(c);
}

/* Restarts after EINTR, because libFuzzer's alarm fires after each half of its timeout. */
static bool wait_for(int fd, short events, int ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (int64_t until = mf_now_ms() + ms; ms >= 0; ms = (int)(until - mf_now_ms())) {
        int r = poll(&p, 1, ms);
        if (r >= 0)
            return r == 1;
        MF_MUST(errno == EINTR);
    }
    return false;
}

/* Rotates the source address, because wrong tokens are rate-limited per address. */
static int connect_to(int port)
{
    static unsigned n;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + n++ % 250)};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MF_MUST(fd >= 0 && bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
        /* an interrupted connect completes in the background */
        int failed = 0;
        MF_MUST(errno == EINTR && wait_for(fd, POLLOUT, ANSWER_TIMEOUT_MS));
        MF_MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &(socklen_t){sizeof(failed)}) == 0 &&
                failed == 0);
    }
    return fd;
}

/* Returns true for a complete answer, or for the start of an event stream, which has no end. */
static bool is_whole(const char *text, size_t len)
{
    const char *body = memmem(text, len, "\r\n\r\n", 4), *length;
    if (!body)
        return false;
    body += 4;
    if (memmem(text, (size_t)(body - text), "text/event-stream", 17))
        return true;
    length = memmem(text, (size_t)(body - text), "Content-Length: ", 16);
    return length && len - (size_t)(body - text) >= strtoul(length + 16, NULL, 10);
}

/* Receives the answer to the first request, if the input holds a complete request. */
static size_t answer(int fd, int silence_ms, char *buf, size_t cap)
{
    size_t len = 0;
    while (len < cap && !is_whole(buf, len)) {
        ssize_t n = wait_for(fd, POLLIN, silence_ms) ? recv(fd, buf + len, cap - 1 - len, 0) : 0;
        if (n <= 0)
            break;
        len += (size_t)n;
        buf[len] = '\0';
    }
    return len;
}

static void check_health(const struct coordinator *c, char *room)
{
    static const char ask[] = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    int fd = connect_to(mf_http_port(c->http));
    MF_MUST(send(fd, ask, strlen(ask), MSG_NOSIGNAL) == (ssize_t)strlen(ask));
    size_t len = answer(fd, ANSWER_TIMEOUT_MS, room, ANSWER_MAX);
    MF_MUST(len > 12 && memcmp(room + 9, "200", 3) == 0);
    (void)close(fd);
}

static void check_answer(const char *text, size_t len)
{
    const char *body = memmem(text, len, "\r\n\r\n", 4);
    if (len == 0)
        return;
    MF_MUST(len > 12 && memcmp(text, "HTTP/1.", 7) == 0 && body);
    MF_MUST(memcmp(text + 9, "500", 3) != 0);
    body += 4;
    size_t body_len = (size_t)(text + len - body), head_len = (size_t)(body - text);
    /* Checks only a single JSON answer that has a body; an answer to HEAD has no body. */
    if (!memmem(text, head_len, "json\r\n", 6) || memmem(body, body_len, "HTTP/1.", 7) || body_len == 0)
        return;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(body, body_len, body_len);
    MF_MUST(json);
}

/* Sends the bytes. Stops early if the peer closes the connection. */
static void send_bytes(int fd, const void *data, size_t size)
{
    const uint8_t *at = data;
    for (ssize_t n; size > 0 && (n = send(fd, at, size, MSG_NOSIGNAL)) > 0; size -= (size_t)n)
        at += n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char room[ANSWER_MAX];
    static unsigned n_asked;
    if (n_asked == 0) {
        mask_alarm(SIG_BLOCK);
        start(&farms[0], false);
        start(&farms[1], true);
        mask_alarm(SIG_UNBLOCK);
        (void)atexit(stop);
    }
    const struct coordinator *c =
        &farms[memmem(data, size, "TOKEN", 5) || memmem(data, size, "Authoriz", 8) ||
               memmem(data, size, "Cookie", 6)];
    int fd = connect_to(mf_http_port(c->http));
    for (const uint8_t *word; (word = memmem(data, size, "TOKEN", 5)); data = word + 5) {
        send_bytes(fd, data, (size_t)(word - data));
        send_bytes(fd, c->token, strlen(c->token));
        size -= (size_t)(word - data) + 5;
    }
    send_bytes(fd, data, size);
    check_answer(room, answer(fd, SILENCE_MS, room, sizeof(room)));
    (void)close(fd);
    if (++n_asked % HEALTH_CHECK_EVERY == 0)
        check_health(c, room);
    return 0;
}
