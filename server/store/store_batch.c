#include "server/store/store_batch.h"
#include "server/store/store_private.h"

#include "common/base/array.h"
#include "common/base/text.h"

#include <errno.h>
#include <string.h>

MF_NAMES_DEFINE(mf_task_state, MF_TASK_, MF_TASK_MAP)

void mf_ids_release(struct mf_ids *ids)
{
    free(ids->all);
    *ids = (struct mf_ids){0};
}

int mf_ids_add(struct mf_ids *ids, int64_t id)
{
    int r = mf_array_grow(&ids->all, ids->n, &ids->cap, sizeof(*ids->all));
    if (r < 0)
        return r;
    ids->all[ids->n++] = id;
    return 0;
}

bool mf_ids_contain(const struct mf_ids *ids, int64_t id)
{
    size_t i = 0;
    while (i < ids->n && ids->all[i] != id)
        i++;
    return i < ids->n;
}

int mf_sql_ids(struct mf_store *s, const char *literal, struct mf_ids *ret, const char *types, ...)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    va_list args;
    va_start(args, types);
    int r = mf_sqlv(s, literal, &q, types, args);
    va_end(args);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = mf_ids_add(ret, mf_sql_i64(q, 0));
    return r;
}

int mf_store_find_receipt(struct mf_store *s, const char *literal, const char *key, const char *body_hash,
                          cJSON **ret_receipt)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, literal, &q, "t", key);
    if (r <= 0)
        return r;
    if (strcmp(mf_sql_text(q, 0), body_hash) != 0)
        return -EEXIST;
    *ret_receipt = cJSON_Parse(mf_sql_text(q, 1));
    return *ret_receipt ? 1 : -ENOMEM;
}

int mf_store_batch_find_receipt(struct mf_store *s, const char *key, const char *body_hash,
                                cJSON **ret_receipt)
{
    return mf_store_find_receipt(s, "SELECT body_hash, receipt FROM batch WHERE idempotency_key = ?", key,
                                 body_hash, ret_receipt);
}

static int add_batch(struct mf_store *s, const struct mf_batch_row *row, const char *state,
                     const char *receipt, int64_t *ret)
{
    const char *key = row->idempotency_key && *row->idempotency_key ? row->idempotency_key : NULL;
    int r =
        mf_sql_run(s,
                   "INSERT INTO batch (name, state, priority, options, idempotency_key, body_hash, receipt,"
                   " created_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                   "ttitttti", row->name, state, (int64_t)row->priority, row->options, key, row->body_hash,
                   receipt, row->created_ms);
    if (r < 0)
        return r;
    *ret = mf_store_last_id(s);
    return 0;
}

int mf_store_batch_add(struct mf_store *s, const struct mf_batch_row *row, int64_t *ret)
{
    return add_batch(s, row, "open", "{}", ret);
}

int mf_store_batch_add_partial(struct mf_store *s, const struct mf_batch_row *row, int64_t *ret)
{
    return add_batch(s, row, "cancelled", "", ret);
}

int mf_store_batch_open(struct mf_store *s, int64_t batch)
{
    return mf_sql_write(s, "UPDATE batch SET state = 'open' WHERE id = ?", "i", batch);
}

#define PARTIAL "SELECT id FROM batch WHERE state = 'cancelled' AND receipt = ''"

int mf_store_batches_remove_partial(struct mf_store *s)
{
    int r = mf_sql_write(s, "DELETE FROM baseline_row WHERE batch IN (" PARTIAL ")", "");
    if (r == 0)
        r = mf_sql_write(s,
                         "DELETE FROM task_consumer WHERE task IN (SELECT id FROM task WHERE batch IN"
                         " (" PARTIAL "))",
                         "");
    if (r == 0)
        r = mf_sql_write(s, "DELETE FROM task WHERE batch IN (" PARTIAL ")", "");
    return r < 0 ? r : mf_sql_write(s, "DELETE FROM batch WHERE state = 'cancelled' AND receipt = ''", "");
}

int mf_store_batch_set_receipt(struct mf_store *s, int64_t batch, const char *receipt)
{
    return mf_sql_write(s, "UPDATE batch SET receipt = ? WHERE id = ?", "ti", receipt, batch);
}

int mf_store_batch_get(struct mf_store *s, int64_t batch, int *ret_priority, int64_t *ret_created_ms,
                       char **ret_options, bool *ret_open)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT priority, created_ms, options, state = 'open' FROM batch WHERE id = ?",
                         &q, "i", batch);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    char *options = strdup(mf_sql_text(q, 2));
    if (!options)
        return -ENOMEM;
    *ret_priority = (int)mf_sql_i64(q, 0);
    *ret_created_ms = mf_sql_i64(q, 1);
    *ret_options = options;
    *ret_open = mf_sql_i64(q, 3) != 0;
    return 0;
}

int mf_store_batch_end(struct mf_store *s, int64_t batch, const char *state, int64_t now_ms)
{
    return mf_sql_write(s, "UPDATE batch SET state = ?, ended_ms = ? WHERE id = ?", "tii", state, now_ms,
                        batch);
}

int mf_store_shape(struct mf_store *s, const struct mf_shape *shape, int64_t *ret)
{
    char row[MF_SHAPE_TEXT_MAX], layer_model[MF_SHAPE_TEXT_MAX];
    mf_shape_print(shape, row);
    mf_shape_print_layer_model(shape, layer_model);
    int r = mf_sql_get_i64(s,
                           "INSERT INTO shape (row, layer_model, token) VALUES (?, ?, ?)"
                           " ON CONFLICT (row) DO UPDATE SET row = row RETURNING id",
                           ret, "tti", row, layer_model, shape->token);
    return r < 0 ? r : 0;
}

int mf_store_task_add(struct mf_store *s, int64_t batch, int64_t shape, int64_t class, mf_consumers consumers,
                      const char *reason)
{
    int r =
        mf_sql_run(s, "INSERT INTO task (batch, shape, class, state, reason) VALUES (?, ?, ?, 'waiting', ?)",
                   "iiIt", batch, shape, class, reason);
    int64_t task = mf_store_last_id(s);
    for (enum mf_consumer c = 0; r >= 0 && c < MF_CONSUMER_N_; c++) {
        if (consumers & MF_CONSUMER_BIT(c))
            r = mf_sql_run(s, "INSERT INTO task_consumer (task, consumer) VALUES (?, ?)", "it", task,
                           mf_consumer_name(c));
    }
    return r < 0 ? r : 0;
}

int mf_store_task_consumers(struct mf_store *s, int64_t task, mf_consumers *ret_all, mf_consumers *ret_lost)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    mf_consumers all = 0, lost = 0;
    int r = mf_sql(s, "SELECT consumer, reason <> '' FROM task_consumer WHERE task = ?", &q, "i", task);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        enum mf_consumer c;
        r = mf_consumer_parse(mf_sql_text(q, 0), &c);
        if (r < 0)
            return r;
        all |= MF_CONSUMER_BIT(c);
        lost |= mf_sql_i64(q, 1) ? MF_CONSUMER_BIT(c) : 0;
    }
    *ret_all = all;
    *ret_lost = lost;
    return r;
}

int mf_store_task_lose(struct mf_store *s, int64_t task, enum mf_consumer consumer, const char *reason)
{
    return mf_sql_write(s, "UPDATE task_consumer SET reason = ? WHERE task = ? AND consumer = ?", "tit",
                        reason, task, mf_consumer_name(consumer));
}

int mf_store_task_reasons(struct mf_store *s, int64_t task, char *ret, size_t cap)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s,
                         "SELECT CASE WHEN count(DISTINCT reason) = 1 THEN reason ELSE group_concat(consumer"
                         " || ': ' || reason, '; ') END FROM task_consumer WHERE task = ?",
                         &q, "i", task);
    if (r > 0)
        mf_format(ret, cap, "%s", mf_sql_text(q, 0));
    return r < 0 ? r : 0;
}

int mf_store_task_get(struct mf_store *s, int64_t task, struct mf_task_row *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s,
                         "SELECT g.batch, g.shape, g.class, g.model, g.state, g.n_candidates, g.n_steps,"
                         " g.n_measured, g.probe_ms, s.row, s.layer_model FROM task g JOIN shape s ON s.id = "
                         "g.shape WHERE g.id = ?",
                         &q, "i", task);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    *ret = (struct mf_task_row){
        .batch = mf_sql_i64(q, 0),
        .shape = mf_sql_i64(q, 1),
        .class = mf_sql_i64(q, 2),
        .model = mf_sql_i64(q, 3),
        .counts = {mf_sql_i64(q, 5), mf_sql_i64(q, 6), mf_sql_i64(q, 7), mf_sql_i64(q, 8)},
    };
    r = mf_task_state_parse(mf_sql_text(q, 4), &ret->state);
    if (r == 0)
        r = mf_copy(ret->row, sizeof(ret->row), mf_sql_text(q, 9));
    if (r == 0)
        r = mf_copy(ret->layer_model, sizeof(ret->layer_model), mf_sql_text(q, 10));
    return r;
}

int mf_store_task_set_state(struct mf_store *s, int64_t task, enum mf_task_state state, const char *reason,
                            int64_t now_ms)
{
    return mf_sql_write(s, "UPDATE task SET state = ?, reason = ?, ended_ms = ? WHERE id = ?", "ttIi",
                        mf_task_state_name(state), reason, state >= MF_TASK_DONE ? now_ms : (int64_t)0, task);
}

int mf_store_task_set_reason(struct mf_store *s, int64_t task, const char *reason)
{
    return mf_sql_run(s, "UPDATE task SET reason = ?1 WHERE id = ?2 AND reason <> ?1", "ti", reason, task);
}

int mf_store_task_add_enumeration(struct mf_store *s, int64_t task, int64_t enumeration)
{
    return mf_sql_write(s, "INSERT INTO task_enumeration (task, enumeration) VALUES (?, ?)", "ii", task,
                        enumeration);
}

int mf_store_task_remove_enumeration(struct mf_store *s, int64_t task, int64_t enumeration)
{
    return mf_sql_write(s, "DELETE FROM task_enumeration WHERE task = ? AND enumeration = ?", "ii", task,
                        enumeration);
}

int mf_store_task_enumerations_open(struct mf_store *s, int64_t task, struct mf_ids *ret)
{
    return mf_sql_ids(s,
                      "SELECT e.id FROM task_enumeration t JOIN enumeration e ON e.id = t.enumeration"
                      " WHERE t.task = ? AND e.complete = 0 ORDER BY e.id",
                      ret, "i", task);
}

int mf_store_task_first_enumeration(struct mf_store *s, int64_t task, int64_t *ret)
{
    *ret = 0;
    int r = mf_sql_get_i64(s, "SELECT min(enumeration) FROM task_enumeration WHERE task = ?", ret, "i", task);
    return r < 0 ? r : 0;
}

int mf_store_task_set_counts(struct mf_store *s, int64_t task, const struct mf_task_counts *c)
{
    return mf_sql_write(
        s, "UPDATE task SET n_candidates = ?, n_steps = ?, n_measured = ?, probe_ms = ? WHERE id = ?",
        "iiiii", c->candidates, c->steps, c->measured, c->probe_ms, task);
}

int mf_store_task_set_model(struct mf_store *s, int64_t task, int64_t model)
{
    return mf_sql_write(s, "UPDATE task SET model = ? WHERE id = ? AND model IS NULL", "ii", model, task);
}

int mf_store_task_set_worker(struct mf_store *s, int64_t task, int64_t worker)
{
    return mf_sql_write(s, "UPDATE task SET worker = ? WHERE id = ? AND worker IS NULL", "ii", worker, task);
}

int mf_store_tasks_unpin(struct mf_store *s, int64_t worker)
{
    return mf_sql_write(s, "UPDATE task SET worker = NULL WHERE worker = ?", "i", worker);
}

int mf_store_tasks_unpin_lacking(struct mf_store *s, int64_t worker)
{
    return mf_sql_write(s,
                        "UPDATE task SET worker = NULL WHERE worker = ?1 AND EXISTS (SELECT 1 FROM"
                        " batch_family b WHERE b.batch = task.batch AND b.class = task.class AND NOT EXISTS"
                        " (SELECT 1 FROM worker_family o WHERE o.worker = ?1 AND o.family = b.family))",
                        "i", worker);
}

int mf_store_tasks_assign_class(struct mf_store *s, int64_t class)
{
    return mf_sql_run(s, "UPDATE task SET class = ? WHERE state = 'waiting' AND class IS NULL", "i", class);
}

int mf_store_batches_cancelling(struct mf_store *s, struct mf_ids *ret)
{
    return mf_sql_ids(s,
                      "SELECT DISTINCT b.id FROM task g CROSS JOIN batch b ON b.id = g.batch WHERE g.state IN"
                      " ('waiting', 'enumerating', 'probing', 'ranking', 'racing', 'comparing')"
                      " AND b.state = 'cancelled'",
                      ret, "");
}

static void reverse(int64_t *ids, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        int64_t id = ids[i];
        ids[i] = ids[n - 1 - i];
        ids[n - 1 - i] = id;
    }
}

/* The query needs no sort: its index has the order of ids. mf_farm_submit adds tasks by layer model and
 * ascending token count. The token count falls where a layer model ends, so reversing each run of rising
 * counts keeps layer models together and starts with the largest token count. */
int mf_store_tasks_waiting(struct mf_store *s, int64_t class, struct mf_ids *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int64_t batch = 0, token = 0;
    size_t first = ret->n;
    int r = mf_sql(s,
                   "SELECT g.id, g.batch, s.token FROM task g INDEXED BY task_state"
                   " CROSS JOIN batch b ON b.id = g.batch CROSS JOIN shape s ON s.id = g.shape"
                   " WHERE g.state = 'waiting' AND g.class = ? AND b.state = 'open' ORDER BY g.id",
                   &q, "i", class);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        if (mf_sql_i64(q, 1) != batch || mf_sql_i64(q, 2) <= token) {
            reverse(ret->all + first, ret->n - first);
            first = ret->n;
        }
        batch = mf_sql_i64(q, 1);
        token = mf_sql_i64(q, 2);
        r = mf_ids_add(ret, mf_sql_i64(q, 0));
    }
    if (r == 0)
        reverse(ret->all + first, ret->n - first);
    return r;
}

int mf_store_tasks_in_state(struct mf_store *s, enum mf_task_state state, struct mf_ids *ret)
{
    return mf_sql_ids(s, "SELECT id FROM task WHERE state = ? ORDER BY id", ret, "t",
                      mf_task_state_name(state));
}

int mf_store_tasks_of_enumeration(struct mf_store *s, int64_t enumeration, struct mf_ids *ret)
{
    return mf_sql_ids(s,
                      "SELECT g.id FROM task_enumeration t CROSS JOIN task g ON g.id = t.task"
                      " WHERE t.enumeration = ? AND g.state = 'enumerating' ORDER BY g.id",
                      ret, "i", enumeration);
}

int mf_store_tasks_of_batch(struct mf_store *s, int64_t batch, struct mf_ids *ret)
{
    return mf_sql_ids(s,
                      "SELECT id FROM task WHERE batch = ? AND state NOT IN ('done', 'failed', 'cancelled')"
                      " ORDER BY id",
                      ret, "i", batch);
}

/* CROSS JOIN makes SQLite start from the shapes of the layer model. Otherwise it would scan all tasks of the
 * batch at each call. */
int mf_store_tasks_of_layer(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                            struct mf_ids *ret, int64_t *ret_n_pending)
{
    int r = mf_sql_get_i64(
        s,
        "SELECT count(*) FROM shape s CROSS JOIN task g ON g.shape = s.id AND g.batch = ?1 AND g.class = ?2"
        " WHERE s.layer_model = ?3 AND g.state IN ('waiting', 'enumerating', 'probing')",
        ret_n_pending, "iit", batch, class, layer_model);
    if (r < 0)
        return r;
    return mf_sql_ids(
        s,
        "SELECT g.id FROM shape s CROSS JOIN task g ON g.shape = s.id AND g.batch = ?1 AND g.class = ?2"
        " WHERE s.layer_model = ?3 AND g.state = 'ranking' ORDER BY s.token, g.id",
        ret, "iit", batch, class, layer_model);
}

/* Tasks of the layer model that may still get a config for the consumer and have none yet. */
#define WITHOUT_CONFIG                                                                                      \
    " FROM shape s JOIN task g ON g.shape = s.id AND g.batch = ?1 AND g.class = ?2 JOIN task_consumer c ON" \
    " c.task = g.id AND c.consumer = ?4 AND c.reason = '' WHERE s.layer_model = ?3 AND NOT EXISTS (SELECT"  \
    " 1 FROM config f WHERE f.task = g.id AND f.consumer = ?4)"
#define HAS_RACED " EXISTS (SELECT 1 FROM layout_race x WHERE x.task = g.id AND x.consumer = ?4)"

int mf_store_tasks_raced(struct mf_store *s, int64_t batch, int64_t class, const char *layer_model,
                         enum mf_consumer consumer, struct mf_ids *ret, int64_t *ret_n_pending)
{
    int r = mf_sql_get_i64(s,
                           "SELECT count(*)" WITHOUT_CONFIG
                           " AND g.state NOT IN ('done', 'failed', 'cancelled') AND NOT" HAS_RACED,
                           ret_n_pending, "iitt", batch, class, layer_model, mf_consumer_name(consumer));
    if (r < 0)
        return r;
    return mf_sql_ids(s,
                      "SELECT g.id" WITHOUT_CONFIG " AND g.state IN ('racing', 'comparing') AND" HAS_RACED
                      " ORDER BY s.token, g.id",
                      ret, "iitt", batch, class, layer_model, mf_consumer_name(consumer));
}

int mf_store_open_tasks_count(struct mf_store *s, int64_t batch, int64_t *ret)
{
    int r = mf_sql_get_i64(s,
                           "SELECT count(*) FROM task WHERE batch = ?"
                           " AND state NOT IN ('done', 'failed', 'cancelled')",
                           ret, "i", batch);
    return r < 0 ? r : 0;
}

int mf_store_enumeration(struct mf_store *s, int64_t class, int64_t shape, int64_t family, int64_t *ret,
                         bool *ret_complete)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(
        s,
        "INSERT INTO enumeration (class, shape, family) VALUES (?, ?, ?)"
        " ON CONFLICT (class, shape, family, dropped) DO UPDATE SET shape = shape RETURNING id, complete",
        &q, "iii", class, shape, family);
    if (r <= 0)
        return r < 0 ? r : -EIO;
    *ret = mf_sql_i64(q, 0);
    *ret_complete = mf_sql_i64(q, 1) != 0;
    return 0;
}

int mf_store_enumeration_begin(struct mf_store *s, int64_t enumeration, int64_t worker)
{
    int r = mf_sql_run(s,
                       "UPDATE enumeration SET worker = ?1 WHERE id = ?2 AND complete = 0"
                       " AND worker IS NOT ?1",
                       "ii", worker, enumeration);
    if (r <= 0)
        return r;
    r = mf_sql_write(s, "DELETE FROM step WHERE enumeration = ?", "i", enumeration);
    return r < 0 ? r
                 : mf_sql_write(s, "DELETE FROM rejection WHERE enumeration = ? AND batch IS NULL", "i",
                                enumeration);
}

int mf_store_enumeration_family(struct mf_store *s, int64_t enumeration, int64_t *ret)
{
    int r = mf_sql_get_i64(s, "SELECT family FROM enumeration WHERE id = ?", ret, "i", enumeration);
    return r < 0 ? r : r > 0 ? 0 : -ENOENT;
}

int mf_store_enumeration_clear(struct mf_store *s, int64_t enumeration)
{
    return mf_sql_write(s,
                        "DELETE FROM step WHERE enumeration = (SELECT id FROM enumeration WHERE id = ?"
                        " AND complete = 0)",
                        "i", enumeration);
}

int mf_store_enumeration_dispute(struct mf_store *s, int64_t step, int64_t pipeline, int64_t worker)
{
    return mf_sql_write(
        s,
        "UPDATE enumeration SET dropped = id WHERE id IN (SELECT enumeration FROM step WHERE"
        " id = ?1 OR id IN (SELECT value FROM pipeline p, json_each(p.steps) WHERE p.id = ?2))"
        " AND dropped = 0 AND complete = 1 AND worker IS NOT ?3",
        "iii", step, pipeline, worker);
}

int mf_store_enumerations_drop(struct mf_store *s, int64_t worker)
{
    return mf_sql_write(
        s, "UPDATE enumeration SET dropped = id WHERE dropped = 0 AND complete = 1 AND worker = ?", "i",
        worker);
}

int mf_store_event_add(struct mf_store *s, int64_t batch, const char *kind, const char *body, int64_t now_ms,
                       int64_t *ret)
{
    int r = mf_sql_run(s, "INSERT INTO event (batch, kind, body, at_ms) VALUES (?, ?, ?, ?)", "Itti", batch,
                       kind, body, now_ms);
    if (r < 0)
        return r;
    *ret = mf_store_last_id(s);
    return 0;
}

int mf_store_events_trim(struct mf_store *s, int64_t n)
{
    return mf_sql_write(s, "DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?", "i", n);
}
