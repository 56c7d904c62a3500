/* A fake coordinator for tests of the command line. A thread answers HTTP requests from a table, with plain
 * or chunked bodies, and logs the requests. Each connection serves one request. */
#pragma once

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/sha256.h"
#include "common/base/text.h"

struct fake_answer {
    const char *request; /* "GET /path" with its query, or a pattern such as "GET /path*" */
    int status;
    const char *type; /* media type; NULL: application/json */
    const char *body;
    const char *headers; /* additional headers, each ended by \r\n; NULL for none */
    /* number of times that this answer is used before the next matching answer; 0: unlimited */
    int times;
    bool chunked;
    bool cut; /* close the connection in the middle of the body */
    /* Leave out the last line and Content-Length, as a proxy without Content-Length does that loses its
     * connection */
    bool cut_at_row;
    bool no_etag; /* leave out the ETag, which other text/csv answers have like moefarmd's */
};

#define FAKE_ANSWERS_MAX 24

/* The caller zeroes this structure before its first use. */
struct fake_http {
    bool is_running;
    int fd;
    char url[64];
    pthread_t thread;
    struct fake_answer answers[FAKE_ANSWERS_MAX];
    size_t n;
    int used[FAKE_ANSWERS_MAX];
    struct mf_buf log; /* received requests with headers and bodies; read it after fake_http_stop() */
};

static inline void fake_send(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t done = send(fd, data, n, MSG_NOSIGNAL);

        if (done <= 0)
            return;
        data += done;
        n -= (size_t)done;
    }
}

static inline void fake_send_head(int fd, const struct fake_answer *a)
{
    char head[512], hash[MF_SHA256_TEXT_MAX];

    (void)snprintf(head, sizeof(head), "HTTP/1.1 %d X\r\nContent-Type: %s\r\nConnection: close\r\n",
                   a->status, a->type ? a->type : "application/json");
    fake_send(fd, head, strlen(head));
    if (a->headers)
        fake_send(fd, a->headers, strlen(a->headers));
    if (a->no_etag || !a->type || strcmp(a->type, "text/csv") != 0)
        return;
    mf_sha256_print(a->body, strlen(a->body), hash);
    (void)snprintf(head, sizeof(head), "ETag: \"%s\"\r\n", hash);
    fake_send(fd, head, strlen(head));
}

/* Returns the length of the body without its last line. */
static inline size_t fake_rows_len(const char *body)
{
    size_t len = strlen(body) - 1;

    while (len > 0 && body[len - 1] != '\n')
        len--;
    return len;
}

static inline void fake_send_answer(int fd, const struct fake_answer *a)
{
    size_t len = strlen(a->body), half = a->cut ? len / 2 : len;
    char head[512];

    fake_send_head(fd, a);
    if (a->cut_at_row) {
        fake_send(fd, "\r\n", 2);
        fake_send(fd, a->body, fake_rows_len(a->body));
        return;
    }
    if (!a->chunked) {
        (void)snprintf(head, sizeof(head), "Content-Length: %zu\r\n\r\n", len);
        fake_send(fd, head, strlen(head));
        fake_send(fd, a->body, half);
        return;
    }
    fake_send(fd, "Transfer-Encoding: chunked\r\n\r\n", 30);
    /* Chunks of 7 bytes split lines and numbers of the body. */
    for (size_t at = 0; at < half; at += 7) {
        size_t n = half - at < 7 ? half - at : 7;

        (void)snprintf(head, sizeof(head), "%zx\r\n", n);
        fake_send(fd, head, strlen(head));
        fake_send(fd, a->body + at, n);
        fake_send(fd, "\r\n", 2);
    }
    if (!a->cut)
        fake_send(fd, "0\r\n\r\n", 5);
}

/* Reads one request into r: its headers and its body of Content-Length bytes. */
static inline bool fake_read(int fd, struct mf_buf *r)
{
    char piece[4096];
    long body = 0;
    char *end = NULL;

    while (!end || r->len < (size_t)(end - r->data) + 4 + (size_t)body) {
        ssize_t n = recv(fd, piece, sizeof(piece), 0);
        char *length;

        if (n <= 0 || mf_buf_add(r, piece, (size_t)n) < 0)
            return false;
        end = strstr(r->data, "\r\n\r\n");
        length = strcasestr(r->data, "\r\nContent-Length: ");
        if (end && length && length < end)
            body = strtol(length + 18, NULL, 10);
    }
    return true;
}

static inline void fake_answer_one(struct fake_http *f, int fd)
{
    static const struct fake_answer missing = {
        .status = 404, .body = "{\"title\":\"not in the test's table\",\"status\":404}"};
    const struct fake_answer *answer = &missing;
    char line[2048] = "";
    struct mf_buf r;

    mf_buf_init(&r, 1u << 20);
    if (fake_read(fd, &r)) {
        char *end = strstr(r.data, " HTTP/1.");

        (void)snprintf(line, sizeof(line), "%.*s", (int)(end ? end - r.data : 0), r.data);
        for (size_t i = 0; i < f->n; i++) {
            if (!mf_glob(f->answers[i].request, line) ||
                (f->answers[i].times && f->used[i] >= f->answers[i].times))
                continue;
            f->used[i]++;
            answer = &f->answers[i];
            break;
        }
        (void)mf_buf_add(&f->log, r.data, r.len);
        (void)mf_buf_adds(&f->log, "\n\n");
        fake_send_answer(fd, answer);
    }
    mf_buf_release(&r);
}

static inline void *fake_main(void *context)
{
    struct fake_http *f = context;

    for (;;) {
        int fd = accept(f->fd, NULL, NULL);

        if (fd < 0)
            return NULL;
        fake_answer_one(f, fd);
        close(fd);
    }
}

/* Stops the server. f->log stays readable until fake_http_release. */
static inline void fake_http_stop(struct fake_http *f)
{
    if (!f->is_running)
        return;
    (void)shutdown(f->fd, SHUT_RDWR);
    pthread_join(f->thread, NULL);
    close(f->fd);
    f->is_running = false;
}

static inline void fake_http_release(struct fake_http *f)
{
    fake_http_stop(f);
    mf_buf_release(&f->log);
}

/* Starts the server. If f already runs, replaces its answers. */
static inline void fake_http_start(struct fake_http *f, const struct fake_answer *answers, size_t n)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);

    fake_http_release(f);
    memset(f, 0, sizeof(*f));
    ck_assert_uint_le(n, FAKE_ANSWERS_MAX);
    memcpy(f->answers, answers, n * sizeof(*answers));
    f->n = n;
    mf_buf_init(&f->log, 8u << 20);
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(f->fd, 0);
    ck_assert_int_eq(bind(f->fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(f->fd, 16), 0);
    ck_assert_int_eq(getsockname(f->fd, (struct sockaddr *)&address, &len), 0);
    (void)snprintf(f->url, sizeof(f->url), "http://127.0.0.1:%d", ntohs(address.sin_port));
    ck_assert_int_eq(pthread_create(&f->thread, NULL, fake_main, f), 0);
    f->is_running = true;
}
