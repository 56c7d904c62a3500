/* HTTP client for one moefarmd on top of libcurl: one request at a time.
 *
 * Every reply has a size limit and every request a time limit. A client belongs to one thread. A stream
 * callback must not use the client of its own stream. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/net/sse.h"

/* maximum size of a reply in bytes, enough for the table of a large fleet */
#define MF_HTTP_REPLY_MAX (256u << 20)
/* maximum size of the headers of a reply in bytes; below the length at which libcurl refuses a header line */
#define MF_HTTP_HEADERS_MAX (64u << 10)
#define MF_HTTP_CONNECT_MS  5000L
#define MF_HTTP_REQUEST_MS  120000L
#define MF_HTTP_SILENCE_S   60L /* a stream without data for this long is considered dead */

struct mf_http;

struct mf_http_reply {
    long status; /* HTTP status */
    char content_type[96];
    int64_t left_out; /* header Moefarm-Left-Out; -1 if absent */
    char release[96]; /* header Moefarm-Release, "3 NAME"; "" if absent */
    char etag[96];    /* header ETag; "" if absent */
    struct mf_buf body;
};
void mf_http_reply_init(struct mf_http_reply *r);
void mf_http_reply_release(struct mf_http_reply *r);

struct mf_http_request {
    const char *method;          /* NULL: GET */
    const char *path;            /* percent-encoded path from the first '/' on, including the query */
    const char *content_type;    /* content type of the body; NULL: application/json */
    const char *idempotency_key; /* NULL: none */
    /* quoted ETag; NULL: none. The reply has status 304 if this ETag is still current */
    const char *if_none_match;
    const char *body;
    size_t body_len;
};

struct mf_http_access {
    const char *token; /* access token, copied; "": none */
    /* CA certificate (PEM); "": the system's certificates. The string must outlive the client */
    const char *ca;
    long request_ms; /* time limit; 0: MF_HTTP_REQUEST_MS */
};
/* Creates a client. url: "http://host:port" or "https://host:port". -EINVAL: invalid URL or another scheme;
 * -EPERM: the token would be sent unencrypted to another host; -ELIBACC: libcurl.so.4 is missing; -ENOMEM. */
int mf_http_new(const char *url, const struct mf_http_access *access, struct mf_http **ret);
struct mf_http *mf_http_free(struct mf_http *h);
MF_DEFINE_CLEANUP(struct mf_http *, mf_http_free);

/* Sends a request and waits for the reply. Returns 0 on any HTTP status. -ECONNREFUSED: no connection;
 * -ETIMEDOUT: the time limit has passed; -EMSGSIZE: the reply or its headers are over the size limit;
 * -EIO: the connection was lost. mf_http_error() returns the message. */
int mf_http_send(struct mf_http *h, const struct mf_http_request *q, struct mf_http_reply *ret);

/* Reads an event stream until the stream ends. If sse->last_id is set, starts after the event with this id.
 * Once connected, calls tick about once a second and after each received block. If tick or the event callback
 * returns a negative value, the stream ends and this value is returned. Returns 0 if the server ended the
 * stream; *ret_status is then the HTTP status. Other errors as for mf_http_send. */
typedef int (*mf_http_tick_fn)(void *context);
int mf_http_stream(struct mf_http *h, const char *path, struct mf_sse *sse, mf_http_tick_fn tick,
                   long *ret_status);

/* Message of the last failure, valid until the next request. */
const char *mf_http_error(const struct mf_http *h);

/* Appends "?name=value" or "&name=value" with the value percent-encoded. Appends nothing if the value is
 * NULL. */
void mf_http_add_query(struct mf_buf *path, const char *name, const char *value);
