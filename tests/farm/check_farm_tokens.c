/* Tests a real moefarmd whose API requires access tokens. Each route needs its role, revoked tokens stop
 * working, and TLS is required beyond loopback. Each test of a refused request also checks that the same
 * request works with the right token. */
#include "support/mf_check.h"
#include "support/table_columns.h"

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/secret.h"
#include "common/base/text.h"
#include "server/api/routes.h"
#include "support/farm/farm_process.h"
#include "support/farm/http_client.h"
#include "support/run_program.h"
#include "support/text_file.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define BEAT_MS  3000
#define LIMIT_MS 30000

static const char csv[] = SHAPE_COLUMNS
    "\n4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n";

static const char *const no_rate_limit[] = {"--tokens", "--http-rate", "0", "--log-level", "debug", NULL};

struct farm {
    struct farm_process process;
    char admin[MF_TOKEN_TEXT_MAX]; /* admin token that moefarmd created at its first start */
};

static void read_admin(struct farm *f)
{
    char path[320];
    struct stat status;
    mf_format(path, sizeof(path), "%s/state/admin.token", f->process.folder);
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_int_eq((int)(status.st_mode & 0777), 0600);
    ck_assert_int_eq(mf_secret_file_read(path, f->admin, sizeof(f->admin)), 0);
}

static void farm_start(struct farm *f, const char *const *more)
{
    *f = (struct farm){.process = {.more = more, .log = "log"}};
    farm_process_start(&f->process, BEAT_MS);
    read_admin(f);
}

static void farm_stop(struct farm *f)
{
    (void)farm_process_kill(&f->process, SIGKILL);
    farm_process_remove(&f->process);
}

/* Sends a request. token: access token; NULL for none. headers: additional headers. */
static struct http_reply send_request(struct farm *f, const char *method, const char *path, const char *token,
                                      const char *headers)
{
    char all[512];
    mf_format(all, sizeof(all), "%s%s%s%s", token ? "Authorization: Bearer " : "", token ? token : "",
              token ? "\r\n" : "", headers);
    return http_call(f->process.http, method, path, all, NULL, 0);
}

static int status_of(struct farm *f, const char *method, const char *path, const char *token,
                     const char *headers)
{
    struct http_reply r = send_request(f, method, path, token, headers);
    int status = r.status;
    if (status >= 400)
        ck_assert_msg(r.len == 0 || strstr(r.body, "\"errors\":["), "%s", r.body);
    http_reply_free(&r);
    return status;
}

static int64_t make_token(struct farm *f, const char *query, char text[MF_TOKEN_TEXT_MAX])
{
    char path[128];
    const char *token = "";
    int64_t id = 0;
    mf_format(path, sizeof(path), "/api/v1/tokens?%s", query);
    struct http_reply r = send_request(f, "POST", path, f->admin, "");
    ck_assert_msg(r.status == 201, "%d %s", r.status, r.body);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(r.body, r.len, r.len);
    ck_assert_int_eq(mf_json_text(json, "token", &token), 0);
    ck_assert_int_eq(mf_json_i64(json, "id", 1, INT64_MAX, &id), 0);
    ck_assert_int_eq(mf_copy(text, MF_TOKEN_TEXT_MAX, token), 0);
    http_reply_free(&r);
    return id;
}

/* Prints a path for the route, with the id 999, which does not exist. */
static void example_path(const struct mf_route *route, char *path, size_t cap)
{
    const char *brace = strchr(route->path, '{');
    if (!brace)
        mf_format(path, cap, "%s", route->path);
    else
        mf_format(path, cap, "%.*s999%s", (int)(brace - route->path), route->path, strchr(brace, '}') + 1);
}

MF_TEST(checks_the_role_of_each_route)
{
    static const char *const queries[] = {"role=read&name=r", "role=submit&name=s", "role=admin&name=a"};
    char tokens[3][MF_TOKEN_TEXT_MAX], path[128];
    struct farm f;
    size_t n;
    const struct mf_route *routes = mf_routes(&n);
    farm_start(&f, no_rate_limit);
    for (size_t i = 0; i < MF_ARRAY_LEN(queries); i++)
        (void)make_token(&f, queries[i], tokens[i]);
    for (size_t i = 0; i < n; i++) {
        const struct mf_route *route = &routes[i];
        example_path(route, path, sizeof(path));
        int none = status_of(&f, route->method, path, NULL, "");
        ck_assert_msg((none == 401) == (route->role != MF_ROLE_NONE), "%s without a token: status %d", path,
                      none);
        if (strcmp(route->path, "/api/v1/events") == 0)
            continue; /* this stream does not end; the test of event streams covers it */
        for (int role = MF_ROLE_READ; role <= MF_ROLE_ADMIN; role++) {
            int got = status_of(&f, route->method, path, tokens[role - MF_ROLE_READ], "");
            ck_assert_msg((got == 403) == (role < (int)route->role), "%s with role %s: status %d", path,
                          mf_role_name((enum mf_role)role), got);
            ck_assert_msg(got != 401 && got < 500, "%s: status %d", path, got);
        }
    }
    farm_stop(&f);
}

/* Repeats a request until it is rate-limited. Every answer before the refusal must have the status `status`.
 * Checks the Retry-After header of the refusal. */
static void await_refusal(struct farm *f, const char *path, const char *token, int status)
{
    for (int64_t end = mf_now_ms() + LIMIT_MS;;) {
        struct http_reply r = send_request(f, "GET", path, token, "");
        bool refused_options = r.status == 429;
        ck_assert_msg(refused_options || r.status == status, "%s: %d %s", path, r.status, r.body);
        ck_assert_msg(!refused_options || atoi(http_header(&r, "Retry-After")) >= 1, "%s", r.head);
        http_reply_free(&r);
        if (refused_options)
            return;
        ck_assert_msg(mf_now_ms() < end, "%s: not rate-limited in time", path);
    }
}

/* The API refuses malformed, mixed, revoked and expired tokens. */
MF_TEST(refuses_bad_tokens)
{
    struct farm f;
    char token[MF_TOKEN_TEXT_MAX], other[MF_TOKEN_TEXT_MAX], path[64], text[MF_TOKEN_TEXT_MAX + 8];
    farm_start(&f, no_rate_limit);
    int64_t id = make_token(&f, "role=read&name=r", token);
    (void)make_token(&f, "role=read&name=q", other);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", token, ""), 200);
    /* a mixed token: this id with the secret of another token */
    mf_format(text, sizeof(text), "moefarm_%" PRId64 "_%s", id, strrchr(other, '_') + 1);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", text, ""), 401);
    mf_format(text, sizeof(text), "moefarm_999_%s", strrchr(token, '_') + 1);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", text, ""), 401);
    mf_format(text, sizeof(text), "%s0", token);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", text, ""), 401);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", "", ""), 401);
    /* The API refuses a token under another authentication scheme, and a token in the URL, because logs and
     * browser histories would keep that token. */
    mf_format(text, sizeof(text), "Basic %s\r\n", token);
    char header[MF_TOKEN_TEXT_MAX + 40], address[MF_TOKEN_TEXT_MAX + 40];
    mf_format(header, sizeof(header), "Authorization: %s", text);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", NULL, header), 401);
    mf_format(address, sizeof(address), "/api/v1/batches?token=%s", token);
    ck_assert_int_eq(status_of(&f, "GET", address, NULL, ""), 401);
    struct http_reply r = send_request(&f, "GET", "/api/v1/batches", NULL, "");
    ck_assert_str_eq(http_header(&r, "WWW-Authenticate"), "Bearer realm=\"moefarm\"");
    http_reply_free(&r);
    /* a revoked token is refused from the next request on */
    mf_format(path, sizeof(path), "/api/v1/tokens/%" PRId64 "/revoke", id);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", token, ""), 200);
    ck_assert_int_eq(status_of(&f, "POST", path, f.admin, ""), 200);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", token, ""), 401);
    /* an expired token */
    (void)make_token(&f, "role=read&name=t&expires_s=1", token);
    int64_t end = mf_now_ms() + LIMIT_MS;
    while (status_of(&f, "GET", "/api/v1/batches", token, "") == 200)
        ck_assert_msg(mf_now_ms() < end, "the token did not expire in time");
    /* Repeated requests with wrong tokens are rate-limited. */
    await_refusal(&f, "/api/v1/batches", "moefarm_1_no", 401);
    /* Right tokens from the same address are not. */
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", f.admin, ""), 200);
    farm_stop(&f);
}

MF_TEST(gives_browsers_a_cookie)
{
    struct farm f;
    char cookie[256], with_origin[384];
    farm_start(&f, no_rate_limit);
    ck_assert_int_eq(status_of(&f, "POST", "/api/v1/session", NULL, ""), 401);
    struct http_reply r = send_request(&f, "POST", "/api/v1/session", f.admin, "");
    ck_assert_int_eq(r.status, 200);
    const char *set = http_header(&r, "Set-Cookie");
    ck_assert_ptr_nonnull(strstr(set, "; HttpOnly"));
    ck_assert_ptr_nonnull(strstr(set, "; SameSite=Strict"));
    ck_assert_ptr_null(strstr(r.body, "moefarm_"));
    mf_format(cookie, sizeof(cookie), "Cookie: %.*s\r\n", (int)strcspn(set, ";"), set);
    http_reply_free(&r);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", NULL, cookie), 200);
    /* A request with the cookie may change state only if headers prove that the page itself sent the request.
     */
    ck_assert_int_eq(status_of(&f, "POST", "/api/v1/workers/999/drain", NULL, cookie), 401);
    mf_format(with_origin, sizeof(with_origin), "%sSec-Fetch-Site: same-origin\r\n", cookie);
    ck_assert_int_eq(status_of(&f, "POST", "/api/v1/workers/999/drain", NULL, with_origin), 404);
    mf_format(with_origin, sizeof(with_origin), "%sSec-Fetch-Site: cross-site\r\n", cookie);
    ck_assert_int_eq(status_of(&f, "POST", "/api/v1/workers/999/drain", NULL, with_origin), 403);
    mf_format(with_origin, sizeof(with_origin), "%sOrigin: http://evil.example\r\n", cookie);
    ck_assert_int_eq(status_of(&f, "POST", "/api/v1/workers/999/drain", NULL, with_origin), 403);
    ck_assert_int_eq(status_of(&f, "GET", "/", NULL, "Cookie: moefarm=old\r\n"), 200);
    r = send_request(&f, "POST", "/api/v1/session/end", NULL, "");
    ck_assert_ptr_nonnull(strstr(http_header(&r, "Set-Cookie"), "Max-Age=0"));
    http_reply_free(&r);
    farm_stop(&f);
}

MF_TEST(limits_the_request_rate)
{
    /* a rate that is exceeded even on a slow machine */
    static const char *const few[] = {"--tokens", "--http-rate", "1", NULL};
    struct farm f;
    char token[MF_TOKEN_TEXT_MAX];
    farm_start(&f, few);
    (void)make_token(&f, "role=read&name=r", token);
    await_refusal(&f, "/api/v1/batches", token, 200);
    /* The limit applies to this token only, and requests with this token succeed again later. */
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", f.admin, ""), 200);
    for (int64_t end = mf_now_ms() + LIMIT_MS; status_of(&f, "GET", "/api/v1/batches", token, "") != 200;)
        ck_assert_msg(mf_now_ms() < end, "requests with the token are still rate-limited");
    await_refusal(&f, "/healthz", NULL, 200);
    farm_stop(&f);
}

#define CONNECTIONS 512 /* maximum number of connections of moefarmd */

/* Connects from the given local address and sends the text. */
static int connect_from(struct farm *f, const char *address, const char *text)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->process.http)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(inet_pton(AF_INET, address, &from.sin_addr), 1);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
    return fd;
}

/* Connects from the given local address until a request is answered. Fails the test after LIMIT_MS. */
static void await_answer(struct farm *f, const char *address)
{
    char answer[1024];
    ssize_t n = 0;
    for (int64_t end = mf_now_ms() + LIMIT_MS; n <= 0;) {
        ck_assert_msg(mf_now_ms() < end, "%s gets no answer", address);
        int fd = connect_from(f, address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        n = recv(fd, answer, sizeof(answer), 0);
        (void)close(fd);
    }
}

/* One address opens more connections than moefarmd accepts, and sends incomplete headers on all of them. It
 * gets half of the connections. Other clients are answered, and so are those behind the same address, because
 * connections that wait long for a request are closed. */
MF_TEST(limits_connections_per_address)
{
    static struct pollfd fds[CONNECTIONS];
    struct farm f;
    int n_open = 0;
    farm_start(&f, no_rate_limit);
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i].fd = connect_from(&f, "127.0.0.1", "GET /healthz HTTP/1.1\r\nHost: ");
        fds[i].events = POLLIN;
    }
    await_answer(&f, "127.0.0.2");
    ck_assert_int_ge(poll(fds, CONNECTIONS, 0), CONNECTIONS / 2);
    for (int i = 0; i < CONNECTIONS; i++)
        n_open += fds[i].revents == 0;
    ck_assert_int_le(n_open, CONNECTIONS / 2);
    await_answer(&f, "127.0.0.1");
    for (int i = 0; i < CONNECTIONS; i++)
        (void)close(fds[i].fd);
    farm_stop(&f);
}

MF_TEST(ends_streams_of_a_revoked_token)
{
    struct farm f;
    char token[MF_TOKEN_TEXT_MAX], request[320], path[64];
    farm_start(&f, no_rate_limit);
    int64_t id = make_token(&f, "role=read&name=r", token);
    int fd = http_connect(f.process.http);
    mf_format(request, sizeof(request),
              "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", token);
    http_sends(fd, request);
    struct http_stream *stream = http_stream_open(fd);
    free(http_stream_until(stream, "retry: 1000"));
    mf_format(path, sizeof(path), "/api/v1/tokens/%" PRId64 "/revoke", id);
    ck_assert_int_eq(status_of(&f, "POST", path, f.admin, ""), 200);
    ck_assert(http_stream_end(stream));
    http_stream_close(stream);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/events", token, ""), 401);
    farm_stop(&f);
}

/* ---- beyond loopback ---- */

static const char *const refused_options[][6] = {
    {"--http", "0.0.0.0:0", NULL},
    {"--http", "192.0.2.1:0", NULL},
    {"--http", "0.0.0.0:0", "--tokens", NULL},
    {"--http", "0.0.0.0:0", "--tls-cert", MF_TEST_DATA "/tls/cert.pem", NULL},
};

MF_TEST(requires_tls_beyond_loopback, .rows = MF_ARRAY_LEN(refused_options))
{
    char state[] = "/tmp/check_tokens.XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(state));
    const char *const program[] = {
        MF_BINARY_DIR "/server/moefarmd", "--state", state, "--hub", "127.0.0.1:0", NULL};
    struct ran r = run_program(program, refused_options[_i]);
    ck_assert_int_ne(r.code, 0);
    assert_says(r, "--tls-key");
    ck_assert_int_eq(rmdir(state), 0); /* no files were created */
}

static const char *const tls[] = {"--tls-cert", MF_TEST_DATA "/tls/cert.pem", "--tls-key",
                                  MF_TEST_DATA "/tls/key.pem", NULL};
static const char *const plain[] = {"--plain-http", NULL};

MF_TEST(requires_tokens_beyond_loopback)
{
    struct farm f = {.process = {.http_address = "0.0.0.0", .more = plain}};
    farm_process_start(&f.process, BEAT_MS);
    read_admin(&f);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", NULL, ""), 401);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/batches", f.admin, ""), 200);
    ck_assert_int_eq(status_of(&f, "GET", "/healthz", NULL, ""), 200);
    farm_stop(&f);
}

static struct ran moefarm(const char *const *words)
{
    static const char *const program[] = {MF_BINARY_DIR "/cli/moefarm", NULL};
    return run_program(program, words);
}

MF_TEST(serves_over_tls)
{
    struct farm f = {.process = {.http_address = "0.0.0.0", .more = tls}};
    char url[64], far[64], token[320], table[320];
    farm_process_start(&f.process, BEAT_MS);
    read_admin(&f);
    mf_format(url, sizeof(url), "https://127.0.0.1:%d", f.process.http);
    mf_format(far, sizeof(far), "http://farm.example:%d", f.process.http);
    mf_format(token, sizeof(token), "%s/state/admin.token", f.process.folder);
    mf_format(table, sizeof(table), "%s/table.csv", f.process.folder);
    text_file_write(table, csv);
    const char *ca = MF_TEST_DATA "/tls/cert.pem";
    struct ran r = moefarm(
        (const char *const[]){"--url", url, "--ca", ca, "--token-file", token, "submit", table, NULL});
    ck_assert_msg(r.code == 0, "%s", r.text);
    /* watch reads the event stream over TLS, and ends because the batch is cancelled. */
    r = moefarm((const char *const[]){"--url", url, "--ca", ca, "--token-file", token, "cancel", "1", NULL});
    ck_assert_msg(r.code == 0, "%s", r.text);
    r = moefarm((const char *const[]){"--url", url, "--ca", ca, "--token-file", token, "watch", "1", NULL});
    assert_says(r, "cancelled");
    r = moefarm((const char *const[]){"--url", url, "--ca", ca, "batches", NULL});
    ck_assert_int_eq(r.code, 2);
    assert_says(r, "this route needs an access token");
    assert_says(r, "MOEFARM_TOKEN_FILE");
    /* The client does not send the token to a server whose certificate it does not trust. */
    r = moefarm((const char *const[]){"--url", url, "--token-file", token, "batches", NULL});
    ck_assert_int_eq(r.code, 3);
    r = moefarm((const char *const[]){"--url", far, "--token-file", token, "batches", NULL});
    ck_assert_int_eq(r.code, 2);
    assert_says(r, "would send the token unencrypted");
    /* without TLS the port does not answer the request */
    struct http_reply reply = send_request(&f, "GET", "/healthz", NULL, "");
    ck_assert_int_ne(reply.status, 200);
    http_reply_free(&reply);
    farm_stop(&f);
}

/* ---- old TLS ---- */

static const char *const tls_rsa[] = {"--tls-cert", MF_TEST_DATA "/tls/rsa_cert.pem", "--tls-key",
                                      MF_TEST_DATA "/tls/rsa_key.pem", NULL};

#define HANDSHAKE 22

/* clang-format off */
static const struct {
    const char *const *key;
    int version, suite;
    bool accepted;
} hellos[] = {
    {tls,     0x0301, 0xc00a, false}, /* TLS 1.0 */
    {tls,     0x0302, 0xc00a, false}, /* TLS 1.1 */
    /* TLS 1.2 with the same ClientHello shows that version or suite is the reason of the refusals */
    {tls,     0x0303, 0xc02b, true},  /* ECDHE-ECDSA-AES128-GCM */
    {tls,     0x0303, 0xc02c, true},  /* ECDHE-ECDSA-AES256-GCM */
    {tls,     0x0303, 0xc009, false}, /* ECDHE-ECDSA-AES128-CBC-SHA */
    {tls,     0x0303, 0xc023, false}, /* ECDHE-ECDSA-AES128-CBC-SHA256 */
    {tls_rsa, 0x0303, 0xc02f, true},  /* ECDHE-RSA-AES128-GCM */
    {tls_rsa, 0x0303, 0xcca8, true},  /* ECDHE-RSA-CHACHA20-POLY1305 */
    {tls_rsa, 0x0303, 0xc013, false}, /* ECDHE-RSA-AES128-CBC-SHA */
    {tls_rsa, 0x0303, 0x009c, false}, /* RSA key exchange, AES128-GCM */
    {tls_rsa, 0x0303, 0x002f, false}, /* RSA key exchange, AES128-CBC-SHA */
};

/* A ClientHello (RFC 5246 section 7.4.1.2) that fits in one record. */
static const unsigned char hello_head[] = {
    HANDSHAKE, 3, 1, 0, 0 /* length */, 1, 0, 0, 0 /* length */, 0, 0 /* version */
};
static const unsigned char hello_tail[] = {
    0,                                                /* no session id */
    0, 2, 0, 0,                                       /* one cipher suite */
    1, 0,                                             /* no compression */
    0, 32,
    0, 10, 0, 6, 0, 4, 0, 29, 0, 23,                  /* groups: x25519, secp256r1 */
    0, 11, 0, 2, 1, 0,                                /* points: uncompressed */
    /* signatures: ECDSA, RSA-PSS, RSA, with SHA-256 and SHA-1 */
    0, 13, 0, 12, 0, 10, 4, 3, 8, 4, 4, 1, 2, 3, 2, 1
};
/* clang-format on */

static size_t make_hello(int version, int suite, unsigned char *hello)
{
    enum { RANDOM = 32 };
    size_t n = sizeof(hello_head) + RANDOM + sizeof(hello_tail);
    memcpy(hello, hello_head, sizeof(hello_head));
    memset(hello + sizeof(hello_head), 7, RANDOM);
    memcpy(hello + sizeof(hello_head) + RANDOM, hello_tail, sizeof(hello_tail));
    hello[sizeof(hello_head) + RANDOM + 3] = (unsigned char)(suite >> 8);
    hello[sizeof(hello_head) + RANDOM + 4] = (unsigned char)suite;
    hello[4] = (unsigned char)(n - 5);
    hello[8] = (unsigned char)(n - 9);
    hello[9] = (unsigned char)(version >> 8);
    hello[10] = (unsigned char)version;
    return n;
}

MF_TEST(refuses_old_tls, .rows = MF_ARRAY_LEN(hellos))
{
    struct farm f = {.process = {.http_address = "0.0.0.0", .more = hellos[_i].key}};
    unsigned char hello[256], answer;
    farm_process_start(&f.process, BEAT_MS);
    int fd = http_connect(f.process.http);
    ck_assert_int_ge(fd, 0);
    size_t n = make_hello(hellos[_i].version, hellos[_i].suite, hello);
    ck_assert_int_eq(send(fd, hello, n, MSG_NOSIGNAL), (ssize_t)n);
    /* if it refuses, the server closes the connection or sends an alert */
    bool accepted = recv(fd, &answer, 1, 0) == 1 && answer == HANDSHAKE;
    ck_assert_int_eq(accepted, hellos[_i].accepted);
    (void)close(fd);
    farm_stop(&f);
}

/* A farm without tokens creates none: every user of the host could do so, and the token would be valid after
 * a later start with --tokens. */
MF_TEST(open_farm_creates_no_token)
{
    static const char *const roles[] = {"read", "submit", "admin"};
    struct farm f = {.process = {.log = "log"}};
    char path[64];
    farm_process_start(&f.process, BEAT_MS);
    for (size_t i = 0; i < MF_ARRAY_LEN(roles); i++) {
        mf_format(path, sizeof(path), "/api/v1/tokens?role=%s&name=x", roles[i]);
        struct http_reply r = send_request(&f, "POST", path, NULL, "");
        ck_assert_int_eq(r.status, 409);
        ck_assert_msg(strstr(r.body, "start moefarmd with --tokens") != NULL, "%s", r.body);
        http_reply_free(&r);
    }
    farm_stop(&f);
}

/* If the file of the admin token is lost, the coordinator makes a new admin token and revokes the old token.
 * Tokens never appear in the log. */
MF_TEST(replaces_a_lost_admin_token)
{
    struct farm f;
    char path[320], old[MF_TOKEN_TEXT_MAX], other[MF_TOKEN_TEXT_MAX], text[1 << 14];
    farm_start(&f, no_rate_limit);
    (void)make_token(&f, "role=read&name=r", other);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/tokens", f.admin, ""), 200);
    (void)farm_process_kill(&f.process, SIGTERM);
    farm_process_start(&f.process, BEAT_MS);
    (void)mf_copy(old, sizeof(old), f.admin);
    read_admin(&f);
    ck_assert_str_eq(old, f.admin);
    (void)farm_process_kill(&f.process, SIGTERM);
    mf_format(path, sizeof(path), "%s/state/admin.token", f.process.folder);
    ck_assert_int_eq(unlink(path), 0);
    farm_process_start(&f.process, BEAT_MS);
    read_admin(&f);
    ck_assert_str_ne(old, f.admin);
    ck_assert_int_eq(status_of(&f, "GET", "/api/v1/tokens", old, ""), 401);
    struct http_reply r = send_request(&f, "GET", "/api/v1/tokens", f.admin, "");
    ck_assert_int_eq(r.status, 200);
    ck_assert_ptr_null(strstr(r.body, strrchr(old, '_') + 1));
    ck_assert_ptr_null(strstr(r.body, strrchr(f.admin, '_') + 1));
    http_reply_free(&r);
    mf_format(path, sizeof(path), "%s/log", f.process.folder);
    ck_assert_int_eq(mf_secret_file_read(path, text, sizeof(text)), 0);
    ck_assert_ptr_nonnull(strstr(text, "1 other tokens are valid; revoke those that you do not know"));
    ck_assert_ptr_null(strstr(text, strrchr(old, '_') + 1));
    ck_assert_ptr_null(strstr(text, strrchr(f.admin, '_') + 1));
    farm_stop(&f);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 120});
}
