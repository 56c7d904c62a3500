/* Requests whose length or target two HTTP implementations could read differently. moefarmd answers 400 and
 * closes the connection, so that no proxy in front of it can be tricked into mixing up requests. */
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define POST "POST /api/v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\n"
#define NEXT "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

/* Each request is followed by another one, which must not be answered. */
static const struct {
    const char *request;
    const char *text; /* part of the answer */
} refused[] = {
    {POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "header.Content-Length"},
    {POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", "header.Content-Length"},
    {POST "Content-Length: 0\r\nContent-Length: 44\r\n\r\n", "header.Content-Length"},
    {POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\ntoken", "header.Content-Length"},
    {POST "Content-Length: 5\r\ncontent-length: 5\r\n\r\ntoken", "header.Content-Length"},
    {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
     "header.Transfer-Encoding"},
    {POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "expected chunked"},
    {POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "expected chunked"},
    {POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n", "expected chunked"},
    {"POST /api/v1/batches HTTP/1.0\r\nHost: localhost\r\nContent-Type: text/csv\r\n"
     "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     "HTTP/1.0 has no such header"},
    {POST "Content-Length : 5\r\n\r\ntoken", "before the colon"},
    {POST "Content-Length\t: 5\r\n\r\ntoken", "before the colon"},
    {POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "before the colon"},
    {"GET /healthz HTTP/1.1\r\n Host: localhost\r\n\r\n", "before the colon"},
    {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX(Y): 1\r\n\r\n", "a header's name"},
    {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n", "control character"},
    {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x1b[2Jb\r\n\r\n", "control character"},
    {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "header.Host"},
    {"GET /healthz HTTP/1.1\r\n\r\n", "header.Host"},
    {"GET /healthz HTTP/1.1\r\nHost: localhost, evil.example\r\n\r\n", "header.Host"},
    {"GET /healthz HTTP/1.1\r\nHost: evil.example@localhost\r\n\r\n", "header.Host"},
    {"GET /healthz%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", "%00"},
    {"GET /healthz%00/../api/v1/tokens HTTP/1.1\r\nHost: localhost\r\n\r\n", "%00"},
    {"GET /api/v1/channels/a%00b HTTP/1.1\r\nHost: localhost\r\n\r\n", "%00"},
    {"GET /healthz extra HTTP/1.1\r\nHost: localhost\r\n\r\n", "a space"},
    {"GET /healthz\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n", "a control character"},
    {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
     "header.Authorization"},
    {POST "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "header.Content-Type"},
};

MF_TEST(refuses_ambiguous_requests, .rows = MF_ARRAY_LEN(refused))
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    int fd = http_connect(http_harness_port(h));
    char rest[256];
    ssize_t n;
    http_sends(fd, refused[_i].request);
    (void)send(fd, NEXT, strlen(NEXT), MSG_NOSIGNAL);
    struct http_reply r = http_read(fd, 0);
    ck_assert_msg(r.status == 400, "status %d: %s", r.status, r.body ? r.body : "");
    ck_assert_msg(strstr(r.body, refused[_i].text) != NULL, "%s", r.body);
    ck_assert_str_eq(http_header(&r, "Connection"), "close");
    while ((n = recv(fd, rest, sizeof(rest), 0)) > 0)
        ck_abort_msg("another answer: %.*s", (int)n, rest);
    ck_assert_msg(n == 0 || errno == ECONNRESET, "%s", strerror(errno));
    http_reply_free(&r);
    (void)close(fd);
    http_harness_stop(h);
}

static const struct {
    const char *request;
    int status;
} accepted[] = {
    {"GET /healthz HTTP/1.0\r\n\r\n", 200},
    {"GET /healthz HTTP/1.1\r\nhost:localhost\r\nx-a:\t1 2\t\r\n\r\n", 200},
    {"GET /healthz HTTP/1.1\r\nHost: [::1]:8080\r\nAccept: text/plain\r\nAccept: */*\r\n\r\n", 200},
    {"GET /%68ealthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
    {"GET /api/v1/batches?limit=1 HTTP/1.1\r\nHost: localhost\r\nCookie: a=1; b=2\r\n\r\n", 200},
    {POST "Transfer-Encoding: Chunked\r\n\r\n5\r\ntoken\r\n0\r\n\r\n", 422},
    {POST "Content-Length: 5\r\n\r\ntoken", 422},
};

MF_TEST(accepts_clear_requests, .rows = MF_ARRAY_LEN(accepted))
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    int fd = http_connect(http_harness_port(h));
    http_sends(fd, accepted[_i].request);
    struct http_reply r = http_read(fd, 0);
    ck_assert_msg(r.status == accepted[_i].status, "status %d: %s", r.status, r.body ? r.body : "");
    http_reply_free(&r);
    (void)close(fd);
    http_harness_stop(h);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
