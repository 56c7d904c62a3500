/* Requests to the coordinator's REST API. Each call prints its own error message and returns the exit code,
 * or 0. */
#pragma once

#include <cjson/cJSON.h>

#include "cli/support/cli.h"
#include "common/moe/shape.h"

/* Makes an HTTP client for the URL, token and CA in cli. The caller frees it. */
int mf_api_connect(const struct mf_cli *cli, struct mf_http **ret);
/* Sends the request. If the status is neither 2xx nor a requested 304, prints the detail and the errors of
 * the reply. */
int mf_api_send(struct mf_cli *cli, const struct mf_http_request *q, struct mf_http_reply *reply);
/* Fetches a table and checks that it has the SHA-256 of its ETag, because a reply without Content-Length may
 * be cut at a row and is then a valid shorter table. if_none_match: as in struct mf_http_request; the reply's
 * status may then be 304. */
int mf_api_table(struct mf_cli *cli, const char *path, const char *if_none_match,
                 struct mf_http_reply *reply);
/* Parses a reply. Returns NULL if the text is not JSON. The caller owns the result. */
cJSON *mf_api_parse(const char *text, size_t len);
/* Sends a GET and parses the JSON reply. The caller owns *ret. */
int mf_api_get(struct mf_cli *cli, const char *path, cJSON **ret);
/* Fetches all pages of a list as one array of at most MF_API_ITEMS_MAX items. */
#define MF_API_ITEMS_MAX 200000
int mf_api_list(struct mf_cli *cli, const char *path, cJSON **ret_items);
/* Sends a POST without a body and parses the JSON reply. */
int mf_api_post(struct mf_cli *cli, const char *path, cJSON **ret);
/* Builds a path: replaces {} in `format` by `id`, as in "/api/v1/batches/{}/tasks". */
#define MF_API_PATH_MAX 256
void mf_api_path(char buf[MF_API_PATH_MAX], const char *format, int64_t id);

/* Prints indented JSON and one newline. */
int mf_api_print(const cJSON *json);

/* These functions read a member. They return `fallback` if the member is absent. */
int64_t mf_api_i64(const cJSON *object, const char *key, int64_t fallback);
double mf_api_double(const cJSON *object, const char *key, double fallback);
const char *mf_api_text(const cJSON *object, const char *key, const char *fallback);
/* Parses an object with the 12 shape columns. Returns -EINVAL if a column is absent or invalid. */
int mf_api_shape(const cJSON *columns, struct mf_shape *ret);

/* Appends a line for each reason why tasks of the batch wait because no connected worker can run them.
 * Example: "waiting: 3 tasks of gfx942/304: waits for a worker …". */
void mf_api_waiting(const cJSON *batch, struct mf_buf *out);

/* Appends a line with the decision between the new and the known row, and its reason, such as "  kept: SAME
 * on w0: … (known from batch 3, 12.40 us there)". Appends nothing if the task's batch replaces every row. */
void mf_api_promotion(const cJSON *task, struct mf_buf *out);
