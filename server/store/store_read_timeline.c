/* REST query for the timeline of a batch: results per time bucket. */
#include "server/store/store_json.h"
#include "server/store/store_read.h"

#include "common/base/clock.h"

#include <errno.h>

/* maximum number of buckets that a plot can show */
#define BUCKETS       240
#define BUCKET_MIN_MS 1000

struct timeline {
    int64_t from_ms, bucket_ms;
    int n; /* buckets, at most BUCKETS + 1 */
    int measured[BUCKETS + 1], refused[BUCKETS + 1], raced[BUCKETS + 1];
};

static void set_buckets(struct timeline *t, int64_t from_ms, int64_t to_ms)
{
    int64_t span = to_ms > from_ms ? to_ms - from_ms : 0;
    int64_t n = (span + BUCKETS * (int64_t)BUCKET_MIN_MS - 1) / (BUCKETS * (int64_t)BUCKET_MIN_MS);
    t->from_ms = from_ms;
    t->bucket_ms = BUCKET_MIN_MS * (n > 0 ? n : 1);
    t->n = (int)(span / t->bucket_ms) + 1;
}

/* Counts the results per bucket. A result has the time of its worker's clock, which may be wrong. So results
 * outside the range are counted in the first or last bucket. */
static int count_results(struct mf_store *s, int64_t batch, struct timeline *t)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(
        s,
        "SELECT min(max((at_s * 1000 + 999 - ?2) / ?3, 0), ?4), sum(measured), sum(refused), sum(raced)"
        " FROM pace WHERE batch = ?1 GROUP BY 1",
        &q, "iiii", batch, t->from_ms, t->bucket_ms, (int64_t)t->n - 1);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        int64_t i = mf_sql_i64(q, 0);
        t->measured[i] = (int)mf_sql_i64(q, 1);
        t->refused[i] = (int)mf_sql_i64(q, 2);
        t->raced[i] = (int)mf_sql_i64(q, 3);
    }
    return r;
}

static cJSON *timeline_json(const struct timeline *t)
{
    cJSON *o = cJSON_CreateObject();
    if (!o || !cJSON_AddNumberToObject(o, "from_ms", (double)t->from_ms) ||
        !cJSON_AddNumberToObject(o, "bucket_ms", (double)t->bucket_ms) ||
        !cJSON_AddItemToObject(o, "measured", cJSON_CreateIntArray(t->measured, t->n)) ||
        !cJSON_AddItemToObject(o, "refused", cJSON_CreateIntArray(t->refused, t->n)) ||
        !cJSON_AddItemToObject(o, "raced", cJSON_CreateIntArray(t->raced, t->n))) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

int mf_read_timeline(struct mf_store *s, int64_t batch, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT created_ms, coalesce(ended_ms, ?2) FROM batch WHERE id = ?1", &q, "ii",
                         batch, mf_wall_ms());
    if (r < 0)
        return r;
    if (r == 0)
        return -ENOENT;
    struct timeline t = {0};
    set_buckets(&t, mf_sql_i64(q, 0), mf_sql_i64(q, 1));
    if ((r = count_results(s, batch, &t)) < 0)
        return r;
    cJSON *json = timeline_json(&t);
    if (!json)
        return -ENOMEM;
    *ret = json;
    return 0;
}
