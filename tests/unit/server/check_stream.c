/* Event streams over real sockets: tests live streams, resumed streams, streams of one batch, slow clients,
 * and too many streams. */
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/clock.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Opens a stream. receive_bytes is the size of the socket's receive buffer; 0: the system's default. */
static struct http_stream *open_sized(int port, const char *path, const char *headers, int receive_bytes)
{
    char text[512];
    int fd = http_connect(port);
    ck_assert_int_ge(fd, 0);
    if (receive_bytes > 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    (void)snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, headers);
    http_sends(fd, text);
    return http_stream_open(fd);
}

static struct http_stream *open_stream(int port, const char *path, const char *headers)
{
    return open_sized(port, path, headers, 0);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

MF_TEST(test_live)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_stream *stream = open_stream(http_harness_port(h), "/api/v1/events", "");
    ck_assert_str_eq(http_header(http_stream_head(stream), "Content-Type"), "text/event-stream");
    char *text = http_stream_until(stream, "id: 40\n"); /* the stream begins at the fixture's latest event */
    ck_assert_ptr_nonnull(strstr(text, "retry: 1000"));
    ck_assert_int_eq(count(text, "event: "), 0);
    free(text);
    http_harness_event(h, 2, "task", "{\"measured\":1}", NULL);
    http_harness_event(h, 0, "worker", "{\"worker\":1}", NULL);
    text = http_stream_until(stream, "{\"worker\":1}");
    ck_assert_ptr_nonnull(strstr(text, "id: 41\nevent: task\ndata: {\"measured\":1}\n\n"));
    ck_assert_ptr_nonnull(strstr(text, "id: 42\nevent: worker\n"));
    free(text);
    http_stream_close(stream);
    http_harness_stop(h);
}

static const struct {
    const char *path, *headers;
    const char *last; /* text of the last event */
    /* number of events up to the last; the fixture has 40 events, and the events with odd ids belong to batch
     * 2 */
    int n;
} resumes[] = {
    {"/api/v1/events", "Last-Event-ID: 30\r\n", "\"measured\":40", 10},
    {"/api/v1/events?last_event_id=0", "", "\"measured\":40", 40},
    {"/api/v1/events?last_event_id=0", "Last-Event-ID: 39\r\n", "\"measured\":40",
     1}, /* the header is used, because the browser sets it and it is newer than the query */
    {"/api/v1/batches/1/events?last_event_id=0", "", "\"measured\":40", 20},
    {"/api/v1/batches/2/events?last_event_id=36", "", "\"measured\":39", 2},
};

MF_TEST(test_resume, .rows = MF_ARRAY_LEN(resumes))
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_stream *stream = open_stream(http_harness_port(h), resumes[_i].path, resumes[_i].headers);
    char *text = http_stream_until(stream, resumes[_i].last);
    ck_assert_int_eq(count(text, "event: "), resumes[_i].n);
    free(text);
    http_stream_close(stream);
    http_harness_stop(h);
}

/* A stream of one batch contains no events of other batches. Events from the database and from the ring
 * buffer are joined without loss or repetition, even if events arrive while the database is read. */
MF_TEST(test_join)
{
    enum { N = 900 };
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    char body[64];
    struct http_stream *stream = NULL;
    for (int i = 1; i <= N; i++) {
        (void)snprintf(body, sizeof(body), "{\"i\":%d}", i);
        http_harness_event(h, i % 3 ? 1 : 2, "task", body, NULL);
        if (i == N / 2)
            stream = open_stream(http_harness_port(h), "/api/v1/batches/2/events?last_event_id=40", "");
    }
    char *text = http_stream_until(stream, "{\"i\":900}");
    ck_assert_int_eq(count(text, "event: task"), N / 3);
    const char *p = text;
    for (int i = 3; i <= N; i += 3) {
        (void)snprintf(body, sizeof(body), "{\"i\":%d}", i);
        ck_assert_ptr_nonnull(p = strstr(p, body));
    }
    free(text);
    http_stream_close(stream);
    http_harness_stop(h);
}

/* A client that does not read costs one chunk of memory. When the client reads again, it receives the missed
 * events from the database. */
MF_TEST(test_slow_client)
{
    enum { N = 8000, RECEIVE_BYTES = 131072 }; /* more than the ring buffer and the sockets hold */
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    char n[16], last[64];
    struct http_stream *stream = open_sized(http_harness_port(h), "/api/v1/events", "", RECEIVE_BYTES);
    free(http_stream_until(stream, "id: 40\n"));
    (void)snprintf(n, sizeof(n), "%d", N);
    http_harness_event(h, 1, "burst", n, NULL);
    /* meanwhile, other clients are served */
    struct http_reply r = http_get(http_harness_port(h), "/healthz");
    ck_assert_int_eq(r.status, 200);
    http_reply_free(&r);
    (void)snprintf(last, sizeof(last), "{\"i\":%d,", N);
    char *text = http_stream_until(stream, last);
    ck_assert_int_eq(count(text, "event: task"), N);
    free(text);
    http_stream_close(stream);
    http_harness_stop(h);
}

/* Returns the number of bytes on the heap, or 0 if the allocator does not report it (sanitizers). */
static size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* Publishes n events and waits until the client has read the last event. */
static void burst(struct http_harness *h, struct http_stream *reader, int n)
{
    char text[64];
    (void)snprintf(text, sizeof(text), "%d", n);
    http_harness_event(h, 1, "burst", text, NULL);
    (void)snprintf(text, sizeof(text), "{\"i\":%d,", n);
    free(http_stream_until(reader, text));
}

/* Waits until n streams are open. */
static void wait_streams(int port, int n)
{
    char text[64];
    int64_t until = mf_now_ms() + 30000;
    (void)snprintf(text, sizeof(text), "\nmoefarm_http_streams %d\n", n);
    for (bool found = false; !found;) {
        struct http_reply r = http_get(port, "/metrics");
        found = strstr(r.body, text) != NULL;
        http_reply_free(&r);
        ck_assert_int_lt(mf_now_ms(), until);
    }
}

static const struct mf_test_group optional_tests = {.timeout_s = 90, .optional = true};

/* However many events are published, an unread stream takes only one chunk and the memory of its connection.
 * Closing the streams frees this memory. The difference of the heap's size is exact, because nothing else
 * runs meanwhile and the database's caches stay. */
MF_TEST(test_unread_streams, .group = &optional_tests)
{
    enum { STREAMS = 32, N = 8000, EACH_BYTES = 1 << 20, RECEIVE_BYTES = 4096 };
    struct http_stream *unread[STREAMS];
    if (heap_bytes() == 0) {
        mf_check_skip("the allocator of this build does not report its heap");
        return;
    }
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_stream *reader = open_stream(http_harness_port(h), "/api/v1/events", "");
    free(http_stream_until(reader, "id: 40\n"));
    for (int i = 0; i < STREAMS; i++) {
        unread[i] = open_sized(http_harness_port(h), "/api/v1/events", "", RECEIVE_BYTES);
        free(http_stream_until(unread[i], "retry"));
    }
    for (int i = 0; i < 3; i++)
        burst(h, reader, N); /* each burst has 8 MiB, and the sockets hold only a part of it */
    size_t with = heap_bytes();
    for (int i = 0; i < STREAMS; i++)
        http_stream_close(unread[i]);
    wait_streams(http_harness_port(h), 1);
    size_t each = (with - heap_bytes()) / STREAMS;
    ck_assert_msg(each > 0 && each < EACH_BYTES, "an unread stream takes %zu bytes", each);
    http_stream_close(reader);
    http_harness_stop(h);
}

MF_TEST(test_keepalive)
{
    struct http_harness *h =
        http_harness_start(&(struct http_harness_options){.fixture = true, .http.keepalive_ms = 50});
    struct http_stream *stream = open_stream(http_harness_port(h), "/api/v1/events", "");
    for (int i = 0; i < 3; i++)
        free(http_stream_until(stream, ": beat\n\n"));
    http_stream_close(stream);
    http_harness_stop(h);
}

static const struct {
    const char *path, *headers, *at;
    int status;
} refused[] = {
    {"/api/v1/batches/99/events", "", "", 404},
    {"/api/v1/events", "Last-Event-ID: soon\r\n", "last_event_id", 400},
    {"/api/v1/events?last_event_id=-1", "", "last_event_id", 400},
    {"/api/v1/events", "Accept: application/json\r\n", "header.Accept", 406},
};

MF_TEST(test_refused)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(refused); i++) {
        struct http_reply r =
            http_call(http_harness_port(h), "GET", refused[i].path, refused[i].headers, NULL, 0);
        ck_assert_int_eq(r.status, refused[i].status);
        ck_assert_ptr_nonnull(strstr(r.body, refused[i].at));
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

MF_TEST(test_too_many)
{
    struct http_harness *h = http_harness_start(
        &(struct http_harness_options){.fixture = true, .http.streams = 2, .http.keepalive_ms = 50});
    int port = http_harness_port(h);
    struct http_stream *a = open_stream(port, "/api/v1/events", "");
    struct http_stream *b = open_stream(port, "/api/v1/events", "");
    free(http_stream_until(a, "retry"));
    free(http_stream_until(b, "retry"));
    struct http_reply r = http_call(port, "GET", "/api/v1/events", "", NULL, 0);
    ck_assert_int_eq(r.status, 503);
    ck_assert_str_eq(http_header(&r, "Retry-After"), "5");
    http_reply_free(&r);
    /* the slot becomes free when the keepalive detects that the client is gone */
    http_stream_close(a);
    int64_t until = mf_now_ms() + 30000;
    for (;;) {
        struct http_stream *stream = open_stream(port, "/api/v1/events", "");
        bool open = http_stream_head(stream)->status == 200;
        http_stream_close(stream);
        if (open)
            break;
        ck_assert_int_lt(mf_now_ms(), until);
    }
    http_stream_close(b);
    http_harness_stop(h);
}

/* Stopping ends open streams, so that their clients reconnect to the next server. */
MF_TEST(test_stop)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    struct http_stream *stream = open_stream(http_harness_port(h), "/api/v1/events", "");
    free(http_stream_until(stream, "retry"));
    http_harness_stop(h);
    ck_assert(http_stream_end(stream));
    http_stream_close(stream);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 90});
}
