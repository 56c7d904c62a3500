/* HTTP over raw sockets: tests rejected requests, limits, and the headers of every response. */
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "server/http/request.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

struct row {
    const char *method, *path, *headers, *body;
    int status;
    const char *header, *value; /* a response header that must contain the value; NULL: not checked */
    const char *text;           /* part of the body; NULL: not checked */
};

static const struct row rows[] = {
    {"GET", "/healthz", "", NULL, 200, "Content-Type", "text/plain", "ok"},
    {"GET", "/readyz", "", NULL, 200, "Cache-Control", "no-cache", "ok"},
    {"GET", "/", "", NULL, 200, "Content-Security-Policy", "script-src 'self';", "<noscript>"},
    {"GET", "/", "", NULL, 200, "Content-Security-Policy", "default-src 'none';", NULL},
    {"GET", "/", "", NULL, 200, "Content-Security-Policy",
     "frame-ancestors 'none'; base-uri 'none'; form-action 'none'", NULL},
    {"GET", "/", "", NULL, 200, "X-Frame-Options", "DENY", NULL},
    {"GET", "/", "", NULL, 200, "Referrer-Policy", "no-referrer", NULL},
    {"GET", "/", "", NULL, 200, "X-Content-Type-Options", "nosniff", NULL},
    {"GET", "/page/app.js", "", NULL, 200, "Content-Type", "text/javascript", "EventSource"},
    {"GET", "/api/v1/batches", "", NULL, 200, "Cache-Control", "no-store", "\"items\""},
    {"GET", "/api/v1/batches", "", NULL, 200, "X-Content-Type-Options", "nosniff", NULL},
    {"HEAD", "/api/v1/batches", "", NULL, 200, "Content-Type", "application/json", NULL},
    /* paths and methods */
    {"GET", "/api/v2/batches", "", NULL, 404, "Content-Type", "application/problem+json",
     "/api/openapi.json"},
    {"GET", "/api/v1/batches/0", "", NULL, 404, NULL, NULL, NULL},
    {"GET", "/api/v1/batches/99", "", NULL, 404, NULL, NULL, "there is no batch 99"},
    {"GET", "/api/v1/tasks/99", "", NULL, 404, NULL, NULL, "there is no task 99"},
    {"GET", "/api/v1/tasks/99/steps", "", NULL, 404, NULL, NULL, "task"},
    {"GET", "/api/v1/steps/99999/results", "", NULL, 404, NULL, NULL, "step"},
    {"GET", "/api/v1/pipelines/99999/results", "", NULL, 404, NULL, NULL, "pipeline"},
    {"GET", "/page/../schema.sql", "", NULL, 404, NULL, NULL, NULL},
    {"DELETE", "/api/v1/batches", "", NULL, 405, "Allow", "POST, GET, HEAD", NULL},
    {"PUT", "/metrics", "", NULL, 405, "Allow", "GET, HEAD", NULL},
    {"GET", "/api/v1/batches/1/cancel", "", NULL, 405, "Allow", "POST", NULL},
    /* content types */
    {"GET", "/api/v1/batches", "Accept: text/html\r\n", NULL, 406, NULL, NULL, "application/json"},
    {"GET", "/api/v1/batches", "Accept: text/html, application/*;q=0.5\r\n", NULL, 200, NULL, NULL, NULL},
    {"GET", "/api/v1/batches", "Accept: application/json;q=0\r\n", NULL, 406, NULL, NULL, NULL},
    {"GET", "/api/v1/batches", "Accept: application/json;q=0.1\r\n", NULL, 200, NULL, NULL, NULL},
    {"GET", "/api/v1/batches", "Accept: */*\r\n", NULL, 200, NULL, NULL, NULL},
    {"POST", "/api/v1/batches", "Content-Type: text/plain\r\n", "x", 415, NULL, NULL,
     "text/csv or application/json"},
    {"POST", "/api/v1/batches", "", "x", 415, NULL, NULL, "header.Content-Type"},
    {"POST", "/api/v1/batches", "Content-Type: text/csvx\r\n", "x", 415, NULL, NULL, NULL},
    {"POST", "/api/v1/batches/2/cancel", "Content-Type: text/csv\r\n", "x", 415, NULL, NULL,
     "accepts no body"},
    {"POST", "/api/v1/batches/2/cancel", "", "", 200, NULL, NULL, "cancelled"},
    /* the query */
    {"GET", "/api/v1/batches?limit=0", "", NULL, 400, NULL, NULL, "1 to 1000"},
    {"GET", "/api/v1/batches?limit=1001", "", NULL, 400, NULL, NULL, "\"at\":\"limit\""},
    {"GET", "/api/v1/batches?limit=ten", "", NULL, 400, NULL, NULL, "\"code\":\"range\""},
    {"GET", "/api/v1/batches?cursor=12", "", NULL, 400, NULL, NULL, "\"at\":\"cursor\""},
    {"GET", "/api/v1/batches?limit=1&limit=2", "", NULL, 400, NULL, NULL, "given twice"},
    {"GET", "/api/v1/batches?colour=red", "", NULL, 400, NULL, NULL, "\"at\":\"colour\""},
    {"GET", "/api/v1/tasks/5/steps?status=okay", "", NULL, 400, NULL, NULL, "no_memory"},
    {"GET", "/api/v1/batches/1/tasks?state=alive", "", NULL, 400, NULL, NULL, "enumerating"},
    {"GET", "/api/v1/tasks/5/pipelines?finalists=maybe", "", NULL, 400, NULL, NULL, "expected 0 or 1"},
    {"GET", "/api/v1/tasks/5/rejections?kernel=%ff", "", NULL, 400, NULL, NULL, "UTF-8"},
    {"GET", "/api/v1/tasks/5/rejections?kernel=a%00b", "", NULL, 400, NULL, NULL, "UTF-8"},
    {"GET", "/api/v1/batches?a=1&b=1&c=1&d=1&e=1&f=1&g=1&h=1&i=1&j=1&k=1&l=1&m=1&n=1&o=1&p=1&q=1", "", NULL,
     400, NULL, NULL, "at most 16"},
    {"POST", "/api/v1/quarantine/1/revive", "", NULL, 400, NULL, NULL, "\"at\":\"class\""},
    {"POST", "/api/v1/quarantine/1/revive?class=gfx942", "", NULL, 400, NULL, NULL, "gfx942/304"},
    /* cross-site requests */
    {"POST", "/api/v1/batches/2/cancel", "Origin: http://evil.example\r\n", NULL, 403, NULL, NULL,
     "header.Origin"},
    {"POST", "/api/v1/batches/2/cancel", "Origin: null\r\n", NULL, 403, NULL, NULL, NULL},
    {"POST", "/api/v1/batches/2/cancel", "Sec-Fetch-Site: cross-site\r\n", NULL, 403, NULL, NULL, NULL},
    {"POST", "/api/v1/batches/2/cancel", "Sec-Fetch-Site: same-origin\r\n", NULL, 200, NULL, NULL, NULL},
    {"POST", "/api/v1/batches",
     "Content-Type: text/csv\r\nIdempotency-Key: "
     "123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
     "1234567890123456789012345678901234567890\r\n",
     "x", 400, NULL, NULL, "header.Idempotency-Key"},
};

MF_TEST(test_rows)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        const struct row *row = &rows[i];
        struct http_reply r = http_call(http_harness_port(h), row->method, row->path, row->headers, row->body,
                                        row->body ? strlen(row->body) : 0);
        ck_assert_msg(r.status == row->status, "row %zu, %s %s: status %d, expected %d: %s", i, row->method,
                      row->path, r.status, row->status, r.body);
        if (row->header)
            ck_assert_msg(strstr(http_header(&r, row->header), row->value) != NULL, "row %zu: %s: %s", i,
                          row->header, http_header(&r, row->header));
        if (row->text)
            ck_assert_msg(strstr(r.body, row->text) != NULL, "row %zu: %s", i, r.body);
        if (row->status >= 400)
            ck_assert_msg(strstr(r.body, "\"status\":") && strstr(r.body, "\"errors\":["), "row %zu: %s", i,
                          r.body);
        if (strcmp(row->method, "HEAD") == 0)
            ck_assert_uint_eq(r.len, 0);
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

/* DNS rebinding: a request with a foreign host name that resolves to this machine is rejected. */
MF_TEST(test_host)
{
    static const struct {
        const char *host;
        int status;
    } hosts[] = {{"localhost", 200},
                 {"localhost:80", 200},
                 {"127.0.0.1", 200},
                 {"[::1]:8080", 200},
                 {"LOCALHOST", 200},
                 {"evil.example", 421},
                 {"localhost.evil.example", 421},
                 {"", 421}};
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    for (size_t i = 0; i < MF_ARRAY_LEN(hosts); i++) {
        char text[256];
        int fd = http_connect(http_harness_port(h));
        (void)snprintf(text, sizeof(text), "GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n", hosts[i].host);
        http_sends(fd, text);
        struct http_reply r = http_read(fd, 0);
        ck_assert_msg(r.status == hosts[i].status, "%s: %d", hosts[i].host, r.status);
        http_reply_free(&r);
        (void)close(fd);
    }
    http_harness_stop(h);
}

/* Error responses repeat the rejected text. They are valid JSON for every text. */
MF_TEST(test_errors_are_json)
{
    static const char *const requests[] = {
        "GET /healthz HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: a\xc3\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: <b>\"'\\\r\n\r\n",
        "GET /api/v1/tasks/5/steps?status=%ed%a0%80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /api/v1/tasks/5/steps?%e0%80%80=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    };
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(requests); i++) {
        int fd = http_connect(http_harness_port(h));
        http_sends(fd, requests[i]);
        struct http_reply r = http_read(fd, 0);
        _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(r.body, r.len, r.len);
        ck_assert_msg(r.status >= 400 && json, "request %zu: %d %s", i, r.status, r.body);
        http_reply_free(&r);
        (void)close(fd);
    }
    http_harness_stop(h);
}

MF_TEST(test_etag)
{
    static const char *const paths[] = {"/page/app.css", "/api/v1/export/tuned_fmoe.csv"};
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    for (size_t i = 0; i < MF_ARRAY_LEN(paths); i++) {
        char headers[256], etag[128];
        struct http_reply r = http_get(http_harness_port(h), paths[i]);
        (void)snprintf(etag, sizeof(etag), "%s", http_header(&r, "ETag"));
        ck_assert(etag[0] == '"');
        http_reply_free(&r);
        (void)snprintf(headers, sizeof(headers), "If-None-Match: \"other\", %s\r\n", etag);
        r = http_call(http_harness_port(h), "GET", paths[i], headers, NULL, 0);
        ck_assert_int_eq(r.status, 304);
        ck_assert_str_eq(http_header(&r, "ETag"), etag);
        ck_assert_uint_eq(r.len, 0);
        http_reply_free(&r);
        r = http_call(http_harness_port(h), "GET", paths[i], "If-None-Match: \"other\"\r\n", NULL, 0);
        ck_assert_int_eq(r.status, 200);
        ck_assert_uint_gt(r.len, 100);
        http_reply_free(&r);
    }
    http_harness_stop(h);
}

static char *filler(size_t len)
{
    char *body = malloc(len + 1);
    ck_assert_ptr_nonnull(body);
    memset(body, 'x', len);
    body[len] = 0;
    return body;
}

MF_TEST(test_too_large)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    int port = http_harness_port(h);
    size_t len = MF_REQUEST_BODY_MAX + 1;
    char *body = filler(len), head[256];

    struct http_reply r = http_call(port, "POST", "/api/v1/batches", "Content-Type: text/csv\r\n", body, len);
    ck_assert_int_eq(r.status, 413);
    ck_assert_ptr_nonnull(strstr(r.body, "split it"));
    http_reply_free(&r);

    /* the length is announced, so the request is rejected before the body is sent */
    int fd = http_connect(port);
    (void)snprintf(head, sizeof(head),
                   "POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                   "text/csv\r\nContent-Length: %zu\r\nExpect: 100-continue\r\n\r\n",
                   len);
    http_sends(fd, head);
    r = http_read(fd, 0);
    ck_assert_int_eq(r.status, 413);
    http_reply_free(&r);
    (void)close(fd);

    /* the length is not announced, so the server counts the bytes */
    fd = http_connect(port);
    http_sends(fd, "POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
                   "text/csv\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t sent = 0; sent < len; sent += 1 << 20) {
        http_sends(fd, "100000\r\n");
        http_send(fd, body, 1 << 20);
        http_sends(fd, "\r\n");
    }
    http_sends(fd, "0\r\n\r\n");
    r = http_read(fd, 0);
    ck_assert_int_eq(r.status, 413);
    http_reply_free(&r);
    (void)close(fd);

    /* a body of the maximum length is read, and rejected only for its content */
    r = http_call(port, "POST", "/api/v1/batches", "Content-Type: text/csv\r\n", body, len - 1);
    ck_assert_int_eq(r.status, 422);
    http_reply_free(&r);
    free(body);
    http_harness_stop(h);
}

/* Malformed requests, and clients that stop in the middle of a request, only lose their own connection. */
MF_TEST(test_malformed_requests)
{
    static const char *const texts[] = {
        "\r\n\r\n",
        "GET\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\nContent-Length: "
        "100\r\n\r\ntoken",
        "POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\nTransfer-Encoding: "
        "chunked\r\n\r\nzz\r\n",
        "POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        "GET /api/v1/batches HTTP/1.1\r\nHost: localhost\r\n",
    };
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    for (size_t i = 0; i < MF_ARRAY_LEN(texts); i++) {
        int fd = http_connect(http_harness_port(h));
        http_sends(fd, texts[i]);
        (void)close(fd);
        struct http_reply r = http_get(http_harness_port(h), "/readyz");
        ck_assert_int_eq(r.status, 200);
        http_reply_free(&r);
    }
    /* a header block above the limit */
    int fd = http_connect(http_harness_port(h));
    char *long_header = filler(100000);
    http_sends(fd, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ");
    http_sends(fd, long_header);
    http_sends(fd, "\r\n\r\n");
    struct http_reply r = http_read(fd, 0);
    ck_assert(r.status == 0 || r.status == 431 || r.status == 400);
    http_reply_free(&r);
    (void)close(fd);
    free(long_header);
    http_harness_stop(h);
}

/* Requests a route that the HTTP thread itself answers. Each response takes one iteration of the thread's
 * event loop. */
static void ask_health(int fd)
{
    http_sends(fd, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct http_reply r = http_read(fd, 0);
    ck_assert_int_eq(r.status, 200);
    http_reply_free(&r);
}

/* At the connection limit, a new client waits until another client disconnects. The timeouts are too long to
 * affect the test. */
MF_TEST(test_connections_bounded)
{
    enum { LIMIT = 8, ITERATIONS = 20 };
    struct http_harness *h = http_harness_start(
        &(struct http_harness_options){.http = {.connections = LIMIT, .idle_s = 3600, .spare_ms = 3600000}});
    int fds[LIMIT];
    for (size_t i = 0; i < MF_ARRAY_LEN(fds); i++) {
        fds[i] = http_connect(http_harness_port(h));
        ask_health(fds[i]);
    }
    int late = http_connect(http_harness_port(h));
    http_sends(late, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    /* Without the limit, any of these iterations would accept the client and answer it. */
    for (int i = 0; i < ITERATIONS; i++)
        ask_health(fds[i % LIMIT]);
    ck_assert_int_eq(poll(&(struct pollfd){.fd = late, .events = POLLIN}, 1, 0), 0);
    (void)close(fds[0]);
    struct http_reply r = http_read(late, 0);
    ck_assert_int_eq(r.status, 200);
    http_reply_free(&r);
    (void)close(late);
    for (size_t i = 1; i < MF_ARRAY_LEN(fds); i++)
        (void)close(fds[i]);
    http_harness_stop(h);
}

/* Idle connections are closed. Then waiting clients are accepted. Their connections are idle too, and are
 * closed as well. */
MF_TEST(test_idle_connections_are_closed)
{
    enum { LIMIT = 8 };
    struct http_harness *h =
        http_harness_start(&(struct http_harness_options){.http = {.connections = LIMIT, .idle_s = 1}});
    int fds[LIMIT * 2];
    for (size_t i = 0; i < MF_ARRAY_LEN(fds); i++) {
        fds[i] = http_connect(http_harness_port(h));
        http_sends(fds[i], "GET / HT");
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(fds); i++) {
        struct http_reply r = http_read(fds[i], 0); /* returns when the server closes the connection */
        ck_assert_msg(r.status == 0 || r.status == 408, "connection %zu: status %d", i, r.status);
        http_reply_free(&r);
        (void)close(fds[i]);
    }
    http_harness_stop(h);
}

/* The client sends two requests on one connection, the second one before the first is answered. */
MF_TEST(test_pipelining)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    int fd = http_connect(http_harness_port(h));
    http_sends(fd, "GET /api/v1/workers?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz "
                   "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    char text[8192] = "";
    size_t len = 0;
    for (ssize_t n = 1; n > 0; len += (size_t)n) {
        n = recv(fd, text + len, sizeof(text) - 1 - len, 0);
        ck_assert_int_ge(n, 0);
    }
    const char *first = strstr(text, "node-a-cpu0"), *second = strstr(text, "\r\n\r\nok\n");
    ck_assert(first && second && first < second);
    (void)close(fd);
    http_harness_stop(h);
}

/* If no writer runs, reads are served, and stopping does not hang. */
MF_TEST(test_no_writer)
{
    struct http_harness *h =
        http_harness_start(&(struct http_harness_options){.fixture = true, .no_writer = true});
    int fd = http_connect(http_harness_port(h));
    http_sends(fd, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct http_reply r = http_get(http_harness_port(h), "/api/v1/batches");
    ck_assert_int_eq(r.status, 200);
    http_reply_free(&r);
    http_harness_stop(h);
    r = http_read(fd, 0);
    ck_assert_int_ne(r.status, 200);
    http_reply_free(&r);
    (void)close(fd);
}

MF_TEST(test_only_loopback)
{
    static const struct {
        const char *address;
        int r;
        const char *why;
    } addresses[] = {{"0.0.0.0", -EPERM, "not a loopback address"},
                     {"::", -EPERM, "tokens and TLS"},
                     {"10.1.2.3", -EPERM, "a certificate"},
                     {"localhost.", -EINVAL, "is not an IP address"}};
    for (size_t i = 0; i < MF_ARRAY_LEN(addresses); i++) {
        struct mf_http *h = NULL;
        char why[256];
        ck_assert_int_eq(
            mf_http_start(&(struct mf_http_options){.address = addresses[i].address}, &h, why, sizeof(why)),
            addresses[i].r);
        ck_assert_msg(strstr(why, addresses[i].why) != NULL, "%s", why);
        ck_assert_ptr_null(h);
    }
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
