/* Reader handlers of lists and single objects, as JSON. */
#include "server/api/api.h"

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/consumer.h"
#include "server/http/problem.h"
#include "server/http/reader.h"
#include "server/store/store_access.h"
#include "server/store/store_read.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static struct mf_store *store_of(void *reader)
{
    return ((struct mf_reader *)reader)->store;
}

/* Responds to a failed read. */
static int refuse_read(struct mf_request *r, int e, const char *what)
{
    if (e == -ENOENT)
        return mf_refuse(&r->response, 404, "there is no %s %" PRId64, what, r->path_id[0]);
    char doing[64];
    mf_format(doing, sizeof(doing), "read %s", what);
    return mf_refuse_errno(&r->response, e, doing);
}

static int answer_list(struct mf_request *r, int e, struct mf_list *list, const char *what)
{
    return e < 0 ? refuse_read(r, e, what) : mf_respond_list(&r->response, list->items, list->next);
}

/* Responds with the object of the id in the path. what: noun for the error message. */
static int answer_one(void *reader, struct mf_request *r,
                      int (*read)(struct mf_store *s, int64_t id, cJSON **ret), const char *what)
{
    cJSON *json = NULL;
    int e = read(store_of(reader), r->path_id[0], &json);
    return e < 0 ? refuse_read(r, e, what) : mf_respond_json(&r->response, 200, json);
}

int mf_api_batches(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_batches(store_of(reader), &r->page, &list), &list, "batches");
}

int mf_api_batch(void *reader, struct mf_request *r)
{
    return answer_one(reader, r, mf_read_batch, "batch");
}

int mf_api_timeline(void *reader, struct mf_request *r)
{
    return answer_one(reader, r, mf_read_timeline, "batch");
}

/* Responds with 400 to a filter value that does not exist, instead of returning an empty list. */
static int check_enum(struct mf_request *r, const char *name, const char *const *values)
{
    const char *value = mf_request_query(r, name);
    char all[256] = "";
    if (!value)
        return 0;
    for (int i = 0; values[i]; i++) {
        if (strcmp(values[i], value) == 0)
            return 0;
        size_t len = strlen(all);
        mf_format(all + len, sizeof(all) - len, "%s%s", i ? ", " : "", values[i]);
    }
    return mf_refuse_at(&r->response, 400, name, "value", "%s: expected one of %s", name, all);
}

static const char *const consumers[] = {MF_CONSUMER_MAP(MF_NAMES_TEXT_, MF_CONSUMER_) NULL};

int mf_api_tasks(void *reader, struct mf_request *r)
{
    static const char *const states[] = {"waiting",   "enumerating", "probing", "ranking",   "racing",
                                         "comparing", "done",        "failed",  "cancelled", NULL};
    struct mf_list list;
    int e = check_enum(r, "state", states);
    if (e < 0)
        return e;
    return answer_list(
        r, mf_read_tasks(store_of(reader), r->path_id[0], mf_request_query(r, "state"), &r->page, &list),
        &list, "batch");
}

int mf_api_shapes(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r,
                       mf_read_shapes(store_of(reader), mf_request_query(r, "layer_model"),
                                      mf_request_query(r, "class"), &r->page, &list),
                       &list, "shapes");
}

/* Answers with what `read` finds about a task for the consumer of the query. */
static int answer_consumer(void *reader, struct mf_request *r,
                           int (*read)(struct mf_store *s, int64_t id, const char *consumer, cJSON **ret))
{
    cJSON *json = NULL;
    int e = check_enum(r, "consumer", consumers);
    if (e < 0)
        return e;
    e = read(store_of(reader), r->path_id[0], mf_request_query(r, "consumer"), &json);
    return e < 0 ? refuse_read(r, e, "task") : mf_respond_json(&r->response, 200, json);
}

int mf_api_task(void *reader, struct mf_request *r)
{
    return answer_consumer(reader, r, mf_read_task);
}

int mf_api_pipelines(void *reader, struct mf_request *r)
{
    struct mf_list list;
    int e = check_enum(r, "consumer", consumers);
    if (e < 0)
        return e;
    e = mf_read_pipelines(store_of(reader), r->path_id[0], mf_request_query(r, "consumer"),
                          mf_request_flag(r, "finalists"), &r->page, &list);
    return answer_list(r, e, &list, "task");
}

int mf_api_race(void *reader, struct mf_request *r)
{
    return answer_consumer(reader, r, mf_read_race);
}

int mf_api_steps(void *reader, struct mf_request *r)
{
    static const char *const values[] = {"pending",     "ok",          "slow",        "wrong",
                                         "implausible", "crash",       "hang",        "no_memory",
                                         "no_compile",  "unsupported", "quarantined", NULL};
    struct mf_list list;
    int e = check_enum(r, "status", values);
    if (e < 0)
        return e;
    struct mf_step_filter filter = {
        .family = mf_request_query(r, "family"),
        .status = mf_request_query(r, "status"),
        .covers = mf_request_query(r, "covers"),
    };
    return answer_list(r, mf_read_steps(store_of(reader), r->path_id[0], &filter, &r->page, &list), &list,
                       "task");
}

int mf_api_rejections(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(
        r,
        mf_read_rejections(store_of(reader), r->path_id[0], mf_request_query(r, "kernel"), &r->page, &list),
        &list, "task");
}

int mf_api_step(void *reader, struct mf_request *r)
{
    return answer_one(reader, r, mf_read_step, "step");
}

int mf_api_step_results(void *reader, struct mf_request *r)
{
    struct mf_list list;
    int64_t task = 0;
    const char *text = mf_request_query(r, "task");
    if (text && mf_parse_i64(text, 1, INT64_MAX, &task) < 0)
        return mf_refuse_at(&r->response, 400, "task", "range",
                            "task: expected the number of a task (1 or more)");
    return answer_list(r, mf_read_step_results(store_of(reader), r->path_id[0], task, &r->page, &list), &list,
                       "step");
}

int mf_api_pipeline(void *reader, struct mf_request *r)
{
    return answer_one(reader, r, mf_read_pipeline, "pipeline");
}

int mf_api_pipeline_results(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_pipeline_results(store_of(reader), r->path_id[0], &r->page, &list), &list,
                       "pipeline");
}

int mf_api_workers(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_workers(store_of(reader), &r->page, &list), &list, "workers");
}

int mf_api_quarantine(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_quarantine(store_of(reader), &r->page, &list), &list, "quarantine");
}

int mf_api_tokens(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_tokens(store_of(reader), &r->page, &list), &list, "tokens");
}

int mf_api_keys(void *reader, struct mf_request *r)
{
    struct mf_list list;
    return answer_list(r, mf_read_keys(store_of(reader), &r->page, &list), &list, "keys");
}

int mf_api_metrics_read(void *reader, struct mf_request *r)
{
    int e = mf_read_metrics(store_of(reader), &r->response.body);
    return e < 0 ? mf_refuse_errno(&r->response, e, "read the metrics") : 0;
}

/* --- events --------------------------------------------------------------------------------------------- */

/* Maximum bytes of one read, about one chunk of a stream. The stream repeats the read to get more events. */
#define EVENTS_BYTES (64u << 10)

/* Sets the start of a new stream: directly after the given id, or after the latest event. */
static int events_start(struct mf_store *s, struct mf_request *r)
{
    const char *text = r->last_event_id[0] ? r->last_event_id : mf_request_query(r, "last_event_id");
    int64_t last;
    int e = mf_read_last_event(s, &last);
    if (e < 0)
        return mf_refuse_errno(&r->response, e, "read the events");
    r->cursor = last;
    if (text && mf_parse_i64(text, 0, INT64_MAX, &r->cursor) < 0)
        return mf_refuse_at(&r->response, 400, "last_event_id", "number",
                            "Last-Event-ID: expected the id of an event (0 or more)");
    /* A larger id is from an earlier farm, which was recreated with an empty database. */
    r->cursor = MF_MIN(r->cursor, last);
    r->first_cursor = r->cursor;
    return 0;
}

int mf_api_events_read(void *reader, struct mf_request *r)
{
    struct mf_store *s = store_of(reader);
    int e = r->path_id[0] > 0 && !r->following ? mf_read_batch_exists(s, r->path_id[0]) : 0;
    if (e < 0)
        return refuse_read(r, e, "batch");
    if (!r->following && (e = events_start(s, r)) < 0)
        return e;
    e = mf_read_events(s, r->path_id[0], &r->cursor, &r->response.body, EVENTS_BYTES);
    return e < 0 ? mf_refuse_errno(&r->response, e, "read the events") : 0;
}
