#include "http_client.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

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
            return; /* the server may answer and close before it has read all */
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

/* 0: the end. */
static int read_more(int fd, struct bytes *b)
{
    char chunk[65536];
    ssize_t n;
    do
        n = recv(fd, chunk, sizeof(chunk), 0);
    while (n < 0 && errno == EINTR); /* a process that was stopped goes on */
    if (n <= 0) {
        ck_assert_msg(n == 0 || errno == ECONNRESET, "nothing came for 20 s: %s", strerror(errno));
        return 0;
    }
    if (b->len + (size_t)n + 1 > b->cap) {
        b->cap = 2 * (b->len + sizeof(chunk));
        b->data = realloc(b->data, b->cap);
        ck_assert_ptr_nonnull(b->data);
    }
    memcpy(b->data + b->len, chunk, (size_t)n);
    b->len += (size_t)n;
    b->data[b->len] = 0;
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

static void undo_chunks(struct http_reply *r)
{
    char *from = r->body, *to = r->body;
    for (;;) {
        char *end;
        size_t n = strtoul(from, &end, 16);
        if (n == 0 || strncmp(end, "\r\n", 2) != 0)
            break;
        memmove(to, end + 2, n);
        to += n;
        from = end + 2 + n + 2;
    }
    *to = 0;
    r->len = (size_t)(to - r->body);
}

struct http_reply http_read(int fd, int head_only)
{
    struct bytes b = {NULL, 0, 0};
    struct http_reply r = {0};
    char *end = NULL;
    while (!(end = b.data ? strstr(b.data, "\r\n\r\n") : NULL) && read_more(fd, &b))
        ;
    if (!end) {
        free(b.data);
        return r;
    }
    size_t head = (size_t)(end - b.data) + 4;
    r.head = strndup(b.data, head);
    (void)sscanf(r.head, "HTTP/1.1 %d", &r.status);
    if (r.status == 100) { /* the interim answer to Expect */
        memmove(b.data, b.data + head, b.len - head + 1);
        free(r.head);
        free(b.data);
        return http_read(fd, head_only);
    }
    /* One after the other: both come in the same static buffer. */
    size_t want = strtoul(http_header(&r, "Content-Length"), NULL, 10);
    int chunked = strcasecmp(http_header(&r, "Transfer-Encoding"), "chunked") == 0;
    if (head_only || r.status == 304)
        want = 0, chunked = 0;
    while (chunked ? !strstr(b.data + head, "0\r\n\r\n") : b.len - head < want)
        if (!read_more(fd, &b))
            break;
    r.len = b.len - head;
    r.body = malloc(r.len + 1);
    memcpy(r.body, b.data + head, r.len + 1);
    if (chunked)
        undo_chunks(&r);
    free(b.data);
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

char *http_read_until(int fd, const char *text)
{
    struct bytes b = {NULL, 0, 0};
    size_t from = 0, overlap = strlen(text) - 1;
    while (!b.data || !strstr(b.data + from, text)) {
        from = b.len > overlap ? b.len - overlap : 0;
        ck_assert_msg(read_more(fd, &b), "the stream ended before \"%s\": %s", text, b.data ? b.data : "");
    }
    return b.data;
}
