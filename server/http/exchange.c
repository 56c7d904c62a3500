#include "server/http/http_private.h"

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "server/api/api.h"
#include "server/farm/bus.h"
#include "server/http/problem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *header(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* ---- checks before the body is read ---- */

/* Returns true if the media type in a Content-Type value is `type`. Parameters are ignored:
 * "application/json; charset=utf-8" has the type "application/json". */
static bool media_type_is(const char *text, const char *type)
{
    size_t len = strlen(type);
    if (strncasecmp(text, type, len) != 0)
        return false;
    text += len;
    return *text == 0 || *text == ';' || *text == ' ' || *text == '\t';
}

/* Returns true if a range of the Accept header matches the type. Ignores all parameters except q=0. */
static bool range_takes(const char *range, size_t len, const char *type)
{
    size_t type_len = strcspn(type, "/") + 1;
    size_t end = 0;
    while (end < len && !strchr("; \t", range[end]))
        end++;
    bool match = (end == 3 && memcmp(range, "*/*", 3) == 0) ||
                 (end == type_len + 1 && strncasecmp(range, type, type_len) == 0 && range[type_len] == '*') ||
                 (end == strlen(type) && strncasecmp(range, type, end) == 0);
    if (!match)
        return false;
    for (size_t i = end; i + 3 <= len; i++) {
        if (strncasecmp(range + i, "q=0", 3) == 0) {
            size_t digits = strspn(range + i + 3, ".0");
            return i + 3 + digits < len && range[i + 3 + digits] >= '1' && range[i + 3 + digits] <= '9';
        }
    }
    return true;
}

static bool accept_takes(const char *accept, const char *type)
{
    while (accept && *accept) {
        accept += strspn(accept, " \t,");
        size_t len = strcspn(accept, ",");
        if (len > 0 && range_takes(accept, len, type))
            return true;
        accept += len;
    }
    return false;
}

/* Returns true for "localhost" and IP addresses. Refusing other names blocks DNS rebinding: a site whose name
 * resolves to this machine sends its own name as Host. */
static bool host_is_local(const char *host)
{
    char name[64];
    size_t len = strcspn(host, ":");
    if (*host == '[') {
        host++;
        len = strcspn(host, "]");
    }
    if (len >= sizeof(name))
        return false;
    memcpy(name, host, len);
    name[len] = 0;
    struct in_addr v4;
    struct in6_addr v6;
    return strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, &v4) == 1 ||
           inet_pton(AF_INET6, name, &v6) == 1;
}

/* Returns true if the headers state that the page is from another origin. Programs other than browsers send
 * neither Sec-Fetch-Site nor Origin and are allowed. */
static bool other_origin(struct MHD_Connection *c)
{
    const char *site = header(c, "Sec-Fetch-Site"), *origin = header(c, "Origin"), *host = header(c, "Host");
    if (site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0)
        return true;
    const char *rest = origin ? strstr(origin, "://") : NULL;
    return origin && (!rest || !host || strcasecmp(rest + 3, host) != 0);
}

/* Returns true only if the headers state our own origin; a request without these headers does not qualify. */
static bool same_origin(struct MHD_Connection *c)
{
    const char *site = header(c, "Sec-Fetch-Site"), *origin = header(c, "Origin");
    return ((site && strcmp(site, "same-origin") == 0) || origin) && !other_origin(c);
}

static bool is_reading(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

static int check_origin(struct mf_exchange *x, const char *method)
{
    struct mf_response *p = &x->request->response;
    const char *host = header(x->connection, "Host");
    if (!x->http->gate && host && !host_is_local(host))
        return mf_refuse_at(p, 421, "header.Host", "host",
                            "Host: %.60s is neither localhost nor an IP address; use one of these", host);
    if (!is_reading(method) && other_origin(x->connection))
        return mf_refuse_at(p, 403, "header.Origin", "origin",
                            "pages of another origin cannot change this farm");
    return 0;
}

static int find_route(struct mf_exchange *x, const char *method, const char *url)
{
    struct mf_request *r = x->request;
    struct mf_path_parts parts = {0};
    char allow[64];
    size_t n;

    r->route = mf_route_find(method, url, &parts, allow, sizeof(allow));
    if (r->route) {
        memcpy(r->path_id, parts.ids, sizeof(parts.ids));
        memcpy(r->path_name, parts.name, sizeof(parts.name));
        x->route = (int)(r->route - mf_routes(&n));
        return 0;
    }
    if (!*allow)
        return mf_refuse(&r->response, 404, "no such path; /api/openapi.json lists all paths");
    (void)mf_refuse(&r->response, 405, "%.16s is not allowed for this path; use %s", method, allow);
    (void)mf_respond_header(&r->response, "Allow", "%s", allow);
    return -EINVAL;
}

static int check_token(struct mf_exchange *x, const char *method)
{
    struct mf_http *h = x->http;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    struct mf_gate_request v = {
        .from = info ? info->client_addr : NULL,
        .authorization = header(x->connection, "Authorization"),
        .needs = x->request->route->role,
    };
    if (!h->gate)
        return 0;
    /* Browsers add the cookie to requests of any page, so requests that change state are accepted with a
     * cookie only from our own origin. */
    if (!v.authorization && (is_reading(method) || same_origin(x->connection)))
        v.cookie = MHD_lookup_connection_value(x->connection, MHD_COOKIE_KIND, MF_GATE_COOKIE);
    int r = mf_gate_check(h->gate, &v, &x->request->response, &x->token);
    x->request->token = x->token;
    return r;
}

int mf_api_session(void *http, struct mf_request *r)
{
    struct mf_http *h = http;
    const struct mf_exchange *x = r->exchange;
    const char *token = mf_gate_bearer(header(x->connection, "Authorization"));
    if (!h->gate)
        return mf_respond_state(&r->response, "no token needed");
    if (!token)
        return mf_refuse_at(&r->response, 400, "header.Authorization", "missing",
                            "expected the header Authorization: Bearer TOKEN");
    int e = mf_respond_state(&r->response, "signed in");
    return e < 0 ? e
                 : mf_respond_header(&r->response, "Set-Cookie",
                                     MF_GATE_COOKIE "=%s; Path=/; HttpOnly; SameSite=Strict%s", token,
                                     h->tls ? "; Secure" : "");
}

int mf_api_session_end(void *http, struct mf_request *r)
{
    (void)http;
    int e = mf_respond_state(&r->response, "signed out");
    return e < 0 ? e
                 : mf_respond_header(&r->response, "Set-Cookie",
                                     MF_GATE_COOKIE "=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
}

static int copy_header(struct mf_exchange *x, const char *name, char *dst, size_t cap)
{
    const char *value = header(x->connection, name);
    if (value && mf_copy(dst, cap, value) < 0) {
        char at[64];
        mf_format(at, sizeof(at), "header.%s", name);
        return mf_refuse_at(&x->request->response, 400, at, "too_long",
                            "%s: too long; the limit is %zu bytes", name, cap - 1);
    }
    return 0;
}

static int check_headers(struct mf_exchange *x)
{
    struct mf_request *r = x->request;
    const char *accept = header(x->connection, "Accept");
    int e;

    if (accept && *accept && !accept_takes(accept, r->route->produces))
        return mf_refuse_at(&r->response, 406, "header.Accept", "not_acceptable",
                            "Accept: this path produces only %s", r->route->produces);
    if ((e = copy_header(x, "Content-Type", r->content_type, sizeof(r->content_type))) < 0 ||
        (e = copy_header(x, "Idempotency-Key", r->idempotency_key, sizeof(r->idempotency_key))) < 0 ||
        (e = copy_header(x, "Last-Event-ID", r->last_event_id, sizeof(r->last_event_id))) < 0)
        return e;
    /* If an If-None-Match list does not fit, the client only misses a 304 response */
    const char *tags = header(x->connection, "If-None-Match");
    if (tags)
        (void)mf_copy(r->if_none_match, sizeof(r->if_none_match), tags);
    return 0;
}

/* Checks the headers of the body. *ret_len: length of the body, or -1 if the headers do not state it. */
static int check_body(struct mf_exchange *x, int64_t *ret_len)
{
    struct mf_request *r = x->request;
    const char *length = header(x->connection, "Content-Length");
    bool chunked = header(x->connection, "Transfer-Encoding") != NULL;

    *ret_len = length || chunked ? -1 : 0;
    if (length && mf_parse_i64(length, 0, INT64_MAX, ret_len) < 0)
        return mf_refuse_at(&r->response, 400, "header.Content-Length", "number",
                            "Content-Length: expected a number");
    if (*ret_len == 0 && !r->route->consumes[0])
        return 0;
    if (!r->route->consumes[0])
        return mf_refuse_at(&r->response, 415, "body", "unexpected", "this path accepts no body");
    bool known = false;
    for (int i = 0; r->route->consumes[i]; i++)
        known |= media_type_is(r->content_type, r->route->consumes[i]);
    if (!known)
        return mf_refuse_at(&r->response, 415, "header.Content-Type", "media_type",
                            "Content-Type: this path accepts %s%s%s", r->route->consumes[0],
                            r->route->consumes[1] ? " or " : "",
                            r->route->consumes[1] ? r->route->consumes[1] : "");
    if (*ret_len > (int64_t)MF_REQUEST_BODY_MAX)
        return mf_refuse_at(&r->response, 413, "body", "too_large",
                            "the body has %lld bytes, the limit is %u: split it", (long long)*ret_len,
                            MF_REQUEST_BODY_MAX);
    return 0;
}

/* Query texts appear in JSON responses, which must be valid UTF-8. */
static bool is_utf8(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + len;
    while (p < end) {
        int n = *p < 0x80             ? 0
                : (*p & 0xe0) == 0xc0 ? 1
                : (*p & 0xf0) == 0xe0 ? 2
                : (*p & 0xf8) == 0xf0 ? 3
                                      : -1;
        if (n < 0 || end - p <= n || *p == 0 || *p == 0xc0 || *p == 0xc1)
            return false;
        for (int i = 1; i <= n; i++)
            if ((p[i] & 0xc0) != 0x80)
                return false;
        p += n + 1;
    }
    return true;
}

static enum MHD_Result take_query(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                  const char *value, size_t value_len)
{
    struct mf_request *r = cls;
    (void)kind;
    if (r->response.status)
        return MHD_NO;
    if (r->n_query == MF_REQUEST_QUERY_MAX || name_len > 64 || value_len > 4096) {
        (void)mf_refuse_at(&r->response, 400, "query", "too_long",
                           "expected at most %d parameters, names up to 64 and values up to 4096 bytes",
                           MF_REQUEST_QUERY_MAX);
        return MHD_NO;
    }
    if (!is_utf8(name, name_len) || !is_utf8(value ? value : "", value_len)) {
        (void)mf_refuse_at(&r->response, 400, "query", "utf8", "a parameter is not valid UTF-8");
        return MHD_NO;
    }
    struct mf_query_item *q = &r->query[r->n_query];
    q->name = strndup(name, name_len);
    q->value = strndup(value ? value : "", value_len);
    r->n_query++;
    if (!q->name || !q->value) {
        (void)mf_refuse_errno(&r->response, -ENOMEM, "read the query");
        return MHD_NO;
    }
    return MHD_YES;
}

static int read_query(struct mf_exchange *x)
{
    (void)MHD_get_connection_values_n(x->connection, MHD_GET_ARGUMENT_KIND, take_query, x->request);
    if (x->request->response.status)
        return -EINVAL;
    return mf_route_check_query(x->request);
}

/* ---- the exchange ---- */

static struct mf_exchange *exchange_new(struct mf_http *h, struct MHD_Connection *connection)
{
    struct mf_exchange *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    x->request = mf_request_new();
    if (!x->request) {
        free(x);
        return NULL;
    }
    x->http = h;
    x->connection = connection;
    x->route = -1;
    x->start_ms = mf_now_ms();
    x->request->exchange = x;
    x->next = h->exchanges;
    if (x->next)
        x->next->prev = x;
    h->exchanges = x;
    return x;
}

static void release_body(struct mf_exchange *x)
{
    x->http->body_bytes -= x->body_bytes;
    x->body_bytes = 0;
}

static void exchange_free(struct mf_exchange *x)
{
    struct mf_http *h = x->http;
    if (x->stream)
        mf_stream_free(x);
    release_body(x);
    (void)mf_request_free(x->request);
    if (x->next)
        x->next->prev = x->prev;
    if (x->prev)
        x->prev->next = x->next;
    else
        h->exchanges = x->next;
    free(x);
}

void mf_exchange_completed(void *http, struct MHD_Connection *connection, void **state,
                           enum MHD_RequestTerminationCode code)
{
    struct mf_exchange *x = *state;
    (void)http;
    (void)code;
    mf_connection_waits(connection, MF_WAITS_FOR_REQUEST, 0);
    if (!x)
        return;
    *state = NULL;
    if (x->state != MF_EXCHANGE_FORWARDED) {
        exchange_free(x);
        return;
    }
    /* Happens only during shutdown. mf_exchange_return frees the exchange and its request. */
    x->connection = NULL;
}

int mf_exchange_send(struct mf_exchange *x)
{
    struct mf_http *h = x->http;
    enum mf_owner owner = x->request->route->hops[x->request->hop].owner;
    int r = mf_bus_send_pointer(owner == MF_OWNER_WRITER ? h->requests : h->reads, x->request);
    if (r < 0)
        return r;
    x->request = NULL;
    x->state = MF_EXCHANGE_FORWARDED;
    h->n_forwarded++;
    return 0;
}

/* Runs the request's hops on this thread and forwards it at the first hop of another thread. */
static void exchange_advance(struct mf_exchange *x)
{
    struct mf_request *r = x->request;
    while (r->response.status == 0) {
        if (r->route->hops[r->hop].owner == MF_OWNER_HTTP) {
            (void)mf_request_run(r, x->http);
            continue;
        }
        if (x->http->stopping || mf_exchange_send(x) < 0) {
            (void)mf_refuse(&r->response, 503,
                            "too many requests are waiting, or the server is shutting down; try again");
            (void)mf_respond_header(&r->response, "Retry-After", "1");
            break;
        }
        mf_connection_waits(x->connection, MF_WAITS_FOR_FARM, 0);
        MHD_suspend_connection(x->connection);
        return;
    }
    x->state = MF_EXCHANGE_READY;
}

void mf_exchange_return(struct mf_http *h, struct mf_request *r)
{
    struct mf_exchange *x = r->exchange;
    h->n_forwarded--;
    x->request = r;
    if (!x->connection) {
        x->state = MF_EXCHANGE_ANSWERED;
        exchange_free(x);
        return;
    }
    if (x->stream) {
        x->state = MF_EXCHANGE_ANSWERED;
        mf_stream_caught_up(x);
        return;
    }
    /* On resume, MHD calls the access handler again, which continues with the hops of this thread. If the
     * next hop is on another thread, send the request there without waking the connection. */
    x->state = MF_EXCHANGE_READY;
    if (r->response.status == 0 && r->route->hops[r->hop].owner != MF_OWNER_HTTP && !h->stopping &&
        mf_exchange_send(x) == 0)
        return;
    MHD_resume_connection(x->connection);
}

/* ---- response ---- */

static void add_headers(struct MHD_Response *m, const struct mf_response *p, bool page)
{
    static const char *const security[][2] = {
        {"X-Content-Type-Options", "nosniff"},
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
         " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(security); i++)
        (void)MHD_add_response_header(m, security[i][0], security[i][1]);
    (void)MHD_add_response_header(m, "Cache-Control", page || p->etag[0] ? "no-cache" : "no-store");
    if (p->status != 304 && p->content_type)
        (void)MHD_add_response_header(m, "Content-Type", p->content_type);
    if (p->etag[0])
        (void)MHD_add_response_header(m, "ETag", p->etag);
    for (size_t i = 0; i < MF_ARRAY_LEN(p->headers) && p->headers[i][0][0]; i++)
        (void)MHD_add_response_header(m, p->headers[i][0], p->headers[i][1]);
}

/* *ret_len: length of the body; 0 for a stream */
static struct MHD_Response *response_make(struct mf_exchange *x, size_t *ret_len)
{
    struct mf_response *p = &x->request->response;
    *ret_len = 0;
    if (p->status == 200 && p->etag[0] && mf_request_etag_matches(x->request, p->etag)) {
        p->status = 304;
        return MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    }
    if (p->status == 200 && p->stream)
        return mf_stream_open(x);
    if (p->fd >= 0) {
        off_t size = lseek(p->fd, 0, SEEK_END);
        struct MHD_Response *m = size < 0 ? NULL : MHD_create_response_from_fd64((uint64_t)size, p->fd);
        if (m)
            p->fd = -1;
        *ret_len = (size_t)MF_MAX(size, 0);
        return m;
    }
    size_t len = *ret_len = p->body.len;
    if (len == 0)
        return MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    char *body = mf_buf_take(&p->body);
    struct MHD_Response *m = body ? MHD_create_response_from_buffer(len, body, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!m)
        free(body);
    return m;
}

static enum MHD_Result exchange_answer(struct mf_exchange *x)
{
    bool page = x->request->route && strncmp(x->request->route->path, "/api", 4) != 0;
    size_t len;
    struct MHD_Response *m = response_make(x, &len);
    mf_connection_waits(x->connection, x->stream ? MF_WAITS_FOR_FARM : MF_WAITS_FOR_RESPONSE, len);
    x->state = MF_EXCHANGE_ANSWERED;
    mf_buf_release(&x->request->body);
    release_body(x);
    if (!m)
        return MHD_NO;
    add_headers(m, &x->request->response, page);
    if (x->closes)
        (void)MHD_add_response_header(m, "Connection", "close");
    int status = x->request->response.status;
    enum MHD_Result r = MHD_queue_response(x->connection, (unsigned)status, m);
    MHD_destroy_response(m);
    mf_http_count(&x->http->counters, x->route, status, (double)(mf_now_ms() - x->start_ms) / 1e3);
    return r;
}

/* ---- libmicrohttpd callbacks ---- */

/* Called when the headers are complete. MHD_NO closes the connection. */
static enum MHD_Result exchange_begin(struct mf_http *h, struct MHD_Connection *connection, const char *url,
                                      const char *method, const char *version, void **state)
{
    struct mf_exchange *x = exchange_new(h, connection);
    int64_t len = 0;
    if (!x)
        return MHD_NO;
    *state = x;
    mf_connection_waits(connection, MF_WAITS_FOR_BODY, 0);
    if (mf_framing_check(connection, version, &x->request->response) < 0) {
        x->refused = x->closes = true;
        return exchange_answer(x);
    }
    x->refused = check_origin(x, method) < 0 || find_route(x, method, url) < 0 ||
                 check_token(x, method) < 0 || check_headers(x) < 0 || check_body(x, &len) < 0 ||
                 read_query(x) < 0;
    if (x->refused && len > (int64_t)MF_HTTP_DISCARD_MAX)
        return exchange_answer(x);
    /* Do not read the body of clients that are unauthenticated or over the rate limit. */
    int status = x->request->response.status;
    if (x->refused && (status == 401 || status == 429))
        return exchange_answer(x);
    const char *expect = header(connection, "Expect");
    if (x->refused && expect && strcasecmp(expect, "100-continue") == 0)
        return exchange_answer(x);
    return MHD_YES;
}

static enum MHD_Result exchange_body(struct mf_exchange *x, const char *data, size_t *len)
{
    struct mf_http *h = x->http;
    struct mf_response *p = &x->request->response;
    x->received += *len;
    mf_connection_waits(x->connection, MF_WAITS_FOR_BODY, x->received);
    if (!x->refused && h->body_bytes + *len > MF_HTTP_BODIES_MAX) {
        (void)mf_refuse(p, 503, "too many large requests in flight; try again");
        (void)mf_respond_header(p, "Retry-After", "1");
        x->refused = true;
    }
    if (!x->refused && mf_buf_add(&x->request->body, data, *len) < 0) {
        (void)mf_refuse_at(p, 413, "body", "too_large", "the body exceeds %u bytes: split it",
                           MF_REQUEST_BODY_MAX);
        x->refused = true;
    }
    if (x->refused) {
        mf_buf_release(&x->request->body);
        release_body(x);
        x->discarded += *len;
    } else {
        x->body_bytes += *len;
        h->body_bytes += *len;
    }
    *len = 0;
    return x->discarded > MF_HTTP_DISCARD_MAX ? MHD_NO : MHD_YES;
}

enum MHD_Result mf_exchange_handle(void *http, struct MHD_Connection *connection, const char *url,
                                   const char *method, const char *version, const char *data, size_t *len,
                                   void **state)
{
    struct mf_exchange *x = *state;
    if (!x)
        return exchange_begin(http, connection, url, method, version, state);
    if (*len > 0 && x->state == MF_EXCHANGE_READING)
        return exchange_body(x, data, len);
    if (!x->refused && x->request)
        exchange_advance(x);
    if (x->state == MF_EXCHANGE_FORWARDED)
        return MHD_YES;
    return exchange_answer(x);
}
