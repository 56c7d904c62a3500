/* Shared by http.c (the thread), connection.c (deadlines), exchange.c (one request) and stream.c (event
 * streams). Used by the HTTP thread only.
 *
 * An exchange is one request on one connection:
 *
 *   READING ─body complete─► FORWARDED ─last hop returned─► READY ─► ANSWERED ─► freed when MHD completes it
 *      └───────refused────────────────────────────────────────┘
 *
 * FORWARDED: another thread holds the request. The connection is suspended, so MHD neither times it out nor
 * frees it. The exchange of a stream is ANSWERED; it becomes FORWARDED again to read events that the ring has
 * dropped. */
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

/* Total size of bodies in flight; the limit of one body is MF_REQUEST_BODY_MAX. */
#define MF_HTTP_BODIES_MAX (64u << 20)
/* A refused body of at most this size is read to its end, so that the client sees the response. */
#define MF_HTTP_DISCARD_MAX (64u << 20)

enum mf_exchange_state {
    MF_EXCHANGE_READING,
    MF_EXCHANGE_FORWARDED,
    MF_EXCHANGE_READY,
    MF_EXCHANGE_ANSWERED
};

/* What a connection waits for. Each wait has a deadline for all of it, because a client that sends single
 * bytes never reaches libmicrohttpd's idle timeout. */
enum mf_waiting {
    MF_WAITS_FOR_REQUEST,  /* the headers of a request; includes the TLS handshake */
    MF_WAITS_FOR_BODY,     /* the rest of the body */
    MF_WAITS_FOR_FARM,     /* another thread, or events of a stream; no deadline */
    MF_WAITS_FOR_RESPONSE, /* the client, which receives the response */
};

struct mf_connection;

struct mf_stream {
    int64_t batch;       /* 0: all batches */
    int64_t cursor;      /* events up to this id were sent or do not belong to the batch */
    bool broken;         /* the stream ends at the next read; the client reconnects with its last id */
    bool idle;           /* suspended until an event or the keepalive is due */
    int64_t sent_ms;     /* when data was last sent */
    struct mf_buf chunk; /* text being sent */
    size_t at;           /* bytes of the chunk already sent */
};

struct mf_exchange {
    struct mf_http *http;
    struct MHD_Connection *connection;
    enum mf_exchange_state state;
    struct mf_request *request; /* NULL while FORWARDED */
    bool closes;                /* the connection is closed after the response */
    bool refused;               /* request->response is the refusal, and the rest of the body is discarded */
    size_t discarded;
    size_t received;   /* bytes of the body, including discarded ones */
    size_t body_bytes; /* bytes of this body, included in http->body_bytes */
    int route;         /* index for the metrics; -1: no route matched */
    int64_t token;     /* id of the access token; 0: none */
    int64_t start_ms;
    struct mf_stream *stream; /* NULL unless this is an event stream */
    struct mf_exchange *prev, *next;
};

struct mf_http {
    struct mf_http_options options;
    int port, listen_fd, epoll_fd, stop_fd;
    void *requests, *reads, *replies, *events_in;
    struct MHD_Daemon *daemon;
    char start_error[256]; /* first message that libmicrohttpd logged during start */
    pthread_t thread;
    bool started, stopping;
    int stop_wait_ms;
    uint64_t seed;                     /* secret; hashes of addresses */
    struct mf_connection *connections; /* all connections */
    int n_connections;
    int64_t connections_ms;        /* time of the last check of the deadlines */
    struct mf_exchange *exchanges; /* all exchanges */
    int n_forwarded, n_streams;
    size_t body_bytes;
    struct mf_events *ring;
    bool tls;
    struct mf_gate *gate; /* NULL: no tokens needed */
    int64_t gate_ms;      /* time of the last check of the streams' tokens */
    struct mf_http_counters counters;
};

/* connection.c */
/* Refuses a connection of an address that has half of all connections already, if tokens are required. */
enum MHD_Result mf_connection_admit(void *http, const struct sockaddr *from, socklen_t len);
void mf_connection_notify(void *http, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code);
/* Begins a wait, or continues it with more bytes. n_bytes: length of the body received so far, or of the
 * response; 0 for other waits. */
void mf_connection_waits(struct MHD_Connection *connection, enum mf_waiting waits_for, size_t n_bytes);
/* Callback of libmicrohttpd: sees the target of a request before it is decoded. Returns NULL. */
void *mf_connection_see_target(void *http, const char *target, struct MHD_Connection *connection);
/* True if the target of the last request has a space, a control character or an encoded zero byte. */
bool mf_connection_target_is_bad(struct MHD_Connection *connection);
/* Closes the connections that are past their deadline. If connections are short, closes those that have
 * waited longest for a request. */
void mf_connections_check(struct mf_http *h);

/* framing.c */
/* Refuses a request that another HTTP implementation could read differently: with two lengths, an unclear
 * Host, or names and values that no header may have. libmicrohttpd 0.9.75 accepts these. Responds with 400
 * and returns -EINVAL; the caller then closes the connection. version: "HTTP/1.1" or "HTTP/1.0" */
int mf_framing_check(struct MHD_Connection *connection, const char *version, struct mf_response *p);

/* exchange.c */
enum MHD_Result mf_exchange_handle(void *http, struct MHD_Connection *connection, const char *url,
                                   const char *method, const char *version, const char *data, size_t *len,
                                   void **state);
void mf_exchange_completed(void *http, struct MHD_Connection *connection, void **state,
                           enum MHD_RequestTerminationCode code);
/* Handles a request that another thread has returned. */
void mf_exchange_return(struct mf_http *h, struct mf_request *r);
/* Sends x's request to the thread of its next hop and marks x FORWARDED. The caller suspends the connection.
 */
int mf_exchange_send(struct mf_exchange *x);

/* stream.c */
/* Returns the response of an accepted stream, starting at the request's cursor; NULL if out of memory. */
struct MHD_Response *mf_stream_open(struct mf_exchange *x);
void mf_stream_free(struct mf_exchange *x);
/* Adds the missed events that a reader has found, and resumes the connection. */
void mf_stream_caught_up(struct mf_exchange *x);
/* Ends the streams whose token has expired or was revoked. */
void mf_streams_check(struct mf_http *h);
/* Wakes idle streams that have new events; with keepalive, also streams that are silent for keepalive_ms. */
void mf_streams_wake(struct mf_http *h, bool keepalive);
