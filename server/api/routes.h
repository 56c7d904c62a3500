/* The routes of the REST API: one table that dispatches requests, makes /api/openapi.json and names the
 * series of the request metrics.
 *
 * A route is worked off in hops, each on the thread that owns what it touches: the writer (struct mf_farm *),
 * a reader (struct mf_reader *) or the HTTP thread (struct mf_http *). Most have one hop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "server/http/request.h"
#include "server/http/role.h"

enum mf_owner { MF_OWNER_NONE, MF_OWNER_WRITER, MF_OWNER_READER, MF_OWNER_HTTP };

/* Fills r->response. 0: done, and what it wrote stands. Negative: what it wrote must be undone; the response
 * says why (a handler that left none gets a 500 from mf_request_run). */
typedef int (*mf_handler)(void *owner, struct mf_request *r);

#define MF_ROUTE_HOPS 3
struct mf_hop {
    enum mf_owner owner;
    mf_handler handler;
};

enum mf_parameter_type { MF_PARAM_TEXT, MF_PARAM_INT, MF_PARAM_NUMBER, MF_PARAM_FLAG };

struct mf_parameter {
    const char *name;
    enum mf_parameter_type type;
    const char *summary;
};

struct mf_route {
    const char *method; /* GET answers HEAD too */
    const char *path; /* "{id}" stands for a positive number, at most two; "{name}" for a name, at most one */
    enum mf_role role; /* that it takes, where tokens are needed */
    struct mf_hop hops[MF_ROUTE_HOPS];
    const char *operation; /* operationId */
    const char *summary;
    const char *schema;      /* of the answer, in components/schemas; of one item when a list */
    const char *produces;    /* media type of success */
    const char *consumes[3]; /* media types of the body; none: a body is refused */
    int statuses[8];         /* that it answers with besides 400, 401, 403, 404, 405, 406, 429, 500, 503 */
    const struct mf_parameter *parameters; /* NULL-named row ends; NULL: none */
    bool page;                             /* a list: limit and cursor */
};

const struct mf_route *mf_routes(size_t *ret_n);
/* What a path names. */
struct mf_path_parts {
    int64_t ids[2];
    char name[MF_PATH_NAME_MAX];
};
/* The route of a path, whatever the method, and what the path names. When only the method is wrong: NULL, and
 * ret_allow (a comma list, "" when the path is unknown). "HEAD" finds a GET. */
const struct mf_route *mf_route_find(const char *method, const char *path, struct mf_path_parts *ret,
                                     char *ret_allow, size_t allow_cap);
/* Refuses query parameters that the route does not know (400), and fills in a page's limits. */
int mf_route_check_query(struct mf_request *r);
/* Runs the hop that r stands at (r->hop) on its owner and moves r to the next. For the writer: negative means
 * undo what the handler wrote; the response is complete in every case. */
int mf_request_run(struct mf_request *r, void *owner);
