/* The HTTP thread: libmicrohttpd on its epoll descriptor, replies and events from the other threads, all in
 * one poll. It owns every connection; a request that needs the store travels to the thread that owns the data
 * (server/farm/bus.h) while its connection is suspended.
 *
 * Bounds: connections, event streams, bytes of bodies in flight, requests in flight (by the sockets' high-water
 * marks), and an idle time per connection. What passes one is refused by 503 with Retry-After, or closed.
 *
 * Beyond loopback every route that has a role (server/api/routes.h) asks for a token of it (server/http/gate.h), over TLS. Without tokens, a Host that is neither
 * localhost nor an address is refused, and a change asked for by another origin in any case, so that no web page a person
 * visits can reach the farm. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/cleanup.h"

struct mf_http;

struct mf_http_options {
    void *zmq;           /* context of the bus */
    const char *address; /* "127.0.0.1" or "::1"; others only with tokens, and with TLS or plain */
    int port;            /* 0: any free one */
    int connections;     /* most at a time; 0: 512 */
    int streams;         /* of which event streams; 0: 128 */
    int idle_s;          /* silence after which a connection is closed; 0: 30 */
    int beat_ms;         /* comment sent on a silent event stream; 0: 15,000 */
    const char *tokens;  /* database that has them; NULL: whoever reaches the port may do everything */
    int64_t rate;        /* of requests, with tokens: server/http/gate.h */
    const char *certificate, *key; /* PEM texts, for TLS; NULL: plain HTTP. Used by mf_http_start only */
    bool plain;                    /* plain HTTP beyond loopback too: TLS ends in front of it */
};

/* Binds, starts the thread. -EPERM: not a loopback address, without tokens or TLS; -EADDRINUSE and the like; why says what to do. */
int mf_http_start(const struct mf_http_options *options, struct mf_http **ret, char *why, size_t why_cap);
int mf_http_port(const struct mf_http *h);
/* Refuses what is under way by 503, ends the streams, joins the thread. The other threads must still answer or
 * already be gone: it waits for requests in flight at most wait_ms. NULL is fine. */
struct mf_http *mf_http_stop(struct mf_http *h, int wait_ms);
