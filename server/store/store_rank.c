#include "server/store/store_rank.h"
#include "server/store/store_private.h"

#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define MEASURED                                                                                         \
    "SELECT s.id, r.status, r.us, r.mad, r.err, r.verified, s.body, json_extract(r.extra, '$.mode') IS " \
    "'eager', e.family FROM result r JOIN step s ON s.id = r.step JOIN enumeration e ON e.id = "         \
    "s.enumeration WHERE r.task = ?1 AND r.final = 1 AND "

static int read_measured(const struct mf_sql *q, struct mf_measured_row *ret)
{
    *ret = (struct mf_measured_row){
        .step = mf_sql_i64(q, 0),
        .us = mf_sql_double(q, 2),
        .mad = mf_sql_double(q, 3),
        .err = mf_sql_double(q, 4),
        .verified = (int)mf_sql_i64(q, 5),
        .body = mf_sql_text(q, 6),
        .is_eager = mf_sql_i64(q, 7) != 0,
        .family = mf_sql_i64(q, 8),
    };
    return mf_status_parse(mf_sql_text(q, 1), &ret->status);
}

int mf_store_measured_each(struct mf_store *s, int64_t task, mf_measured_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, MEASURED "r.step IS NOT NULL ORDER BY r.step", &q, "i", task);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        struct mf_measured_row row;
        r = read_measured(q, &row);
        if (r == 0)
            r = fn(context, &row);
    }
    return r;
}

int mf_store_measured_get(struct mf_store *s, int64_t task, int64_t step, struct mf_measured_row *ret,
                          struct mf_step *ret_step)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, MEASURED "r.step = ?2", &q, "ii", task, step);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    r = read_measured(q, ret);
    if (r < 0)
        return r;
    const char *field;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(ret->body, strlen(ret->body), 1u << 16);
    ret->body = NULL;
    return json ? mf_step_from_json(json, ret_step, &field) : -ENOMEM;
}

int mf_store_pipeline_add(struct mf_store *s, const struct mf_pipeline_row *row, int64_t *ret)
{
    int r = mf_sql_run(
        s,
        "INSERT INTO pipeline (task, consumer, place, steps, structure, block_m, layout, sum_us, forecast_us,"
        " finalist) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "itittitddi", row->task, mf_consumer_name(row->consumer), (int64_t)row->place, row->steps,
        row->structure, (int64_t)row->block_m, row->layout, row->sum_us, row->forecast_us,
        (int64_t)row->finalist);
    if (r < 0)
        return r;
    *ret = mf_store_last_id(s);
    return 0;
}

void mf_pipeline_release(struct mf_pipeline *p)
{
    free(p->steps);
    free(p->structure);
    free(p->layout);
    *p = (struct mf_pipeline){0};
}

int mf_store_pipeline_get(struct mf_store *s, int64_t pipeline, struct mf_pipeline *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(
        s, "SELECT place, block_m, sum_us, forecast_us, steps, structure, layout FROM pipeline WHERE id = ?",
        &q, "i", pipeline);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    struct mf_pipeline p = {
        .id = pipeline,
        .place = (int)mf_sql_i64(q, 0),
        .block_m = (int)mf_sql_i64(q, 1),
        .sum_us = mf_sql_double(q, 2),
        .forecast_us = mf_sql_double(q, 3),
        .steps = strdup(mf_sql_text(q, 4)),
        .structure = strdup(mf_sql_text(q, 5)),
        .layout = strdup(mf_sql_text(q, 6)),
    };
    if (!p.steps || !p.structure || !p.layout) {
        mf_pipeline_release(&p);
        return -ENOMEM;
    }
    *ret = p;
    return 0;
}

int mf_store_layout_set(struct mf_store *s, const struct mf_layout_row *row)
{
    return mf_sql_write(s,
                        "INSERT INTO layout_choice (batch, class, layer_model, consumer, layout, us, body)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (batch, class, layer_model, consumer)"
                        " DO UPDATE SET layout = excluded.layout, us = excluded.us, body = excluded.body",
                        "iitttdt", row->batch, row->class, row->layer_model, mf_consumer_name(row->consumer),
                        row->layout, row->us, row->body);
}

int mf_store_layout_body(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                         enum mf_consumer consumer, char **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s,
                         "SELECT body FROM layout_choice WHERE batch = ? AND class = ? AND layer_model = ?"
                         " AND consumer = ?",
                         &q, "iitt", batch, class, layer_model, mf_consumer_name(consumer));
    if (r <= 0)
        return r;
    *ret = strdup(mf_sql_text(q, 0));
    return *ret ? 1 : -ENOMEM;
}

int mf_store_layout_race_add(struct mf_store *s, const struct mf_layout_race_row *row)
{
    return mf_sql_write(s,
                        "INSERT INTO layout_race (task, consumer, layout, pipeline, us, mad, n, tries,"
                        " unstable, ties, provenance) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        "ittiddiittt", row->task, mf_consumer_name(row->consumer), row->layout, row->pipeline,
                        row->reported.us, row->reported.mad, row->reported.n, row->reported.tries,
                        row->reported.unstable, row->ties, row->provenance);
}

/* Reads us, mad, n, tries and unstable from this column on. */
static struct mf_reported read_reported(const struct mf_sql *q, int column)
{
    return (struct mf_reported){.us = mf_sql_double(q, column),
                                .mad = mf_sql_double(q, column + 1),
                                .n = mf_sql_i64(q, column + 2),
                                .tries = mf_sql_i64(q, column + 3),
                                .unstable = mf_sql_text(q, column + 4)};
}

int mf_store_layout_races_each(struct mf_store *s, int64_t task, enum mf_consumer consumer,
                               mf_layout_race_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT layout, pipeline, ties, provenance, us, mad, n, tries, unstable FROM layout_race"
                   " WHERE task = ? AND consumer = ? ORDER BY layout",
                   &q, "it", task, mf_consumer_name(consumer));
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        const struct mf_layout_race_row row = {.task = task,
                                               .consumer = consumer,
                                               .layout = mf_sql_text(q, 0),
                                               .pipeline = mf_sql_i64(q, 1),
                                               .ties = mf_sql_text(q, 2),
                                               .provenance = mf_sql_text(q, 3),
                                               .reported = read_reported(q, 4)};
        r = fn(context, &row);
    }
    return r;
}

int mf_store_config_add(struct mf_store *s, const struct mf_config_row *row, int64_t now_ms)
{
    return mf_sql_write(
        s,
        "INSERT INTO config (task, consumer, shape, class, model, pipeline, us, mad, n, tries, unstable, us1,"
        " us2, err1, err2, ties, provenance, at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "itiiiiddiitddddtti", row->task, mf_consumer_name(row->consumer), row->shape, row->class, row->model,
        row->pipeline, row->reported.us, row->reported.mad, row->reported.n, row->reported.tries,
        row->reported.unstable, row->us1, row->us2, row->err1, row->err2, row->ties, row->provenance, now_ms);
}

int mf_store_config_replace(struct mf_store *s, const struct mf_config_row *row)
{
    return mf_sql_write(
        s,
        "UPDATE config SET pipeline = ?, us = ?, mad = ?, n = ?, tries = ?, unstable = ?, us1 = ?, us2 = ?,"
        " err1 = ?, err2 = ?, ties = ?, provenance = ? WHERE task = ? AND consumer = ?",
        "iddiitddddttit", row->pipeline, row->reported.us, row->reported.mad, row->reported.n,
        row->reported.tries, row->reported.unstable, row->us1, row->us2, row->err1, row->err2, row->ties,
        row->provenance, row->task, mf_consumer_name(row->consumer));
}

int mf_store_config_set_time(struct mf_store *s, const struct mf_config_row *row, int64_t *ret_n_ties)
{
    int r = mf_sql_write(
        s,
        "UPDATE config SET us = ?, mad = ?, n = ?, tries = ?, unstable = ?, us1 = ?, us2 = ? WHERE task = ?"
        " AND consumer = ?",
        "ddiitddit", row->reported.us, row->reported.mad, row->reported.n, row->reported.tries,
        row->reported.unstable, row->us1, row->us2, row->task, mf_consumer_name(row->consumer));
    if (r < 0)
        return r;
    r = mf_sql_get_i64(s, "SELECT json_array_length(ties) FROM config WHERE task = ? AND consumer = ?",
                       ret_n_ties, "it", row->task, mf_consumer_name(row->consumer));
    return r < 0 ? r : 0;
}

int mf_store_config_get(struct mf_store *s, int64_t task, enum mf_consumer consumer, int64_t *ret_pipeline,
                        double *ret_us)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT pipeline, us FROM config WHERE task = ? AND consumer = ?", &q, "it", task,
                         mf_consumer_name(consumer));
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    *ret_pipeline = mf_sql_i64(q, 0);
    *ret_us = mf_sql_double(q, 1);
    return 0;
}

int mf_store_pipeline_set_race(struct mf_store *s, int64_t pipeline, double us, double mad)
{
    return mf_sql_write(s, "UPDATE pipeline SET race_us = ?, race_mad = ? WHERE id = ?", "ddi", us, mad,
                        pipeline);
}

#define LAYER " FROM shape s CROSS JOIN task g ON g.shape = s.id AND g.batch = ?1 AND g.class = ?2"
#define DECIDED                                                                                    \
    " NOT EXISTS (SELECT 1 FROM promotion x WHERE x.task = f.task AND x.consumer = f.consumer AND" \
    " x.decision = 'pending')"

int mf_store_rungs_each(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                        enum mf_consumer consumer, mf_rung_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT g.id, s.token, f.us, f.mad, f.n, f.tries, f.unstable" LAYER
                   " JOIN config f ON f.task = g.id AND f.consumer = ?4 WHERE s.layer_model = ?3 AND" DECIDED
                   " ORDER BY s.token, g.id",
                   &q, "iitt", batch, class, layer_model, mf_consumer_name(consumer));
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        const struct mf_rung_row row = {
            .task = mf_sql_i64(q, 0), .token = mf_sql_i64(q, 1), .reported = read_reported(q, 2)};
        r = fn(context, &row);
    }
    return r;
}

int mf_store_task_of_most_tokens(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                                 int64_t *ret)
{
    return mf_sql_get_i64(s,
                          "SELECT g.id" LAYER
                          " WHERE s.layer_model = ?3 AND g.state NOT IN ('done', 'failed', 'cancelled')"
                          " ORDER BY s.token DESC, g.id LIMIT 1",
                          ret, "iit", batch, class, layer_model);
}

int mf_store_configs_decided(struct mf_store *s, int64_t task)
{
    int64_t undecided = 1;
    int r = mf_sql_get_i64(s,
                           "SELECT EXISTS (SELECT 1 FROM task_consumer c WHERE c.task = ? AND c.reason = ''"
                           " AND NOT EXISTS (SELECT 1 FROM config f WHERE f.task = c.task"
                           " AND f.consumer = c.consumer AND" DECIDED "))",
                           &undecided, "i", task);
    return r < 0 ? r : !undecided;
}

int mf_store_survivors_each(struct mf_store *s, int64_t task, enum mf_consumer consumer, const char *layout,
                            mf_survivor_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT p.id, r.us, p.block_m FROM result r JOIN pipeline p ON p.id = r.pipeline"
                   " WHERE r.task = ?1 AND r.step IS NULL AND r.final = 1 AND r.status = 'ok' AND r.us > 0"
                   " AND (?2 IS NULL OR p.layout = ?2) AND p.consumer = ?3 ORDER BY r.id",
                   &q, "itt", task, layout, mf_consumer_name(consumer));
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, mf_sql_i64(q, 0), mf_sql_double(q, 1), (int)mf_sql_i64(q, 2));
    return r;
}

int mf_store_config_regret(struct mf_store *s, int64_t task, enum mf_consumer consumer, const char *json)
{
    return mf_sql_write(s,
                        "UPDATE config SET regret = json_insert(regret, '$[#]', json(?3)) WHERE task = ?1"
                        " AND consumer = ?2",
                        "itt", task, mf_consumer_name(consumer), json);
}

int mf_store_forecast_ratios_each(struct mf_store *s, int64_t batch, mf_forecast_ratio_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT g.model, p.structure, r.worker, r.us, p.sum_us FROM task g"
                   " JOIN pipeline p ON p.task = g.id"
                   " JOIN result r ON r.task = g.id AND r.step IS NULL AND r.final = 1 AND r.pipeline = p.id"
                   " WHERE g.batch = ? AND r.status = 'ok' AND r.us > 0 AND p.sum_us > 0"
                   " ORDER BY g.model, p.structure, r.worker, p.id",
                   &q, "i", batch);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        struct mf_ratio_key key = {
            .model = mf_sql_i64(q, 0), .structure = mf_sql_text(q, 1), .worker = mf_sql_i64(q, 2)};
        r = fn(context, &key, log(mf_sql_double(q, 3) / mf_sql_double(q, 4)));
    }
    return r;
}

int mf_store_ratio_add(struct mf_store *s, const struct mf_ratio_key *key, int64_t batch, int64_t n,
                       double log_ratio, double log_spread)
{
    return mf_sql_write(
        s,
        "INSERT INTO structure_ratio (model, structure, batch, worker, n, log_ratio, log_spread)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        "itiiidd", key->model, key->structure, batch, key->worker, n, log_ratio, log_spread);
}

int mf_store_ratios_each(struct mf_store *s, int64_t model, const char *structure, int64_t before_ms,
                         mf_ratio_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT r.worker, sum(r.n * r.log_ratio) / sum(r.n), sum(r.n * r.log_spread) / sum(r.n)"
                   " FROM structure_ratio r JOIN batch b ON b.id = r.batch JOIN worker w ON w.id = r.worker"
                   " WHERE r.model = ? AND r.structure = ? AND b.ended_ms <= ? AND w.quarantined = ''"
                   " GROUP BY r.worker ORDER BY r.worker",
                   &q, "iti", model, structure, before_ms);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, mf_sql_i64(q, 0), mf_sql_double(q, 1), mf_sql_double(q, 2));
    return r;
}
