/* What http.c (the thread), exchange.c (one request) and stream.c (event streams) share. All of it belongs to
 * the HTTP thread.
 *
 * An exchange is one request on one connection:
 *
 *   READING ─body complete─► AWAY ─last hop back─► READY ─► ANSWERED ─► freed when the connection says so
 *      └───────refused───────────────────────────────┘
 *
 * AWAY: the request is with another thread and the connection is suspended, so MHD neither times it out nor
 * frees it. A stream's exchange is ANSWERED and may go AWAY again to read what the ring has lost. */
#pragma once

#include <microhttpd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/api/routes.h"
#include "server/http/events.h"
#include "server/http/gate.h"
#include "server/http/http.h"
#include "server/http/metrics.h"
#include "server/http/request.h"

/* Bodies in flight together; one alone may have MF_REQUEST_BODY_MAX. */
#define MF_HTTP_BODIES_MAX (64u << 20)
/* A refused body is read to its end up to this, so that the client gets to see the answer. */
#define MF_HTTP_SWALLOW_MAX (64u << 20)

enum mf_exchange_state { MF_EXCHANGE_READING, MF_EXCHANGE_AWAY, MF_EXCHANGE_READY, MF_EXCHANGE_ANSWERED };

struct mf_stream {
    int64_t batch;       /* 0: the whole farm */
    int64_t cursor;      /* events up to this id were sent or do not concern it */
    bool broken;         /* ends at the next read; the client comes back with its last id */
    bool idle;           /* suspended, waiting for an event or the beat */
    int64_t sent_ms;     /* when it last had something to send */
    struct mf_buf chunk; /* being sent */
    size_t at;           /* bytes of it that are gone */
};

struct mf_exchange {
    struct mf_http *http;
    struct MHD_Connection *connection;
    enum mf_exchange_state state;
    struct mf_request *request; /* NULL while AWAY */
    bool refused;               /* request->response is the refusal; the rest of the body is swallowed */
    size_t swallowed;
    size_t body_bytes; /* counted in http->body_bytes */
    int route;         /* index for the metrics; -1: none matched */
    int64_t token;     /* that let it in; 0: none */
    int64_t start_ms;
    struct mf_stream *stream; /* NULL for all else */
    struct mf_exchange *prev, *next;
};

struct mf_http {
    struct mf_http_options options;
    int port, listen_fd, epoll_fd, stop_fd;
    void *requests, *reads, *replies, *events_in;
    struct MHD_Daemon *daemon;
    char unopened[256]; /* what libmicrohttpd said first while it was started */
    pthread_t thread;
    bool started, stopping;
    int stop_wait_ms;
    struct mf_exchange *exchanges; /* all that live */
    int n_away, n_streams;
    size_t body_bytes;
    struct mf_events *ring;
    bool tls;
    struct mf_gate *gate; /* NULL: no tokens are needed */
    int64_t gate_ms;      /* when the streams' tokens were looked at */
    struct mf_http_counters counters;
};

/* exchange.c */
enum MHD_Result mf_exchange_handle(void *http, struct MHD_Connection *connection, const char *url,
                                   const char *method, const char *version, const char *data, size_t *len,
                                   void **state);
void mf_exchange_completed(void *http, struct MHD_Connection *connection, void **state,
                           enum MHD_RequestTerminationCode code);
/* A request came back from another thread. */
void mf_exchange_return(struct mf_http *h, struct mf_request *r);
/* Sends x's request to the owner of its next hop and marks it AWAY; the caller suspends the connection. */
int mf_exchange_send(struct mf_exchange *x);

/* stream.c */
/* The response of an accepted stream; NULL when it cannot be made. The exchange's request gives its start. */
struct MHD_Response *mf_stream_open(struct mf_exchange *x);
void mf_stream_free(struct mf_exchange *x);
/* What the reader found of the events that x missed. */
void mf_stream_caught_up(struct mf_exchange *x);
/* Ends the streams whose token does not stand any more. */
void mf_streams_check(struct mf_http *h);
/* Wakes the streams that an event concerns; with beat, those that were silent for long too. */
void mf_streams_wake(struct mf_http *h, bool beat);
