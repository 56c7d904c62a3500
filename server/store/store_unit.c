#include "server/store/store_unit.h"
#include "server/store/store_private.h"

#include "server/store/store_family.h"

#include "common/base/text.h"

#include <errno.h>
#include <string.h>

/* A set of families as text: a JSON array of ids in ascending order. */
#define SET_OF(families) "SELECT json_group_array(family) FROM (" families " ORDER BY family)"
#define FAMILIES_OF(steps)                                                                        \
    "SELECT DISTINCT e.family FROM " steps " JOIN step t ON t.id = j.value JOIN enumeration e ON" \
    " e.id = t.enumeration"
#define SET_OF_PIPELINES                                                                                   \
    SET_OF(                                                                                                \
        FAMILIES_OF("json_each(?1, '$.pipelines') i JOIN pipeline p ON p.id = i.value, json_each(p.steps)" \
                    " j"))

/* Lists the families of the enumeration, steps or pipelines in the body of a unit of this kind (?1). */
/* clang-format off */
static const char *const families_of_kind[MF_UNIT_N_] = {
    [MF_UNIT_ENUMERATE] = SET_OF("SELECT family FROM enumeration WHERE id = "
                                 "json_extract(?1, '$.enumeration')"),
    [MF_UNIT_PROBE] = SET_OF(FAMILIES_OF("json_each(?1, '$.steps') j")),
    [MF_UNIT_RACE] = SET_OF_PIPELINES,
    [MF_UNIT_COMPARE] = SET_OF_PIPELINES,
};
/* clang-format on */

/* Finds the set of families that the unit needs. */
static int find_set(struct mf_store *s, const struct mf_unit_row *row, int64_t *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, families_of_kind[row->kind], &q, "t", row->body);
    if (r < 0)
        return r;
    return mf_store_family_set(s, mf_sql_text(q, 0), ret);
}

int mf_store_unit_add(struct mf_store *s, const struct mf_unit_row *row, int64_t now_ms, int64_t *ret)
{
    int64_t families;
    int r = find_set(s, row, &families);
    if (r < 0)
        return r;
    r = mf_sql_run(
        s,
        "INSERT INTO unit (task, class, kind, state, priority, families, body, avoid_worker, start_tag,"
        " created_ms) VALUES (?, ?, ?, 'ready', ?, ?, ?, ?, ?, ?)",
        "iitiitIii", row->task, row->class, mf_unit_kind_name(row->kind), (int64_t)row->priority, families,
        row->body, row->avoid_worker, row->start_tag, now_ms);
    if (r < 0)
        return r;
    *ret = mf_store_last_id(s);
    return 0;
}

#define UNIT_COLUMNS                                                                                    \
    "id, task, class, kind, priority, body, avoid_worker, attempt, epoch, worker, deadline_ms, state, " \
    "start_tag, families"

static int read_unit(const struct mf_sql *q, struct mf_unit_row *ret)
{
    *ret = (struct mf_unit_row){
        .id = mf_sql_i64(q, 0),
        .task = mf_sql_i64(q, 1),
        .class = mf_sql_i64(q, 2),
        .priority = (int)mf_sql_i64(q, 4),
        .avoid_worker = mf_sql_i64(q, 6),
        .attempt = mf_sql_i64(q, 7),
        .epoch = mf_sql_i64(q, 8),
        .worker = mf_sql_i64(q, 9),
        .deadline_ms = mf_sql_i64(q, 10),
        .leased = strcmp(mf_sql_text(q, 11), "leased") == 0,
        .start_tag = mf_sql_i64(q, 12),
        .families = mf_sql_i64(q, 13),
    };
    int r = mf_unit_kind_parse(mf_sql_text(q, 3), &ret->kind);
    if (r < 0)
        return r;
    ret->body = strdup(mf_sql_text(q, 5));
    return ret->body ? 1 : -ENOMEM;
}

int mf_store_last_start_tag(struct mf_store *s, int64_t batch, int64_t class, int64_t *ret)
{
    int r = mf_sql_get_i64(s,
                           "SELECT coalesce(max(u.start_tag), 0) FROM task g JOIN unit u ON u.task = g.id"
                           " WHERE g.batch = ? AND u.class = ?",
                           ret, "ii", batch, class);
    return r < 0 ? r : 0;
}

int mf_store_least_start_tag(struct mf_store *s, int64_t class, int priority, int64_t *ret)
{
    return mf_sql_get_i64(
        s,
        "SELECT start_tag FROM unit INDEXED BY unit_start_tag WHERE state = 'ready' AND class = ?"
        " AND priority = ? ORDER BY start_tag LIMIT 1",
        ret, "ii", class, (int64_t)priority);
}

/* A task may be pinned to one worker, except for its comparison on a second device. */
#define SECOND_DEVICE "u.kind = 'compare' AND u.avoid_worker IS NOT NULL"
#define PINNED_HERE   "g.worker = ?2 AND NOT (" SECOND_DEVICE ")"
#define NOT_PINNED    "(g.worker IS NULL OR " SECOND_DEVICE ")"

/* True if another connected worker can run the unit. */
#define HAS_OTHER                                                                                            \
    "EXISTS (SELECT 1 FROM worker_family_set o CROSS JOIN worker w ON w.id = o.worker WHERE o.family_set = " \
    "u.families AND w.id <> ?2 AND w.model = ?4 AND " MF_WORKER_AVAILABLE ")"

/* True if the slot may run unit u of task g. Parameters: 1 class, 2 worker, 3 may_be_only, 4 model, 5 last
 * task, 6 epoch, 7 deadline. */
#define RUNNABLE                                                                                     \
    "u.state = 'ready' AND u.class = ?1 AND (" PINNED_HERE " OR (" NOT_PINNED " AND (u.avoid_worker" \
    " IS NULL OR u.avoid_worker <> ?2 OR (?3 AND NOT " HAS_OTHER "))))"                              \
    " AND (u.kind = 'enumerate' OR g.model IS NULL OR g.model = ?4)"
#define FIRST(index, condition)                                                                       \
    "SELECT u.id FROM unit u INDEXED BY " index " CROSS JOIN task g ON g.id = u.task WHERE " RUNNABLE \
    " AND " condition " ORDER BY u.priority DESC, u.start_tag, u.id LIMIT 1"

/* Looks for a unit set by set: the first unit of each set that the worker offers, then the best of these.
 * INDEXED BY is needed, because the planner does not know the number of ready units. The planner also does
 * not know that each scan stops at the first match, because these indices are in the requested order. */
#define FIRST_OF_SETS(index, condition)                                                                      \
    "SELECT b.id FROM worker_family_set o CROSS JOIN unit b ON b.id = (" FIRST(                              \
        index, "u.families = o.family_set AND " condition) ") WHERE o.worker = ?2 ORDER BY b.priority DESC," \
                                                           " b.start_tag, b.id LIMIT 1"
#define LEASE(first)                                                                                     \
    "UPDATE unit SET state = 'leased', attempt = attempt + 1, epoch = ?6, worker = ?2, deadline_ms = ?7" \
    " WHERE id = (" first ") RETURNING " UNIT_COLUMNS

#define IS_OFFERED \
    "EXISTS (SELECT 1 FROM worker_family_set o WHERE o.worker = ?2 AND o.family_set = u.families)"
#define MOST_URGENT                                                                                   \
    "u.priority >= (SELECT max((SELECT x.priority FROM unit x INDEXED BY unit_ready WHERE x.state ="  \
    " 'ready' AND x.class = ?1 AND x.families = y.family_set ORDER BY x.priority DESC LIMIT 1)) FROM" \
    " worker_family_set y WHERE y.worker = ?2)"

int mf_store_unit_lease(struct mf_store *s, const struct mf_slot *slot, enum mf_affinity affinity,
                        bool may_be_only, int64_t epoch, int64_t deadline_ms, struct mf_unit_row *ret)
{
    static const char *const leases[MF_AFFINITY_N_] = {
        [MF_AFFINITY_LAST_TASK] =
            LEASE(FIRST("unit_task", "u.task = ?5 AND " IS_OFFERED " AND " MOST_URGENT)),
        [MF_AFFINITY_IDLE_TASK] =
            LEASE(FIRST_OF_SETS("unit_free", "u.busy = 0 AND ?5 IS NOT NULL AND " MOST_URGENT)),
        [MF_AFFINITY_ANY] = LEASE(FIRST_OF_SETS("unit_ready", "?5 IS NOT NULL")),
    };
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, leases[affinity], &q, "iiiiiii", slot->class_id, slot->id, (int64_t)may_be_only,
                         slot->model_id, slot->last_task, epoch, deadline_ms);
    return r > 0 ? read_unit(q, ret) : r;
}

int mf_store_next_shapes(struct mf_store *s, int64_t class, int64_t limit, mf_row_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(
        s,
        "SELECT s.row FROM (SELECT min(id) AS id, task, max(priority) AS priority FROM (SELECT id, task,"
        "  priority FROM unit INDEXED BY unit_enumerate WHERE state = 'ready' AND kind = 'enumerate'"
        "  AND class = ?1 ORDER BY priority DESC, id LIMIT 32 * ?2) GROUP BY task) u"
        " JOIN task g ON g.id = u.task JOIN shape s ON s.id = g.shape JOIN batch b ON b.id = g.batch"
        " WHERE json_extract(b.options, '$.search') IS NOT 'enumerate'"
        " ORDER BY u.priority DESC, u.id LIMIT ?2",
        &q, "ii", class, limit);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, mf_sql_text(q, 0));
    return r;
}

int mf_store_unit_hold(struct mf_store *s, int64_t unit, int64_t epoch, int64_t deadline_ms)
{
    return mf_sql_write(s,
                        "UPDATE unit SET state = 'leased', attempt = attempt + 1, epoch = ?, worker = NULL,"
                        " deadline_ms = ? WHERE id = ?",
                        "iii", epoch, deadline_ms, unit);
}

int mf_store_unit_is_ready(struct mf_store *s, int64_t unit)
{
    int64_t id;
    return mf_sql_get_i64(s, "SELECT id FROM unit WHERE id = ? AND state = 'ready'", &id, "i", unit);
}

int mf_store_unit_drop_step(struct mf_store *s, int64_t unit, int64_t step)
{
    return mf_sql_write(s,
                        "UPDATE unit SET body = json_set(body, '$.steps', (SELECT json_group_array(value)"
                        " FROM json_each(body, '$.steps') WHERE value <> ?1)) WHERE id = ?2",
                        "ii", step, unit);
}

int mf_store_unit_extend(struct mf_store *s, int64_t unit, int64_t deadline_ms)
{
    return mf_sql_write(s, "UPDATE unit SET deadline_ms = ? WHERE id = ?", "ii", deadline_ms, unit);
}

int mf_store_unit_release(struct mf_store *s, int64_t unit, int64_t avoid_worker)
{
    return mf_sql_write(s,
                        "UPDATE unit SET state = 'ready', worker = NULL, deadline_ms = NULL,"
                        " avoid_worker = coalesce(?, avoid_worker) WHERE id = ?",
                        "Ii", avoid_worker, unit);
}

int mf_store_grant_add(struct mf_store *s, const struct mf_unit_row *row)
{
    return mf_sql_write(s, "INSERT INTO unit_grant (unit, attempt, epoch, worker) VALUES (?, ?, ?, ?)",
                        "iiii", row->id, row->attempt, row->epoch, row->worker);
}

int mf_store_grant_get(struct mf_store *s, int64_t unit, int64_t attempt, int64_t *ret_epoch,
                       int64_t *ret_worker)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT epoch, worker FROM unit_grant WHERE unit = ? AND attempt = ?", &q, "ii",
                         unit, attempt);
    if (r <= 0)
        return r;
    *ret_epoch = mf_sql_i64(q, 0);
    *ret_worker = mf_sql_i64(q, 1);
    return 1;
}

int mf_store_has_result(struct mf_store *s, int64_t unit, int64_t attempt, int64_t step, int64_t pipeline)
{
    int64_t id;
    return mf_sql_get_i64(s,
                          "SELECT id FROM result WHERE unit = ? AND attempt = ? AND coalesce(step, 0) = ?"
                          " AND coalesce(pipeline, 0) = ? LIMIT 1",
                          &id, "iiii", unit, attempt, step, pipeline);
}

int mf_store_unit_end(struct mf_store *s, int64_t unit, const char *state)
{
    return mf_sql_write(s, "UPDATE unit SET state = ?, deadline_ms = NULL WHERE id = ?", "ti", state, unit);
}

int mf_store_unit_get(struct mf_store *s, int64_t unit, struct mf_unit_row *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT " UNIT_COLUMNS " FROM unit WHERE id = ?", &q, "i", unit);
    if (r > 0)
        r = read_unit(q, ret);
    return r == 0 ? -ENOENT : r < 0 ? r : 0;
}

int mf_store_units_leased(struct mf_store *s, struct mf_ids *ret)
{
    return mf_sql_ids(s, "SELECT id FROM unit WHERE state = 'leased'", ret, "");
}

int mf_store_units_prolong(struct mf_store *s, int64_t deadline_ms)
{
    return mf_sql_write(s, "UPDATE unit SET deadline_ms = max(deadline_ms, ?) WHERE state = 'leased'", "i",
                        deadline_ms);
}

int mf_store_open_units_count(struct mf_store *s, int64_t task, int64_t *ret)
{
    int r = mf_sql_get_i64(s, "SELECT count(*) FROM unit WHERE task = ? AND state IN ('ready', 'leased')",
                           ret, "i", task);
    return r < 0 ? r : 0;
}

int mf_store_units_cancel(struct mf_store *s, int64_t task)
{
    return mf_sql_write(s,
                        "UPDATE unit SET state = 'cancelled', deadline_ms = NULL WHERE task = ?"
                        " AND state IN ('ready', 'leased')",
                        "i", task);
}

int mf_store_has_enumerate_unit(struct mf_store *s, int64_t enumeration)
{
    int64_t id;
    return mf_sql_get_i64(
        s,
        "SELECT u.id FROM task_enumeration t CROSS JOIN unit u ON u.task = t.task AND u.state IN ('ready',"
        " 'leased') WHERE t.enumeration = ?1 AND u.kind = 'enumerate' AND"
        " json_extract(u.body, '$.enumeration') = ?1 LIMIT 1",
        &id, "i", enumeration);
}

/* Tries SELECT first, because most kernels exist already from other shapes, and a SELECT costs a fifth of an
 * INSERT with ON CONFLICT. */
static int kernel_of(struct mf_store *s, int64_t enumeration, const struct mf_step *step, int64_t *ret)
{
    int r = mf_sql_get_i64(s,
                           "SELECT k.id FROM enumeration e JOIN family f ON f.id = e.family JOIN kernel k ON"
                           " k.family = ? AND k.revision = f.revision AND k.name = ? WHERE e.id = ?",
                           ret, "tti", step->family, step->name, enumeration);
    if (r != 0)
        return r;
    return mf_sql_get_i64(s,
                          "INSERT INTO kernel (family, revision, name) SELECT ?, f.revision, ? FROM"
                          " enumeration e JOIN family f ON f.id = e.family WHERE e.id = ? RETURNING id",
                          ret, "tti", step->family, step->name, enumeration);
}

int mf_store_step_add(struct mf_store *s, int64_t enumeration, const struct mf_step *step, const char *body)
{
    int64_t kernel = 0;
    char covers[MF_OPS_TEXT_MAX];
    int r = kernel_of(s, enumeration, step, &kernel);
    if (r < 0)
        return r;
    mf_ops_print(step->covers, covers);
    return mf_sql_run(s,
                      "INSERT INTO step (enumeration, kernel, covers, block_m, flops, bytes, body)"
                      " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (enumeration, kernel) DO NOTHING",
                      "iitiddt", enumeration, kernel, covers, (int64_t)step->block_m, step->flops,
                      step->bytes, body);
}

int mf_store_rejection_add(struct mf_store *s, int64_t enumeration, int64_t batch, const char *family,
                           const char *kernel, const char *rule, const char *reason)
{
    return mf_sql_write(
        s,
        "INSERT INTO rejection (enumeration, batch, family, kernel, rule, reason) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (enumeration, family, kernel, rule, coalesce(batch, 0))"
        " DO UPDATE SET reason = excluded.reason",
        "iItttt", enumeration, batch, family, kernel, rule, reason);
}

int mf_store_rejections_add_refused(struct mf_store *s, int64_t enumeration, int64_t batch, int64_t class)
{
    return mf_sql_write(
        s,
        "INSERT INTO rejection (enumeration, batch, family, kernel, rule, reason) SELECT ?1, ?2,"
        " json_extract(j.value, '$.name'), json_extract(j.value, '$.name'), 'refused',"
        " 'worker ' || w.name || ' could not load the family: ' || json_extract(j.value, '$.why')"
        " FROM device_model m JOIN worker w ON w.model = m.id, json_each(w.refused_families) j"
        " WHERE m.class = ?3 AND " MF_WORKER_AVAILABLE " ON CONFLICT (enumeration, family, kernel, rule,"
        " coalesce(batch, 0)) DO UPDATE SET reason = excluded.reason",
        "iii", enumeration, batch, class);
}

int mf_store_enumeration_complete(struct mf_store *s, int64_t enumeration)
{
    return mf_sql_write(s, "UPDATE enumeration SET complete = 1 WHERE id = ?", "i", enumeration);
}

int mf_store_enumeration_counts(struct mf_store *s, int64_t enumeration, int64_t *ret_steps,
                                int64_t *ret_rejections)
{
    int r = mf_sql_get_i64(s, "SELECT count(*) FROM step WHERE enumeration = ?", ret_steps, "i", enumeration);
    if (r < 0)
        return r;
    r = mf_sql_get_i64(s, "SELECT count(*) FROM rejection WHERE enumeration = ? AND batch IS NULL",
                       ret_rejections, "i", enumeration);
    return r < 0 ? r : 0;
}

#define STEP_COLUMNS                                                       \
    "s.id, k.id, k.name, k.family, s.covers, s.block_m, s.flops, s.bytes," \
    " coalesce(json_extract(s.body, '$.foreign'), 0), coalesce(json_extract(s.body, '$.aiter'), 0)"

static int read_step(const struct mf_sql *q, struct mf_step_row *ret)
{
    *ret = (struct mf_step_row){
        .id = mf_sql_i64(q, 0),
        .kernel = mf_sql_i64(q, 1),
        .block_m = (int32_t)mf_sql_i64(q, 5),
        .flops = mf_sql_double(q, 6),
        .bytes = mf_sql_double(q, 7),
        .foreign = mf_sql_i64(q, 8) != 0,
        .aiter = mf_sql_i64(q, 9) != 0,
    };
    int r = mf_copy(ret->name, sizeof(ret->name), mf_sql_text(q, 2));
    if (r == 0)
        r = mf_copy(ret->family, sizeof(ret->family), mf_sql_text(q, 3));
    return r < 0 ? r : mf_ops_parse(mf_sql_text(q, 4), &ret->covers);
}

int mf_store_steps_each(struct mf_store *s, int64_t task, int64_t class, int64_t before_ms, mf_step_fn fn,
                        void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql(s,
               "SELECT " STEP_COLUMNS ", e.family, x.reason FROM task_enumeration t JOIN enumeration e ON"
               " e.id = t.enumeration JOIN step s ON s.enumeration = e.id JOIN kernel k ON k.id = s.kernel"
               " LEFT JOIN quarantine x ON x.kernel = k.id AND x.class = ?2 AND x.at_ms <= ?3"
               " WHERE t.task = ?1 ORDER BY k.family, k.name, s.id",
               &q, "iii", task, class, before_ms);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        struct mf_step_row row;
        r = read_step(q, &row);
        row.offered_by = mf_sql_i64(q, 10);
        if (r == 0)
            r = fn(context, &row, mf_sql_null(q, 11) ? NULL : mf_sql_text(q, 11));
    }
    return r;
}

int mf_store_search_each(struct mf_store *s, int64_t task, mf_search_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT s.id, json_extract(s.body, '$.needs', '$.gives'), r.id IS NOT NULL, r.us"
                   " FROM task_enumeration t JOIN step s ON s.enumeration = t.enumeration"
                   " LEFT JOIN result r INDEXED BY result_final ON r.task = ?1 AND r.step = s.id"
                   " AND r.final = 1 WHERE t.task = ?1",
                   &q, "i", task);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, &(struct mf_search_row){.step = mf_sql_i64(q, 0),
                                                .interface = mf_sql_text(q, 1),
                                                .decided = mf_sql_i64(q, 2) != 0,
                                                .us = mf_sql_double(q, 3)});
    return r;
}

/* Number of recent tasks among which similar tasks of other layer models are looked for. */
#define RECENT_TASKS "256"
#define IS_NEIGHBOUR "o.class = ?2 AND o.id <> ?1 AND o.n_measured > 0"

int mf_store_neighbours_each(struct mf_store *s, int64_t task, int64_t class, const char *layer_model,
                             mf_neighbour_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT * FROM (SELECT o.id, h.row FROM shape h JOIN task o ON o.shape = h.id"
                   " WHERE h.layer_model = ?3 AND " IS_NEIGHBOUR " ORDER BY o.id DESC LIMIT " RECENT_TASKS
                   ") UNION ALL SELECT * FROM (SELECT o.id,"
                   " h.row FROM task o JOIN shape h ON h.id = o.shape WHERE o.id > (SELECT max(id) FROM task)"
                   " - " RECENT_TASKS " AND h.layer_model <> ?3 AND " IS_NEIGHBOUR " ORDER BY o.id DESC)",
                   &q, "iit", task, class, layer_model);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, mf_sql_i64(q, 0), mf_sql_text(q, 1));
    return r;
}

int mf_store_fastest_each(struct mf_store *s, int64_t task, mf_fastest_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    /* SQLite takes k.family and k.name from the row with the minimum */
    int r = mf_sql(s,
                   "SELECT k.family, k.name, min(r.us) FROM result r INDEXED BY result_final"
                   " JOIN step s ON s.id = r.step JOIN kernel k ON k.id = s.kernel"
                   " WHERE r.task = ? AND r.final = 1 AND r.status = 'ok'"
                   " GROUP BY k.family, s.covers, s.block_m",
                   &q, "i", task);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, mf_sql_text(q, 0), mf_sql_text(q, 1));
    return r;
}

int mf_store_step_get(struct mf_store *s, int64_t step, struct mf_step_row *ret, char **ret_body)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s,
                         "SELECT " STEP_COLUMNS ", s.body FROM step s JOIN kernel k ON k.id = s.kernel"
                         " WHERE s.id = ?",
                         &q, "i", step);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    r = read_step(q, ret);
    if (r == 0 && ret_body) {
        char *body = strdup(mf_sql_text(q, 10));
        if (!body)
            return -ENOMEM;
        *ret_body = body;
    }
    return r;
}

int mf_store_step_decided(struct mf_store *s, int64_t task, int64_t unit, int64_t step, enum mf_status *ret,
                          double *ret_us)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql_first(s,
                     "SELECT status, us FROM result WHERE task = ?1 AND step = ?2 AND final = 1 UNION ALL"
                     " SELECT status, us FROM result WHERE task = ?1 AND step = ?2 AND final = 0 AND late = 0"
                     " AND unit = ?3 LIMIT 1",
                     &q, "iii", task, step, unit);
    if (r <= 0)
        return r;
    *ret_us = mf_sql_double(q, 1);
    r = mf_status_parse(mf_sql_text(q, 0), ret);
    return r < 0 ? r : 1;
}

int mf_store_result_add(struct mf_store *s, const struct mf_result_row *row)
{
    int r = mf_sql_run(
        s,
        "INSERT INTO result (unit, attempt, seq, step, pipeline, task, worker, status, reason, us, mad,"
        " err, row_err, verified, late, final, samples, extra, at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (unit, attempt, seq) DO NOTHING",
        "iiiIIiittddddiiibti", row->unit, row->attempt, row->seq, row->step, row->pipeline, row->task,
        row->worker, mf_status_name(row->status), row->reason, row->us, row->mad, row->err, row->row_err,
        (int64_t)row->verified, (int64_t)row->late, (int64_t)row->final, row->samples,
        row->n_samples * sizeof(*row->samples), row->extra, row->at_ms);
    return r;
}

int mf_store_samples_drop(struct mf_store *s, int64_t before_ms, int64_t now_ms, int64_t limit)
{
    int64_t from = 0, to = 0;
    int r = mf_sql_get_i64(s, "SELECT samples_dropped_through FROM farm", &from, "");
    /* Results are stored in commit order, so process them up to the first result that is too new */
    if (r > 0)
        r = mf_sql_get_i64(
            s,
            "SELECT coalesce(min(CASE WHEN at_ms >= ?2 AND at_ms <= ?3 THEN id - 1 END), max(id), ?1)"
            " FROM (SELECT id, at_ms FROM result WHERE id > ?1 ORDER BY id LIMIT ?4)",
            &to, "iiii", from, before_ms, now_ms, limit);
    if (r <= 0 || to <= from)
        return r < 0 ? r : 0;
    /* Tasks with a row in a release keep their samples, because release rows link to them */
    r = mf_sql_run(s,
                   "UPDATE result SET samples = NULL WHERE id > ? AND id <= ? AND samples IS NOT NULL"
                   " AND NOT EXISTS (SELECT 1 FROM release_row w WHERE w.task = result.task)",
                   "ii", from, to);
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE farm SET samples_dropped_through = ?", "i", to);
    return r < 0 ? r : (int)(to - from);
}

int mf_store_results_of_unit(struct mf_store *s, int64_t unit, int64_t attempt, mf_result_fn fn,
                             void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT seq, step, pipeline, status, us, mad, verified, final, late,"
                   " coalesce(length(samples) / 4, 0), coalesce(json_array_length(extra, '$.fresh'), 0)"
                   " FROM result WHERE unit = ? AND attempt = ? ORDER BY seq",
                   &q, "ii", unit, attempt);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        struct mf_result_row row = {
            .unit = unit,
            .attempt = attempt,
            .seq = mf_sql_i64(q, 0),
            .step = mf_sql_i64(q, 1),
            .pipeline = mf_sql_i64(q, 2),
            .us = mf_sql_double(q, 4),
            .mad = mf_sql_double(q, 5),
            .verified = (int)mf_sql_i64(q, 6),
            .final = mf_sql_i64(q, 7) != 0,
            .late = mf_sql_i64(q, 8) != 0,
            .n_samples = (size_t)mf_sql_i64(q, 9),
            .n_fresh = (size_t)mf_sql_i64(q, 10),
        };
        r = mf_status_parse(mf_sql_text(q, 3), &row.status);
        if (r == 0)
            r = fn(context, &row);
    }
    return r;
}

int mf_store_pipeline_result(struct mf_store *s, int64_t unit, int64_t attempt, int64_t pipeline,
                             enum mf_status *ret, char reason[MF_REASON_MAX])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT status, reason FROM result"
                   " WHERE unit = ? AND attempt = ? AND pipeline = ? AND late = 0",
                   &q, "iii", unit, attempt, pipeline);
    if (r >= 0)
        r = mf_sql_next(q);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    mf_format(reason, MF_REASON_MAX, "%s", mf_sql_text(q, 1));
    return mf_status_parse(mf_sql_text(q, 0), ret);
}

int mf_store_results_clear_final(struct mf_store *s, int64_t unit)
{
    return mf_sql_write(s, "UPDATE result SET final = 0 WHERE unit = ? AND final = 1", "i", unit);
}

int mf_store_best_times(struct mf_store *s, int64_t task, mf_best_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT s.covers, min(r.us), r.worker FROM result r JOIN step s ON s.id = r.step"
                   " WHERE r.task = ? AND r.final = 1 AND r.status = 'ok'"
                   " AND json_extract(r.extra, '$.mode') IS NOT 'eager'"
                   " AND json_extract(s.body, '$.foreign') IS NOT 1 GROUP BY s.covers, r.worker",
                   &q, "i", task);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        mf_ops covers;
        r = mf_ops_parse(mf_sql_text(q, 0), &covers);
        if (r == 0)
            fn(context, covers, mf_sql_i64(q, 2), mf_sql_double(q, 1));
    }
    return r;
}

int mf_store_strike(struct mf_store *s, int64_t kernel, int64_t class, int64_t worker, int64_t task,
                    enum mf_status status, const char *reason, int64_t now_ms, int64_t *ret_n)
{
    int r = mf_sql_run(s,
                       "INSERT INTO strike (kernel, class, worker, task, status, reason, at_ms)"
                       " VALUES (?, ?, ?, ?, ?, ?, ?)",
                       "iiiitti", kernel, class, worker, task, mf_status_name(status), reason, now_ms);
    if (r < 0)
        return r;
    r = mf_sql_get_i64(s, "SELECT count(*) FROM strike WHERE kernel = ? AND class = ? AND task = ?", ret_n,
                       "iii", kernel, class, task);
    return r < 0 ? r : 0;
}

int mf_store_quarantine(struct mf_store *s, int64_t kernel, int64_t class, const char *reason, int64_t now_ms)
{
    return mf_sql_write(s,
                        "INSERT INTO quarantine (kernel, class, reason, at_ms) VALUES (?, ?, ?, ?)"
                        " ON CONFLICT (kernel, class) DO NOTHING",
                        "iiti", kernel, class, reason, now_ms);
}

int mf_store_quarantine_reason(struct mf_store *s, int64_t kernel, int64_t class, char **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT reason FROM quarantine WHERE kernel = ? AND class = ?", &q, "ii", kernel,
                         class);
    if (r <= 0)
        return r;
    *ret = strdup(mf_sql_text(q, 0));
    return *ret ? 1 : -ENOMEM;
}

int mf_store_quarantine_lift(struct mf_store *s, int64_t kernel, int64_t class)
{
    int r = mf_sql_run(s, "DELETE FROM quarantine WHERE kernel = ? AND class = ?", "ii", kernel, class);
    if (r <= 0)
        return r;
    /* Delete the rejections that report the quarantine */
    int dropped = mf_sql_run(s,
                             "DELETE FROM rejection WHERE rule = 'quarantine' AND (family, kernel) ="
                             " (SELECT family, name FROM kernel WHERE id = ?1) AND enumeration IN"
                             " (SELECT id FROM enumeration WHERE class = ?2)",
                             "ii", kernel, class);
    return dropped < 0 ? dropped : 1;
}
