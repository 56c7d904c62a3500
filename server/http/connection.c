#include "server/http/http_private.h"

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/http/client_address.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CHECK_MS 50
/* A client must send a body, and accept a response, at least this fast: 64 KiB per second */
#define BYTES_PER_MS 64

struct mf_connection {
    struct mf_http *http;
    int fd;
    uint64_t client; /* hash of the address; see client_address.h */
    enum mf_waiting waits_for;
    int64_t since_ms, deadline_ms; /* begin and deadline of the wait; INT64_MAX: no deadline */
    bool bad_target;               /* of the last request; see mf_connection_target_is_bad */
    bool answered;                 /* a request was answered on this connection */
    bool closing;                  /* shut down; libmicrohttpd frees it soon */
    struct mf_connection *prev, *next;
};

static struct mf_connection *connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* Number of open connections of one client. */
static int count_of(const struct mf_http *h, uint64_t client)
{
    int n = 0;
    for (const struct mf_connection *c = h->connections; c; c = c->next)
        n += c->client == client && !c->closing;
    return n;
}

/* ---- callbacks of libmicrohttpd ---- */

enum MHD_Result mf_connection_admit(void *http, const struct sockaddr *from, socklen_t len)
{
    struct mf_http *h = http;
    (void)len;
    if (!h->gate || count_of(h, mf_client_hash(from, h->seed)) < h->options.connections / 2)
        return MHD_YES;
    log_debug("http: closed a new connection: its address has %d connections already",
              h->options.connections / 2);
    return MHD_NO;
}

static void connection_add(struct mf_http *h, struct MHD_Connection *connection, void **socket_context)
{
    struct mf_connection *c = calloc(1, sizeof(*c));
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *from =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (!c)
        return;
    c->http = h;
    c->fd = fd ? fd->connect_fd : -1;
    c->client = mf_client_hash(from ? from->client_addr : NULL, h->seed);
    c->since_ms = mf_now_ms();
    c->deadline_ms = c->since_ms + h->options.header_ms;
    c->next = h->connections;
    if (c->next)
        c->next->prev = c;
    h->connections = c;
    h->n_connections++;
    *socket_context = c;
}

static void connection_remove(struct mf_connection *c)
{
    if (c->next)
        c->next->prev = c->prev;
    if (c->prev)
        c->prev->next = c->next;
    else
        c->http->connections = c->next;
    c->http->n_connections--;
    free(c);
}

void mf_connection_notify(void *http, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        connection_add(http, connection, socket_context);
    } else if (*socket_context) {
        connection_remove(*socket_context);
        *socket_context = NULL;
    }
}

void *mf_connection_see_target(void *http, const char *target, struct MHD_Connection *connection)
{
    struct mf_connection *c = connection_of(connection);
    (void)http;
    if (!c)
        return NULL;
    /* A zero byte would end the path; in the query it is refused with the other bytes that are no UTF-8 */
    const char *query = target ? strchrnul(target, '?') : NULL, *zero = target ? strstr(target, "%00") : NULL;
    c->bad_target = !target || (zero && zero < query);
    for (const unsigned char *p = (const unsigned char *)target; p && *p; p++)
        c->bad_target |= *p <= ' ' || *p == 0x7f;
    return NULL;
}

bool mf_connection_target_is_bad(struct MHD_Connection *connection)
{
    const struct mf_connection *c = connection_of(connection);
    return !c || c->bad_target;
}

/* ---- deadlines ---- */

/* Returns how long a connection may wait. n_bytes: bytes that the client has sent or receives. */
static int64_t allowance_ms(const struct mf_connection *c, enum mf_waiting waits_for, size_t n_bytes)
{
    const struct mf_http_options *o = &c->http->options;
    switch (waits_for) {
    case MF_WAITS_FOR_REQUEST:
        /* libmicrohttpd closes a connection that is silent for idle_s; its next request has header_ms more */
        return (int64_t)o->idle_s * 1000 + o->header_ms;
    case MF_WAITS_FOR_BODY:
    case MF_WAITS_FOR_RESPONSE:
        return o->body_ms + (int64_t)(n_bytes / BYTES_PER_MS);
    case MF_WAITS_FOR_FARM:
        break;
    }
    return INT64_MAX;
}

void mf_connection_waits(struct MHD_Connection *connection, enum mf_waiting waits_for, size_t n_bytes)
{
    struct mf_connection *c = connection_of(connection);
    if (!c)
        return;
    if (c->waits_for != waits_for)
        c->since_ms = mf_now_ms();
    c->waits_for = waits_for;
    c->answered |= waits_for == MF_WAITS_FOR_RESPONSE;
    int64_t more = allowance_ms(c, waits_for, n_bytes);
    c->deadline_ms = more == INT64_MAX ? more : c->since_ms + more;
}

/* libmicrohttpd closes a connection whose socket has been shut down. */
static void connection_close(struct mf_connection *c, const char *why)
{
    log_debug("http: closing a connection: %s", why);
    c->closing = true;
    (void)shutdown(c->fd, SHUT_RDWR);
}

/* Connections that are kept free of the first n, so that new clients find room. */
static int spare(int n)
{
    return MF_MAX(1, n / 32);
}

static bool is_crowded(const struct mf_http *h, const struct mf_connection *c, int n_open)
{
    int all = h->options.connections, share = all / 2;
    if (n_open > all - spare(all))
        return true;
    return h->gate && n_open > share - spare(share) && count_of(h, c->client) > share - spare(share);
}

/* True if c should be closed before d: clients that never completed a request first, then the longest wait.
 */
static bool is_before(const struct mf_connection *c, const struct mf_connection *d)
{
    return c->answered != d->answered ? !c->answered : c->since_ms < d->since_ms;
}

/* Finds the connection to close where connections are short. Only connections that have waited for a request
 * for spare_ms count, so that a flood of new connections cannot push out each other or clients at work. */
static struct mf_connection *find_spare(struct mf_http *h, int64_t now)
{
    struct mf_connection *best = NULL;
    int n_open = 0;
    for (const struct mf_connection *c = h->connections; c; c = c->next)
        n_open += !c->closing;
    for (struct mf_connection *c = h->connections; c; c = c->next) {
        if (c->closing || c->waits_for != MF_WAITS_FOR_REQUEST || now - c->since_ms < h->options.spare_ms)
            continue;
        if ((!best || is_before(c, best)) && is_crowded(h, c, n_open))
            best = c;
    }
    return best;
}

void mf_connections_check(struct mf_http *h)
{
    int64_t now = mf_now_ms();
    if (now - h->connections_ms < CHECK_MS)
        return;
    h->connections_ms = now;
    for (struct mf_connection *c = h->connections; c; c = c->next)
        if (!c->closing && now > c->deadline_ms)
            connection_close(c, c->waits_for == MF_WAITS_FOR_REQUEST ? "no request in time"
                                : c->waits_for == MF_WAITS_FOR_BODY  ? "the body came too slowly"
                                                                    : "the response was accepted too slowly");
    if (h->n_connections <= (h->gate ? h->options.connections / 4 : h->options.connections / 2))
        return;
    for (struct mf_connection *c; (c = find_spare(h, now));)
        connection_close(c, "room for new clients");
}
