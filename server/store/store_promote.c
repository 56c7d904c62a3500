#include "server/store/store_promote.h"
#include "server/store/store_private.h"

#include "common/base/text.h"
#include "common/moe/family_name.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

MF_NAMES_DEFINE(mf_decision, MF_DECISION_, MF_DECISION_MAP)

/* ---- known rows ---- */

int mf_store_baseline_row_add(struct mf_store *s, int64_t batch, int64_t shape, int64_t class,
                              const char *pipeline, double us, int64_t line)
{
    return mf_sql_write(s,
                        "INSERT INTO baseline_row (batch, shape, class, pipeline, us, line)"
                        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (batch, shape, class) DO NOTHING",
                        "iiitdi", batch, shape, class, pipeline, us, line);
}

static int read_known(const struct mf_sql *q, const char *where, const char *rest, struct mf_known *ret)
{
    char *pipeline = strdup(mf_sql_text(q, 0));
    if (!pipeline)
        return -ENOMEM;
    *ret = (struct mf_known){.pipeline = pipeline, .us = mf_sql_double(q, 1)};
    mf_format(ret->source, sizeof(ret->source), "%s %lld%s", where, (long long)mf_sql_i64(q, 2), rest);
    return 1;
}

int mf_store_known_from_baseline(struct mf_store *s, int64_t batch, int64_t shape, int64_t class,
                                 struct mf_known *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(
        s, "SELECT pipeline, us, line FROM baseline_row WHERE batch = ? AND shape = ? AND class = ?", &q,
        "iii", batch, shape, class);
    return r > 0 ? read_known(q, "line", " of the baseline", ret) : r;
}

int mf_store_known_from_config(struct mf_store *s, const struct mf_known_key *key, struct mf_known *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(
        s,
        "SELECT (SELECT group_concat(name, '|') FROM (SELECT k.family || ':' || k.name AS name"
        "  FROM pipeline p, json_each(p.steps) e CROSS JOIN step t ON t.id = e.value"
        "  JOIN kernel k ON k.id = t.kernel WHERE p.id = f.pipeline ORDER BY e.key)), f.us, g.batch"
        " FROM config f JOIN task g ON g.id = f.task WHERE f.class = ? AND f.shape = ? AND f.model = ?"
        " AND g.batch < ? AND f.consumer = ? AND NOT EXISTS (SELECT 1 FROM promotion x"
        "  WHERE x.task = f.task AND x.consumer = f.consumer AND x.decision IN ('pending', 'undecided'))"
        " ORDER BY f.id DESC LIMIT 1",
        &q, "iiiit", key->class, key->shape, key->model, key->batch, mf_consumer_name(key->consumer));
    return r > 0 ? read_known(q, "batch", "", ret) : r;
}

int mf_store_skip_unnamed(struct mf_store *s, int64_t batch, const char *reason, int64_t now_ms,
                          struct mf_ids *ret)
{
    int r =
        mf_sql_ids(s,
                   "INSERT INTO promotion (task, consumer, known, known_us, source, least, decision, reason,"
                   " at_ms) SELECT g.id, c.consumer, '', k.us, 'line ' || k.line || ' of the baseline', "
                   "json_extract(b.options,"
                   " '$.min_effect'), 'undecided', ?2, ?3 FROM baseline_row k JOIN batch b ON b.id = k.batch"
                   " JOIN task g ON g.batch = k.batch AND g.shape = k.shape AND g.class = k.class"
                   " JOIN task_consumer c ON c.task = g.id WHERE k.batch = ?1 AND k.pipeline = '' AND "
                   "g.state = 'waiting'"
                   " AND json_extract(b.options, '$.search') <> 'enumerate' RETURNING task",
                   ret, "iti", batch, reason, now_ms);
    if (r < 0 || ret->n == 0)
        return r;
    return mf_sql_write(
        s,
        "UPDATE task SET state = 'done', reason = '', ended_ms = ?2 WHERE batch = ?1 AND state"
        " = 'waiting' AND id IN (SELECT task FROM promotion)",
        "ii", batch, now_ms);
}

int mf_store_batches_unnamed(struct mf_store *s, int64_t class, struct mf_ids *ret)
{
    return mf_sql_ids(
        s,
        "SELECT DISTINCT g.batch FROM task g CROSS JOIN baseline_row k ON k.batch = g.batch AND k.shape ="
        " g.shape AND k.class = g.class WHERE g.state = 'waiting' AND g.class = ? AND k.pipeline = ''",
        ret, "i", class);
}

/* ---- the known row as a pipeline of a task ---- */

int mf_store_step_find(struct mf_store *s, int64_t task, const char *family, const char *name, int64_t *ret)
{
    return mf_sql_get_i64(s,
                          "SELECT t.id FROM task_enumeration g JOIN enumeration e ON e.id = g.enumeration"
                          " JOIN family f ON f.id = e.family"
                          " JOIN kernel k ON k.family IN (?2, ?4) AND k.revision = f.revision AND k.name = ?3"
                          " JOIN step t ON t.enumeration = e.id AND t.kernel = k.id WHERE g.task = ?1"
                          " ORDER BY f.id DESC LIMIT 1",
                          ret, "ittt", task, mf_family_current_name(family), name,
                          mf_family_old_name(family));
}

int mf_store_step_rejection(struct mf_store *s, int64_t task, const char *family, const char *name,
                            char ret[MF_REASON_MAX])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql_first(s,
                     "SELECT j.reason FROM task g JOIN task_enumeration e ON e.task = g.id"
                     " JOIN rejection j ON j.enumeration = e.enumeration"
                     " AND (j.batch IS NULL OR j.batch = g.batch)"
                     " WHERE g.id = ?1 AND j.family IN (?2, ?4) AND ?3 GLOB j.kernel ORDER BY j.id LIMIT 1",
                     &q, "ittt", task, mf_family_current_name(family), name, mf_family_old_name(family));
    if (r > 0)
        mf_format(ret, MF_REASON_MAX, "%s", mf_sql_text(q, 0));
    return r;
}

#define SORTED(steps) \
    "(SELECT group_concat(value) FROM (SELECT value FROM json_each(" steps ") ORDER BY value))"

int mf_store_pipeline_find(struct mf_store *s, int64_t task, enum mf_consumer consumer, const char *steps,
                           int64_t *ret)
{
    return mf_sql_get_i64(s,
                          "SELECT p.id FROM pipeline p WHERE p.task = ?1 AND p.consumer = ?3 AND " SORTED(
                              "p.steps") " = " SORTED("?2"),
                          ret, "itt", task, steps, mf_consumer_name(consumer));
}

/* ---- comparisons and decisions ---- */

int mf_store_promotion_add(struct mf_store *s, const struct mf_promotion *p, int64_t now_ms)
{
    return mf_sql_write(
        s,
        "INSERT INTO promotion (task, consumer, known, known_us, source, old, new, new_us, least, decision,"
        " reason, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "ittdtIIddtti", p->task, mf_consumer_name(p->consumer), p->known, p->known_us, p->source, p->old,
        p->new, p->new_us, p->least, mf_decision_name(p->decision), p->reason, now_ms);
}

int mf_store_promotion_get(struct mf_store *s, int64_t task, enum mf_consumer consumer,
                           struct mf_promotion *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(
        s,
        "SELECT old, new, known_us, new_us, least, decision FROM promotion WHERE task = ? AND consumer = ?",
        &q, "it", task, mf_consumer_name(consumer));
    if (r <= 0)
        return r;
    *ret = (struct mf_promotion){.task = task,
                                 .consumer = consumer,
                                 .old = mf_sql_i64(q, 0),
                                 .new = mf_sql_i64(q, 1),
                                 .known_us = mf_sql_double(q, 2),
                                 .new_us = mf_sql_double(q, 3),
                                 .least = mf_sql_double(q, 4)};
    r = mf_decision_parse(mf_sql_text(q, 5), &ret->decision);
    return r < 0 ? r : 1;
}

int mf_store_promotion_decide(struct mf_store *s, int64_t task, enum mf_consumer consumer,
                              enum mf_decision decision, const char *reason, int64_t now_ms)
{
    return mf_sql_write(
        s, "UPDATE promotion SET decision = ?, reason = ?, at_ms = ? WHERE task = ? AND consumer = ?",
        "ttiit", mf_decision_name(decision), reason, now_ms, task, mf_consumer_name(consumer));
}

void mf_race_result_release(struct mf_race_result *r)
{
    free(r->samples);
    *r = (struct mf_race_result){0};
}

int mf_store_race_result_get(struct mf_store *s, int64_t unit, int64_t attempt, int64_t pipeline,
                             struct mf_race_result *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    size_t len;
    int r = mf_sql_first(s,
                         "SELECT status, reason, us, mad, samples FROM result WHERE unit = ? AND attempt = ?"
                         " AND pipeline = ? AND late = 0",
                         &q, "iii", unit, attempt, pipeline);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    struct mf_race_result raced = {.us = mf_sql_double(q, 2), .mad = mf_sql_double(q, 3)};
    r = mf_status_parse(mf_sql_text(q, 0), &raced.status);
    if (r < 0)
        return r;
    mf_format(raced.reason, sizeof(raced.reason), "%s", mf_sql_text(q, 1));
    const char *blob = mf_sql_blob(q, 4, &len);
    raced.n = len / sizeof(float);
    raced.samples = calloc(raced.n + 1, sizeof(*raced.samples));
    if (!raced.samples)
        return -ENOMEM;
    for (size_t i = 0; i < raced.n; i++) {
        float sample;
        memcpy(&sample, blob + i * sizeof(sample), sizeof(sample));
        raced.samples[i] = (double)sample;
    }
    *ret = raced;
    return 0;
}

int mf_store_comparison_add(struct mf_store *s, const struct mf_comparison *c, int64_t now_ms)
{
    const struct mf_interval *i = &c->p.change;
    double none = (double)NAN;
    return mf_sql_write(
        s,
        "INSERT INTO comparison (unit, task, consumer, worker, verdict, low, mid, high, n, old_us, new_us,"
        " old_status, new_status, old_reason, new_reason, at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "iititdddiddtttti", c->unit, c->task, mf_consumer_name(c->consumer), c->worker,
        c->judged ? mf_paired_verdict_name(c->p.verdict) : "", c->judged ? i->low : none,
        c->judged ? i->mid : none, c->judged ? i->high : none, (int64_t)c->n, c->old_us, c->new_us,
        mf_status_name(c->old_status), mf_status_name(c->new_status), c->old_reason, c->new_reason, now_ms);
}

int mf_store_comparisons_each(struct mf_store *s, int64_t task, enum mf_consumer consumer,
                              mf_comparison_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT c.unit, c.worker, c.verdict, c.low, c.mid, c.high, c.n, c.old_us, c.new_us,"
                   " c.old_status, c.new_status, c.old_reason, c.new_reason, w.name FROM comparison c"
                   " JOIN worker w ON w.id = c.worker WHERE c.task = ? AND c.consumer = ?"
                   " ORDER BY c.unit",
                   &q, "it", task, mf_consumer_name(consumer));
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        struct mf_comparison c = {
            .unit = mf_sql_i64(q, 0),
            .task = task,
            .consumer = consumer,
            .worker = mf_sql_i64(q, 1),
            .judged = *mf_sql_text(q, 2) != 0,
            .p.change = {mf_sql_double(q, 3), mf_sql_double(q, 4), mf_sql_double(q, 5)},
            .n = (size_t)mf_sql_i64(q, 6),
            .old_us = mf_sql_double(q, 7),
            .new_us = mf_sql_double(q, 8),
            .old_reason = mf_sql_text(q, 11),
            .new_reason = mf_sql_text(q, 12),
            .worker_name = mf_sql_text(q, 13),
        };
        if (c.judged)
            r = mf_paired_verdict_parse(mf_sql_text(q, 2), &c.p.verdict);
        if (r >= 0)
            r = mf_status_parse(mf_sql_text(q, 9), &c.old_status);
        if (r >= 0)
            r = mf_status_parse(mf_sql_text(q, 10), &c.new_status);
        if (r >= 0)
            r = fn(context, &c);
    }
    return r;
}
