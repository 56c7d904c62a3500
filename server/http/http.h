/* The HTTP thread. One poll loop serves libmicrohttpd (through its epoll descriptor), replies and events from
 * the other threads. The thread owns every connection. While a request is with another thread
 * (server/farm/bus.h), its connection is suspended.
 *
 * Limits: connections, event streams, bytes of bodies in flight, requests in flight (by the sockets'
 * high-water marks), an idle time per connection, and a total time for the headers, the body and the
 * response. A request over a limit gets 503 with Retry-After, or its connection is closed.
 *
 * Non-loopback addresses require tokens, over TLS: a route with a role (server/api/routes.h) then needs a
 * token of that role (server/http/gate.h). Two checks keep web pages of other sites out: without tokens, a
 * Host that is neither localhost nor an IP address is refused; cross-origin changes are always refused. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/cleanup.h"

struct mf_http;

struct mf_http_options {
    void *zmq; /* context of the inproc sockets */
    /* default: "127.0.0.1". A non-loopback address requires tokens, and either TLS or `plain` */
    const char *address;
    int port;           /* 0: any free port */
    int connections;    /* maximum open connections; 0: 512 */
    int streams;        /* maximum event streams, which count as connections; 0: 128 */
    int idle_s;         /* idle time before a connection is closed, in s; 0: 30 */
    int header_ms;      /* time for the headers of a connection's first request, in ms; 0: 10000 */
    int body_ms;        /* time for a body or a response, in ms, plus 1 s per 64 KiB; 0: 30000 */
    int spare_ms;       /* wait after which a connection is closed if room is short, in ms; 0: 2000 */
    int keepalive_ms;   /* interval of comments on a silent event stream, in ms; 0: 15000 */
    const char *tokens; /* database with the tokens; NULL: every client may do everything */
    int64_t rate;       /* requests per second per token or address; see server/http/gate.h */
    /* TLS certificate and key (PEM); NULL: plain HTTP. Read by mf_http_start only */
    const char *certificate, *key;
    bool plain; /* allow plain HTTP on non-loopback addresses, because a proxy terminates TLS */
};

/* Binds the port and starts the thread. Returns -EPERM for a non-loopback address without tokens or TLS, or
 * another -errno, such as -EADDRINUSE. On an error, `why` tells the user how to correct it. */
int mf_http_start(const struct mf_http_options *options, struct mf_http **ret, char *why, size_t why_cap);
int mf_http_port(const struct mf_http *h);
/* Answers requests in progress with 503, ends the streams and joins the thread. Waits at most wait_ms for
 * requests that other threads hold; these threads must still answer, or have exited. h may be NULL. */
struct mf_http *mf_http_stop(struct mf_http *h, int wait_ms);
