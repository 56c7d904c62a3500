/* The tests' own HTTP client: its results do not depend on how the network splits the data. */
#include "support/farm/http_client.h"
#include "support/mf_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

static const char body[] = "id: 40\n\ndata: {\"i\":8000,\"filler\":\"0000\"}\n\n";

/* Returns a socket from which the text can be read. *other is its peer, which can send more. */
static int socket_with(const char *text, size_t len, int *other)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    http_send(fds[1], text, len);
    *other = fds[1];
    return fds[0];
}

/* Prints the body as two chunks, split at byte `split_at`, without the final chunk. */
static int two_chunks(char *text, size_t cap, size_t split_at)
{
    return snprintf(text, cap, HEAD "%zx\r\n%.*s\r\n%zX\r\n%s\r\n", split_at, (int)split_at, body,
                    strlen(body) - split_at, body + split_at);
}

/* http_stream_until finds the text for every split position, even if the text is in two chunks. */
MF_TEST(test_split_chunks)
{
    char text[512];
    int other;
    for (size_t split_at = 1; split_at < strlen(body); split_at++) {
        int fd = socket_with(text, (size_t)two_chunks(text, sizeof(text), split_at), &other);
        struct http_stream *s = http_stream_open(fd);
        ck_assert_int_eq(http_stream_head(s)->status, 200);
        char *got = http_stream_until(s, "{\"i\":8000,");
        got = realloc(got, strlen(got) + sizeof(body));
        for (size_t have = strlen(got); have < strlen(body); have = strlen(got)) {
            char *rest = http_stream_until(s, body + have);
            strcat(got, rest);
            free(rest);
        }
        ck_assert_str_eq(got, body);
        free(got);
        http_send(other, "0\r\n\r\n", 5);
        ck_assert(http_stream_end(s));
        http_stream_close(s);
        (void)close(other);
    }
}

/* The stream arrives byte by byte. A stream that ends before its final chunk is incomplete. */
MF_TEST(test_single_bytes)
{
    char text[512];
    int other;
    int n = two_chunks(text, sizeof(text), 13);
    for (int last = 0; last < 2; last++) {
        int fd = socket_with(text, 1, &other);
        for (int i = 1; i < n; i++)
            http_send(other, text + i, 1);
        if (last)
            http_sends(other, "0\r\n\r\n");
        (void)shutdown(other, SHUT_WR);
        struct http_stream *s = http_stream_open(fd);
        ck_assert_int_eq(http_stream_end(s), last);
        http_stream_close(s);
        (void)close(other);
    }
}

static const struct {
    const char *answer;
    int head_only, status;
    const char *body; /* NULL: no body */
} answers[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n", 0, 200, "ok\n"},
    {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", 1, 200, ""},
    {"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", 0, 304, ""},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}", 0, 201, "{}"},
    {HEAD "2\r\no0\r\n2\r\n\r\n\r\n0\r\n\r\n", 0, 200, "o0\r\n"},
    {HEAD "a\r\n0123456789\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n", 0, 200, "01234567890123456789abcdef"},
    {"HTTP/1.1 200 OK\r\nContent-", 0, 0, NULL},
    {"", 0, 0, NULL},
};

MF_TEST(test_answer, .rows = MF_ARRAY_LEN(answers))
{
    int other, fd = socket_with(answers[_i].answer, strlen(answers[_i].answer), &other);
    (void)shutdown(other, SHUT_WR);
    struct http_reply r = http_read(fd, answers[_i].head_only);
    ck_assert_int_eq(r.status, answers[_i].status);
    ck_assert_int_eq(r.body != NULL, answers[_i].body != NULL);
    if (r.body) {
        ck_assert_str_eq(r.body, answers[_i].body);
        ck_assert_uint_eq(r.len, strlen(answers[_i].body));
    }
    http_reply_free(&r);
    (void)close(fd);
    (void)close(other);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
