/* The HTTP client of the command line: one moefarmd, one request at a time, over libcurl.
 *
 * Every reply has a ceiling and every request a time limit. A client belongs to one thread; a callback of a
 * stream may use another client, not its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/net/sse.h"

#define MF_HTTP_REPLY_MAX  (256u << 20) /* a table of a whole fleet */
#define MF_HTTP_CONNECT_MS 5000L
#define MF_HTTP_REQUEST_MS 120000L
#define MF_HTTP_SILENCE_S  60L /* a stream that sends nothing for so long is taken for dead */

struct mf_http;

struct mf_http_reply {
    long status; /* of HTTP */
    char content_type[96];
    int64_t left_out; /* header Moefarm-Left-Out; -1 without it */
    char release[96]; /* header Moefarm-Release, "3 NAME"; "" without it */
    struct mf_buf body;
};
void mf_http_reply_init(struct mf_http_reply *r);
void mf_http_reply_release(struct mf_http_reply *r);

struct mf_http_request {
    const char *method;          /* NULL: GET */
    const char *path;            /* from the first '/', query included, encoded */
    const char *content_type;    /* of the body */
    const char *idempotency_key; /* NULL: none */
    const char *if_none_match;   /* a tag, quoted: 304 when that is what there is; NULL: none */
    const char *body;
    size_t body_len;
};

struct mf_http_access {
    const char *token; /* "": none. It is copied */
    const char
        *ca; /* PEM file of who vouches for the server; "": the system's. It has to outlive the client */
    long request_ms; /* of a request; 0: MF_HTTP_REQUEST_MS */
};
/* url: "http://host:port". -EINVAL: no such URL, or another scheme; -EPERM: the token would go in the clear to another host;
 * -ENOMEM. */
int mf_http_new(const char *url, const struct mf_http_access *access, struct mf_http **ret);
struct mf_http *mf_http_free(struct mf_http *h);
MF_DEFINE_CLEANUP(struct mf_http *, mf_http_free);

/* Sends and waits. 0 when there was an answer, whatever its status. -ECONNREFUSED: nobody answered;
 * -ETIMEDOUT; -EMSGSIZE: beyond the ceiling; -EIO: the connection broke. mf_http_error() has the sentence. */
int mf_http_send(struct mf_http *h, const struct mf_http_request *q, struct mf_http_reply *ret);

/* Reads an event stream until it ends, from after sse->last_id when there is one. Once connected, tick is called about
 * once a second and after every piece; a negative return of it or of the event callback ends the stream and
 * comes back. 0: the server ended it; *ret_status is HTTP's. Other errors as mf_http_send. */
typedef int (*mf_http_tick_fn)(void *context);
int mf_http_stream(struct mf_http *h, const char *path, struct mf_sse *sse, mf_http_tick_fn tick,
                   long *ret_status);

/* The sentence of the last failure. Lives until the next request. */
const char *mf_http_error(const struct mf_http *h);

/* Appends "?name=value" or "&name=value", the value percent-encoded. Nothing for a NULL value. */
void mf_http_query(struct mf_buf *path, const char *name, const char *value);
