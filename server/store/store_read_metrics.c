/* Metrics of /metrics that come from the database: objects by state, worker time by phase, channels. */
#include "server/store/store_json.h"
#include "server/store/store_read.h"

#include "common/base/json.h"
#include "server/http/metrics.h"

#include <errno.h>
#include <string.h>

/* Maximum number of workers that have their own time series; moefarm_workers counts all workers. */
#define WORKERS_MAX  "2000"
#define CHANNELS_MAX "200"

/* Writes a sample for every state, including those without objects. */
static int add_states(struct mf_buf *out, const char *metric, const char *const *states, struct mf_sql *q)
{
    int64_t counts[16] = {0};
    int r;
    while ((r = mf_sql_next(q)) > 0) {
        for (int i = 0; states[i]; i++)
            if (strcmp(states[i], mf_sql_text(q, 0)) == 0)
                counts[i] = mf_sql_i64(q, 1);
    }
    for (int i = 0; states[i]; i++)
        mf_buf_addf(out, "%s{state=\"%s\"} %lld\n", metric, states[i], (long long)counts[i]);
    return r;
}

static int add_batches(struct mf_store *s, struct mf_buf *out)
{
    static const char *const states[] = {"open", "done", "cancelled", NULL};
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, "SELECT state, count(*) FROM batch GROUP BY state", &q, "");
    mf_metric_head(out, "moefarm_batches", MF_METRIC_GAUGE, "Batches by state.");
    return r < 0 ? r : add_states(out, "moefarm_batches", states, q);
}

/* No row is ever deleted, so the number of rows in state done is the largest id minus the number of rows in
 * other states. Few rows are in other states, so the cost does not grow with the age of the farm. states: all
 * states except done, quoted. */
#define COUNT_BY_STATE(table, index, states)                                                               \
    "WITH few AS (SELECT state, count(*) AS n FROM " table " INDEXED BY " index " WHERE state IN (" states \
    ") GROUP BY state) SELECT state, n FROM few UNION ALL"                                                 \
    " SELECT 'done', (SELECT coalesce(max(id), 0) FROM " table ") - (SELECT coalesce(sum(n), 0) FROM few)"

static int add_tasks(struct mf_store *s, struct mf_buf *out)
{
    static const char *const states[] = {"waiting",   "enumerating", "probing", "ranking",   "racing",
                                         "comparing", "done",        "failed",  "cancelled", NULL};
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   COUNT_BY_STATE("task", "task_state",
                                  "'waiting', 'enumerating', 'probing', 'ranking', 'racing', 'comparing',"
                                  " 'failed', 'cancelled'"),
                   &q, "");
    mf_metric_head(out, "moefarm_tasks", MF_METRIC_GAUGE, "Tasks (a shape on a device class) by state.");
    return r < 0 ? r : add_states(out, "moefarm_tasks", states, q);
}

static int add_units(struct mf_store *s, struct mf_buf *out)
{
    static const char *const states[] = {"ready", "leased", "done", "failed", "cancelled", NULL};
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql(s, COUNT_BY_STATE("unit", "unit_ready", "'ready', 'leased', 'failed', 'cancelled'"), &q, "");
    mf_metric_head(out, "moefarm_units", MF_METRIC_GAUGE, "Work units by state.");
    return r < 0 ? r : add_states(out, "moefarm_units", states, q);
}

static int add_workers(struct mf_store *s, struct mf_buf *out)
{
    static const char *const states[] = {"idle", "busy", "draining", "lost", "gone", NULL};
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, "SELECT state, count(*) FROM worker GROUP BY state", &q, "");
    mf_metric_head(out, "moefarm_workers", MF_METRIC_GAUGE, "Workers by state.");
    return r < 0 ? r : add_states(out, "moefarm_workers", states, q);
}

static int add_busy(struct mf_store *s, struct mf_buf *out)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(
        s, "SELECT name, busy FROM worker WHERE state <> 'gone' ORDER BY id DESC LIMIT " WORKERS_MAX, &q, "");
    mf_metric_head(out, "moefarm_worker_busy_seconds_total", MF_METRIC_COUNTER,
                   "Seconds that a worker spent in a phase since it joined.");
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        static const char *const phases[] = {"timing", "verify", "data", "load", "wait"};
        const char *text = mf_sql_text(q, 1);
        _cleanup_(cJSON_Deletep) cJSON *busy = mf_json_parse(text, strlen(text), strlen(text));
        for (size_t i = 0; i < MF_ARRAY_LEN(phases); i++) {
            double seconds = 0;
            (void)mf_json_double(busy, phases[i], &seconds);
            mf_buf_adds(out, "moefarm_worker_busy_seconds_total{worker=\"");
            mf_metric_label(out, mf_sql_text(q, 0));
            mf_buf_addf(out, "\",phase=\"%s\"} %.6g\n", phases[i], seconds);
        }
    }
    return r;
}

/* Current release of each channel, to compare with the release that a host reports. */
static int add_channels(struct mf_store *s, struct mf_buf *out)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(
        s, "SELECT name, current FROM channel WHERE current IS NOT NULL ORDER BY id LIMIT " CHANNELS_MAX, &q,
        "");
    mf_metric_head(out, "moefarm_channel_release", MF_METRIC_GAUGE,
                   "Id of the current release of a channel.");
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        mf_buf_adds(out, "moefarm_channel_release{channel=\"");
        mf_metric_label(out, mf_sql_text(q, 0));
        mf_buf_addf(out, "\"} %lld\n", (long long)mf_sql_i64(q, 1));
    }
    return r;
}

static void add_count(struct mf_buf *out, const char *name, const char *help, int64_t value)
{
    mf_metric_head(out, name, MF_METRIC_GAUGE, help);
    mf_buf_addf(out, "%s %lld\n", name, (long long)value);
}

int mf_read_metrics(struct mf_store *s, struct mf_buf *out)
{
    int64_t quarantined = 0, results = 0, bytes = 0, misses = 0;
    int r;
    if ((r = add_batches(s, out)) < 0 || (r = add_tasks(s, out)) < 0 || (r = add_units(s, out)) < 0 ||
        (r = add_workers(s, out)) < 0 || (r = add_busy(s, out)) < 0 || (r = add_channels(s, out)) < 0)
        return r;
    if ((r = mf_sql_get_i64(s, "SELECT count(*) FROM quarantine", &quarantined, "")) < 0 ||
        (r = mf_sql_get_i64(s, "SELECT coalesce(max(id), 0) FROM result", &results, "")) < 0 ||
        (r = mf_sql_get_i64(s, "SELECT count(*) FROM miss", &misses, "")) < 0 ||
        (r = mf_sql_get_i64(s, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
                            &bytes, "")) < 0)
        return r;
    add_count(out, "moefarm_quarantined_kernels", "Quarantined kernels, counted per device class.",
              quarantined);
    add_count(out, "moefarm_missed_shapes", "Stored misses, tuned ones included.", misses);
    add_count(out, "moefarm_store_results", "Results in the database.", results);
    add_count(out, "moefarm_store_bytes", "Size of the database file.", bytes);
    return mf_buf_error(out);
}
