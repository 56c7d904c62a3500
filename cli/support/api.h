/* Requests to the API with their errors told to the person: each call prints what went wrong and gives the exit
 * code, or gives 0. */
#pragma once

#include <cjson/cJSON.h>

#include "cli/support/cli.h"
#include "common/moe/shape.h"

/* A client of the farm that the options name. The caller frees it. */
int mf_api_connect(const struct mf_cli *cli, struct mf_http **ret);
/* Sends; any status but 2xx, and 304 where it was asked for, is printed: the problem's detail and each of its errors. */
int mf_api_send(struct mf_cli *cli, const struct mf_http_request *q, struct mf_http_reply *reply);
/* What the coordinator says, as JSON, whose texts may be anybody's: what a terminal obeys (controls but line ends and tabs, C1 too)
 * is '?' in them. NULL: it is none. The caller owns it. */
cJSON *mf_api_parse(const char *text, size_t len);
/* GET that answers JSON. The caller owns *ret. */
int mf_api_get(struct mf_cli *cli, const char *path, cJSON **ret);
/* GET of a list with all its pages: one array, at most MF_API_ITEMS_MAX items. */
#define MF_API_ITEMS_MAX 200000
int mf_api_list(struct mf_cli *cli, const char *path, cJSON **ret_items);
/* POST without a body. */
int mf_api_post(struct mf_cli *cli, const char *path, cJSON **ret);
/* A path with one number in it, at {}: "/api/v1/batches/{}/tasks". */
#define MF_API_PATH_MAX 256
void mf_api_path(char buf[MF_API_PATH_MAX], const char *format, int64_t id);

/* Prints JSON for people and programs: indented, one newline at the end. */
int mf_api_print(const cJSON *json);

/* Members with what to show when they are absent. */
int64_t mf_api_i64(const cJSON *object, const char *key, int64_t otherwise);
double mf_api_double(const cJSON *object, const char *key, double otherwise);
const char *mf_api_text(const cJSON *object, const char *key, const char *otherwise);
/* The shape of {12 columns}. -EINVAL when a column is absent or no value. */
int mf_api_shape(const cJSON *columns, struct mf_shape *ret);

/* "waiting: 3 tasks of gfx942/304: waits for a worker …": what a batch's tasks wait for that nobody who is there can do, a line
 * for each reason. */
void mf_api_waiting(const cJSON *batch, struct mf_buf *out);

/* "  kept: SAME on w0: … (known from batch 3, 12.40 us there)": which row stands and why, a line; nothing where a task's batch
 * replaces every row. */
void mf_api_promotion(const cJSON *task, struct mf_buf *out);
