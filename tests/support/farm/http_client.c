#include "support/farm/http_client.h"

#include "common/base/cleanup.h"
#include "common/base/clock.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* Longer than the heartbeat interval of a stream, so that an idle stream causes no timeout. */
#define STREAM_MS 40000

int http_connect(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((unsigned short)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval timeout = {20, 0};
    ck_assert_int_ge(fd, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

void http_send(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n < 0)
            return; /* the server may answer and close the connection before it has read everything */
        data += n;
        len -= (size_t)n;
    }
}

void http_sends(int fd, const char *text)
{
    http_send(fd, text, strlen(text));
}

struct bytes {
    char *data;
    size_t len, cap;
};

static void add(struct bytes *b, const char *data, size_t n)
{
    if (b->len + n + 1 > b->cap) {
        b->cap = 2 * (b->len + n + 1);
        b->data = realloc(b->data, b->cap);
        ck_assert_ptr_nonnull(b->data);
    }
    memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
}

/* Reads more bytes. Returns 0 at the end of the connection. */
static int read_more(int fd, struct bytes *b)
{
    char chunk[65536];
    ssize_t n;
    do
        n = recv(fd, chunk, sizeof(chunk), 0);
    while (n < 0 && errno == EINTR); /* a process that continues after SIGSTOP gets EINTR */
    if (n <= 0) {
        ck_assert_msg(n == 0 || errno == ECONNRESET, "no data for 20 s: %s", strerror(errno));
        return 0;
    }
    add(b, chunk, (size_t)n);
    return 1;
}

const char *http_header(const struct http_reply *r, const char *name)
{
    static char value[512];
    size_t len = strlen(name);
    value[0] = 0;
    for (const char *line = r->head; line && (line = strstr(line, "\r\n"));) {
        line += 2;
        if (strncasecmp(line, name, len) == 0 && line[len] == ':') {
            line += len + 1;
            line += strspn(line, " ");
            (void)snprintf(value, sizeof(value), "%.*s", (int)strcspn(line, "\r"), line);
            break;
        }
    }
    return value;
}

/* Decoder of a body, which may be chunked. */
struct coded {
    struct bytes raw;   /* received bytes; those before offset `at` are decoded */
    size_t at, left;    /* left: number of bytes left in the chunk, or in a body that is not chunked */
    bool chunked, seam; /* seam: true if `at` is between a chunk's data and the CRLF that follows it */
    bool ended;
};

/* Moves as much of `raw` as can be decoded to `body`. */
static void decode(struct coded *c, struct bytes *body)
{
    while (!c->ended) {
        size_t n = MF_MIN(c->left, c->raw.len - c->at);
        if (n > 0)
            add(body, c->raw.data + c->at, n);
        c->at += n;
        c->left -= n;
        if (c->left > 0)
            return;
        if (!c->chunked) {
            c->ended = true;
            return;
        }
        /* A chunk begins with its size. Before the size, all chunks but the first have the CRLF of the
         * previous chunk. */
        const char *line = c->raw.data + c->at + (c->seam ? 2 : 0), *end = c->raw.data + c->raw.len;
        const char *line_end = line < end ? memmem(line, (size_t)(end - line), "\r\n", 2) : NULL;
        c->left = line_end ? strtoul(line, NULL, 16) : 0;
        /* wait for the two CRLFs that end the body; trailers are not supported */
        if (!line_end || (c->left == 0 && end - line_end < 4))
            return;
        c->at = (size_t)(line_end + 2 - c->raw.data);
        c->seam = true;
        c->ended = c->left == 0;
    }
}

/* Reads the head of an answer. *c also receives the start of the body if it arrives with the head. The status
 * is 0 if the connection ended first. */
static struct http_reply read_head(int fd, struct coded *c)
{
    struct http_reply r = {0};
    *c = (struct coded){0};
    do { /* repeats if the head is the interim answer (100) to Expect */
        const char *end;
        while (!(end = c->raw.data ? strstr(c->raw.data + c->at, "\r\n\r\n") : NULL))
            if (!read_more(fd, &c->raw)) {
                http_reply_free(&r);
                return r;
            }
        free(r.head);
        r.head = strndup(c->raw.data + c->at, (size_t)(end + 4 - c->raw.data) - c->at);
        (void)sscanf(r.head, "HTTP/1.1 %d", &r.status);
        c->at = (size_t)(end + 4 - c->raw.data);
    } while (r.status == 100);
    /* Use each header before reading the next: http_header() returns a static buffer. */
    c->left = strtoul(http_header(&r, "Content-Length"), NULL, 10);
    c->chunked = strcasecmp(http_header(&r, "Transfer-Encoding"), "chunked") == 0;
    return r;
}

struct http_reply http_read(int fd, int head_only)
{
    struct coded c;
    struct http_reply r = read_head(fd, &c);
    if (r.status > 0) {
        struct bytes body = {NULL, 0, 0};
        c.ended = head_only || r.status == 304;
        for (decode(&c, &body); !c.ended && read_more(fd, &c.raw);)
            decode(&c, &body);
        add(&body, "", 0);
        r.body = body.data;
        r.len = body.len;
    }
    free(c.raw.data);
    return r;
}

struct http_reply http_call(int port, const char *method, const char *path, const char *headers,
                            const char *body, size_t len)
{
    char head[4096];
    int fd = http_connect(port);
    ck_assert_int_ge(fd, 0);
    (void)snprintf(head, sizeof(head), "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n%s",
                   method, path, port, headers);
    http_sends(fd, head);
    if (body) {
        (void)snprintf(head, sizeof(head), "Content-Length: %zu\r\n", len);
        http_sends(fd, head);
    }
    http_sends(fd, "\r\n");
    if (body)
        http_send(fd, body, len);
    struct http_reply r = http_read(fd, strcmp(method, "HEAD") == 0);
    (void)close(fd);
    return r;
}

struct http_reply http_get(int port, const char *path)
{
    return http_call(port, "GET", path, "", NULL, 0);
}

void http_reply_free(struct http_reply *r)
{
    free(r->head);
    free(r->body);
    *r = (struct http_reply){0};
}

struct http_stream {
    int fd;
    struct http_reply head;
    struct coded coded;
    struct bytes fresh; /* decoded data that the caller has not received yet */
};

struct http_stream *http_stream_open(int fd)
{
    struct http_stream *s = calloc(1, sizeof(*s));
    ck_assert_ptr_nonnull(s);
    s->fd = fd;
    s->head = read_head(fd, &s->coded);
    return s;
}

const struct http_reply *http_stream_head(const struct http_stream *s)
{
    return &s->head;
}

static int stream_more(struct http_stream *s)
{
    size_t had = s->fresh.len;
    for (decode(&s->coded, &s->fresh); !s->coded.ended && s->fresh.len == had;) {
        /* Drops decoded bytes, because an endless stream would fill the memory. */
        s->coded.raw.len -= s->coded.at;
        if (s->coded.raw.data)
            memmove(s->coded.raw.data, s->coded.raw.data + s->coded.at, s->coded.raw.len + 1);
        s->coded.at = 0;
        if (!read_more(s->fd, &s->coded.raw))
            return 0;
        decode(&s->coded, &s->fresh);
    }
    return s->fresh.len > had;
}

char *http_stream_until(struct http_stream *s, const char *text)
{
    int64_t until = mf_now_ms() + STREAM_MS;
    size_t from = 0, overlap = strlen(text) - 1;
    while (!s->fresh.data || !strstr(s->fresh.data + from, text)) {
        from = s->fresh.len > overlap ? s->fresh.len - overlap : 0;
        const char *tail = s->fresh.len > 200 ? s->fresh.data + s->fresh.len - 200 : s->fresh.data;
        ck_assert_msg(mf_now_ms() < until, "no \"%s\" within %d s; the stream ends with %s", text,
                      STREAM_MS / 1000, tail);
        ck_assert_msg(stream_more(s), "the stream ended before \"%s\": %s", text, tail ? tail : "");
    }
    char *all = s->fresh.data;
    s->fresh = (struct bytes){NULL, 0, 0};
    return all;
}

int http_stream_end(struct http_stream *s)
{
    while (stream_more(s))
        ;
    return s->coded.ended;
}

void http_stream_close(struct http_stream *s)
{
    (void)close(s->fd);
    http_reply_free(&s->head);
    free(s->coded.raw.data);
    free(s->fresh.data);
    free(s);
}
