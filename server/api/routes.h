/* The routes of the REST API. One table dispatches requests, generates /api/openapi.json and labels the
 * request metrics. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/moe/batch_options.h"
#include "server/http/route.h"

const struct mf_route *mf_routes(size_t *ret_n);
/* Ids and name in a path. */
struct mf_path_parts {
    int64_t ids[2];
    char name[MF_PATH_NAME_MAX];
};
/* Finds a route and parses its path. If only the method is wrong, returns NULL and sets ret_allow to a
 * comma-separated list of methods ("" for an unknown path). "HEAD" matches GET routes. */
const struct mf_route *mf_route_find(const char *method, const char *path, struct mf_path_parts *ret,
                                     char *ret_allow, size_t allow_cap);
/* Type of a batch option as a query parameter. */
enum mf_parameter_type mf_option_parameter(const struct mf_batch_option *o);
/* Responds with 400 to query parameters that the route does not have, and fills in r->page. */
int mf_route_check_query(struct mf_request *r);
