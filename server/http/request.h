/* An HTTP request that is passed between threads, and its response.
 *
 * The HTTP thread creates a request and sends its pointer as a message. The thread that owns the route's data
 * (the writer for changes, a reader for other routes) fills in the response and sends the pointer back.
 * Ownership moves with the message, so two threads never access a request at the same time. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "server/api/cursor.h"
#include "server/farm/farm_stats.h"
#include "server/http/response.h"

struct mf_route;

#define MF_REQUEST_QUERY_MAX 16
#define MF_PATH_NAME_MAX     64
#define MF_REQUEST_BODY_MAX  (16u << 20)
/* Limits of what a body may hold, checked before it is parsed: a body of 16 MiB may consist of millions of
 * empty values, which take minutes and gigabytes. */
#define MF_REQUEST_VALUES_MAX 640000 /* JSON values */
#define MF_REQUEST_LINES_MAX  100000 /* lines of a tuned table */

struct mf_query_item {
    char *name, *value; /* percent-decoded */
};

struct mf_request {
    const struct mf_route *route;
    int hop;                          /* index of the next hop of the route */
    void *exchange;                   /* struct mf_exchange; opaque outside the HTTP thread */
    int64_t path_id[2];               /* numbers in the path, in order */
    char path_name[MF_PATH_NAME_MAX]; /* name in the path; "" if none */
    int64_t token;                    /* id of the access token; 0 if none was needed */
    int n_query;
    struct mf_query_item query[MF_REQUEST_QUERY_MAX];
    char content_type[96];
    char idempotency_key[128];
    char if_none_match[160];
    char last_event_id[32];
    struct mf_buf body;
    struct mf_page page; /* list routes: requested page */
    void *work;          /* state passed from one hop to the next; released by work_free */
    void (*work_free)(void *work);
    int64_t cursor;             /* events: last id already read, -1 for the latest; updated by the reader */
    bool following;             /* events: catch-up read of a stream that is already open */
    int64_t first_cursor;       /* events: id after which the stream began */
    bool deferred;              /* the writer sends the response in a later iteration */
    struct mf_farm_stats stats; /* metrics: filled in by the writer */
    struct mf_response response;
};

struct mf_request *mf_request_new(void);
struct mf_request *mf_request_free(struct mf_request *r);
/* Returns the decoded value, or NULL if the parameter is absent. */
const char *mf_request_query(const struct mf_request *r, const char *name);
/* Returns false if the parameter is absent. The route's query check has validated the value. */
bool mf_request_flag(const struct mf_request *r, const char *name);
/* Returns true if If-None-Match contains the tag, which means that the client has this version. */
bool mf_request_etag_matches(const struct mf_request *r, const char *etag);
/* Parses the request's body as a JSON object, which the caller owns. Responds with an error and returns
 * -EINVAL if the body has too many values, is not a JSON object, or memory runs out. */
int mf_request_object(struct mf_request *r, cJSON **ret);
/* Checks that a table, before it is parsed, has at most max lines. at: field with the table. Responds with
 * 413 and returns -EINVAL if it has more. */
int mf_request_check_lines(struct mf_request *r, const char *at, const char *text, size_t len, size_t max);
