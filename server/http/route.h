/* A route of the REST API.
 *
 * A route has one or more hops. Each hop runs on the thread that owns its data: the writer (struct mf_farm
 * *), a reader (struct mf_reader *) or the HTTP thread (struct mf_http *). */
#pragma once

#include <stdbool.h>

#include "server/http/request.h"
#include "server/http/role.h"

enum mf_owner { MF_OWNER_NONE, MF_OWNER_WRITER, MF_OWNER_READER, MF_OWNER_HTTP };

/* Fills in r->response. Returns 0 to keep the handler's writes, or a negative value to roll them back. In
 * that case the response has the reason; if the handler filled in no response, mf_request_run responds with
 * 500. */
typedef int (*mf_handler)(void *owner, struct mf_request *r);

#define MF_ROUTE_HOPS 3
struct mf_hop {
    enum mf_owner owner;
    mf_handler handler;
    bool runs_read_only; /* the writer runs this hop even while the database is not writable */
};

enum mf_parameter_type {
    MF_PARAM_TEXT,
    MF_PARAM_INT,
    MF_PARAM_NUMBER,
    MF_PARAM_FLAG,
    MF_PARAM_BATCH_OPTIONS, /* the entry stands for every option in common/moe/batch_option_table.h */
};

struct mf_parameter {
    const char *name;
    enum mf_parameter_type type;
    const char *summary;
};

struct mf_route {
    const char *method; /* GET also serves HEAD */
    const char *path;   /* "{id}": a positive integer, at most two; "{name}": a name, at most one */
    enum mf_role role;  /* minimum role if the farm requires tokens */
    struct mf_hop hops[MF_ROUTE_HOPS];
    const char *operation; /* operationId */
    const char *summary;
    const char *schema;      /* schema of the response, or of one item of a list, in components/schemas */
    const char *produces;    /* media type of a successful response */
    const char *consumes[3]; /* media types that the body may have; none: bodies are refused */
    /* possible status codes other than 400, 401, 403, 404, 405, 406, 429, 500 and 503 */
    int statuses[8];
    const struct mf_parameter *parameters; /* ends with a NULL name; NULL: no parameters */
    bool page;                             /* paged list: accepts limit and cursor */
};

/* Runs hop r->hop with its owner and advances r->hop. A negative result tells the writer to roll back. The
 * response is complete in every case. */
int mf_request_run(struct mf_request *r, void *owner);
