/* One HTTP request on its way through the threads, and its response.
 *
 * The HTTP thread makes a request, sends its pointer as a message and does not touch it again; the thread that
 * owns the route's data (the writer for changes, a reader for the rest) fills the response and sends the
 * pointer back. Ownership moves with the message: no thread shares memory with another. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "server/api/cursor.h"
#include "server/farm/farm.h"

struct mf_route;

#define MF_REQUEST_QUERY_MAX 16
#define MF_PATH_NAME_MAX     64
#define MF_REQUEST_BODY_MAX  (16u << 20)

struct mf_query_item {
    char *name, *value; /* decoded */
};

struct mf_response {
    int status;               /* HTTP status; 0: no answer yet */
    bool stream;              /* goes on as text/event-stream */
    const char *content_type; /* static text */
    char etag[72];            /* quoted, "" for none */
    char headers[4][2][160];  /* further ones: name, value; "" ends */
    struct mf_buf body;
    int fd; /* >= 0: the body is this file, unlinked already; body is then empty */
};

struct mf_request {
    const struct mf_route *route;
    int hop;                          /* which of the route's hops comes next */
    void *exchange;                   /* the HTTP thread's own; others pass it on */
    int64_t path_id[2];               /* the numbers in the path, in order */
    char path_name[MF_PATH_NAME_MAX]; /* the name in it; "" for none */
    int64_t token;                    /* that let it in; 0: none was needed */
    int n_query;
    struct mf_query_item query[MF_REQUEST_QUERY_MAX];
    char content_type[96];
    char idempotency_key[128];
    char if_none_match[160];
    char last_event_id[32];
    struct mf_buf body;
    struct mf_page page; /* of a list's route */
    void *work;          /* what one hop leaves for the next; freed by work_free */
    void (*work_free)(void *work);
    int64_t cursor;       /* events: after which id (-1: the latest); on return up to which one was read */
    bool following;       /* events: a stream that goes on from cursor */
    int64_t first_cursor; /* events: after which id the stream began */
    struct mf_farm_stats stats; /* metrics: filled by the writer's hop */
    struct mf_response response;
};

struct mf_request *mf_request_new(void);
struct mf_request *mf_request_free(struct mf_request *r);
/* NULL when absent. */
const char *mf_request_query(const struct mf_request *r, const char *name);
/* A flag that is absent is false; its value was checked with the query. */
bool mf_request_flag(const struct mf_request *r, const char *name);
/* The client has that version already: its If-None-Match names the tag. */
bool mf_request_has(const struct mf_request *r, const char *etag);
