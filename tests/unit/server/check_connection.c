/* Deadlines of HTTP connections, and room for new clients, over raw sockets. */
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"

#include "common/base/clock.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LONG_MS  3600000 /* longer than any test */
#define DRIP_MS  20
#define LIMIT_MS 20000

static const struct mf_http_options patient = {
    .idle_s = LONG_MS / 1000, .header_ms = LONG_MS, .body_ms = LONG_MS, .spare_ms = LONG_MS};

/* Clients that never fall silent. Each row: what they send first, the piece that they repeat, and which
 * deadline is short. */
static const struct {
    const char *first, *piece;
    bool headers;
} drips[] = {
    {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", "x", true},
    {"GET /", "x", true},
    {"", "\r\n", true},
    {"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", "X: x\r\n", true},
    {"POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\nContent-Length: "
     "1000\r\n\r\n",
     "x", false},
    {"POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\n"
     "Transfer-Encoding: chunked\r\n\r\n",
     "1\r\nx\r\n", false},
    /* the body of a refused request is read and discarded */
    {"POST /no/such/path HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", "x", false},
};

/* Sends the piece every DRIP_MS until the server closes the connection. */
static void drip(int fd, const char *piece)
{
    char answer[1024];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (int64_t end = mf_now_ms() + LIMIT_MS;;) {
        ck_assert_msg(mf_now_ms() < end, "the connection is still open");
        if (poll(&p, 1, DRIP_MS) > 0 && recv(fd, answer, sizeof(answer), 0) <= 0)
            return;
        if (send(fd, piece, strlen(piece), MSG_NOSIGNAL) < 0)
            return;
    }
}

MF_TEST(closes_dripping_clients, .rows = MF_ARRAY_LEN(drips))
{
    struct mf_http_options o = patient;
    if (drips[_i].headers)
        o.header_ms = 300;
    else
        o.body_ms = 300;
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.http = o});
    int fd = http_connect(http_harness_port(h));
    int64_t start = mf_now_ms();
    http_sends(fd, drips[_i].first);
    drip(fd, drips[_i].piece);
    ck_assert_int_ge(mf_now_ms() - start, 300);
    (void)close(fd);
    http_harness_stop(h);
}

/* A client that reads its response too slowly is cut off, too. */
MF_TEST(closes_clients_that_do_not_read)
{
    struct mf_http_options o = patient;
    o.body_ms = 300;
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.http = o, .fixture = true});
    int fd = http_connect(http_harness_port(h)), small = 2048;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    static const char request[] = "GET /page/app.js HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (int i = 0; i < 3000; i++) /* more responses than the socket's buffers hold */
        if (send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
    struct pollfd p = {.fd = fd, .events = 0}; /* POLLERR and POLLHUP only */
    ck_assert_int_eq(poll(&p, 1, LIMIT_MS), 1);
    (void)close(fd);
    http_harness_stop(h);
}

static int status_of_health(int fd)
{
    http_sends(fd, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct http_reply r = http_read(fd, 0);
    int status = r.status;
    http_reply_free(&r);
    return status;
}

/* Clients that send incomplete headers occupy all connections. New clients find room, and a client that was
 * answered before keeps its connection, although it is the oldest. */
MF_TEST(keeps_room_for_new_clients)
{
    enum { N = 64 };
    struct mf_http_options o = patient;
    int fds[N];
    o.connections = N;
    o.spare_ms = 100;
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.http = o});
    int first = http_connect(http_harness_port(h));
    ck_assert_int_eq(status_of_health(first), 200);
    for (int i = 0; i < N; i++) {
        fds[i] = http_connect(http_harness_port(h));
        http_sends(fds[i], "GET /healthz HTTP/1.1\r\nHost: loc");
    }
    for (int i = 0; i < 5; i++) {
        int late = http_connect(http_harness_port(h));
        ck_assert_int_eq(status_of_health(late), 200);
        (void)close(late);
    }
    ck_assert_int_eq(status_of_health(first), 200);
    (void)close(first);
    for (int i = 0; i < N; i++)
        (void)close(fds[i]);
    http_harness_stop(h);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
