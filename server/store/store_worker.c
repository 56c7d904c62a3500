#include "server/store/store_worker.h"
#include "server/store/store_batch.h"
#include "server/store/store_family.h"
#include "server/store/store_private.h"

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <string.h>

int mf_store_start_epoch(struct mf_store *s, int64_t now_ms, int64_t *ret_epoch)
{
    int r = mf_sql_get_i64(
        s,
        "INSERT INTO farm (id, epoch, created_ms) VALUES (1, max(1, ?1), ?1)"
        " ON CONFLICT (id) DO UPDATE SET epoch = max(epoch + 1, excluded.created_ms) RETURNING epoch",
        ret_epoch, "i", now_ms);
    if (r < 0)
        return r;
    r = mf_sql_run(s,
                   "UPDATE worker SET state = 'lost', unit = NULL, step = ''"
                   " WHERE state IN ('idle', 'busy', 'draining')",
                   "");
    if (r >= 0)
        r = mf_sql_run(s, "UPDATE task SET worker = NULL WHERE worker IS NOT NULL", "");
    /* Count the results again, because n_measured is saved only a few times per second */
    if (r >= 0)
        r = mf_sql_run(s,
                       "UPDATE task SET n_measured = (SELECT count(*) FROM result r WHERE r.task = task.id"
                       " AND r.step IS NOT NULL AND r.final = 1) WHERE state = 'probing'",
                       "");
    return r < 0 ? r : 0;
}

int mf_store_class(struct mf_store *s, const struct mf_device_class *class, int64_t *ret)
{
    /* DO UPDATE instead of DO NOTHING, because RETURNING returns only rows that were changed */
    int r = mf_sql_get_i64(s,
                           "INSERT INTO device_class (gfx, cu_num) VALUES (?, ?)"
                           " ON CONFLICT (gfx, cu_num) DO UPDATE SET gfx = gfx RETURNING id",
                           ret, "ti", class->gfx, (int64_t) class->cu_num);
    return r < 0 ? r : 0;
}

int mf_store_class_get(struct mf_store *s, int64_t id, struct mf_device_class *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT gfx, cu_num FROM device_class WHERE id = ?", &q, "i", id);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    ret->cu_num = (int)mf_sql_i64(q, 1);
    return mf_copy(ret->gfx, sizeof(ret->gfx), mf_sql_text(q, 0));
}

int mf_store_model(struct mf_store *s, int64_t class, const char *name, bool simulated, const char *body,
                   int64_t *ret)
{
    int r = mf_sql_get_i64(s,
                           "INSERT INTO device_model (class, name, simulated, body) VALUES (?, ?, ?, ?)"
                           " ON CONFLICT (class, name, simulated) DO UPDATE SET name = name RETURNING id",
                           ret, "itit", class, name, (int64_t)simulated, body);
    return r < 0 ? r : 0;
}

int mf_store_worker_device(struct mf_store *s, int64_t worker, int64_t model, const char *body)
{
    int r = mf_sql_write(s, "UPDATE worker SET device = ? WHERE id = ?", "ti", body, worker);
    if (r < 0)
        return r;
    return mf_sql_write(s,
                        "UPDATE device_model SET body = coalesce((SELECT device FROM worker WHERE model = ?1"
                        " AND quarantined = '' AND device <> '{}' ORDER BY id LIMIT 1), body) WHERE id = ?1",
                        "i", model);
}

int mf_store_worker_model(struct mf_store *s, const char *name, int64_t *ret_model)
{
    return mf_sql_get_i64(s, "SELECT model FROM worker WHERE name = ?", ret_model, "t", name);
}

static void read_busy(const char *text, struct mf_slot *slot)
{
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text, strlen(text), 4096);
    for (int i = 0; i < MF_N_PHASES; i++)
        (void)mf_json_double(json, mf_phase_names[i], &slot->busy_s[i]);
}

int mf_store_worker_hello(struct mf_store *s, const struct mf_worker_row *row, int64_t now_ms,
                          struct mf_slot *slot)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(
        s,
        "INSERT INTO worker (name, instance, model, host, pid, version, revision, families, state,"
        " joined_ms, seen_ms, sandbox, refused_families)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'idle', ?9, ?9, ?10, ?11)"
        " ON CONFLICT (name) DO UPDATE SET instance = ?2, host = ?4, pid = ?5, version = ?6, sandbox = ?10,"
        " revision = ?7, families = ?8, refused_families = ?11, state = 'idle', unit = NULL, step = '',"
        " seen_ms = ?9 RETURNING id, n_results, n_deaths, busy, quarantined <> ''",
        &q, "ttititttitt", row->name, row->instance, row->model, row->host, row->pid, row->version,
        row->revision, row->families, now_ms, row->sandbox, row->refused_families);
    if (r <= 0)
        return r < 0 ? r : -EIO;
    slot->id = mf_sql_i64(q, 0);
    slot->n_results = mf_sql_i64(q, 1);
    slot->n_deaths = mf_sql_i64(q, 2);
    read_busy(mf_sql_text(q, 3), slot);
    slot->quarantined = mf_sql_i64(q, 4) != 0;
    mf_sql_done(MF_TAKE(q));
    r = mf_store_worker_set_families(s, row->families, slot);
    return r < 0 ? r : mf_store_worker_device(s, slot->id, row->model, row->device);
}

int mf_store_worker_save(struct mf_store *s, const struct mf_slot *slot, const char *state, int64_t now_ms)
{
    char busy[256];
    mf_format(busy, sizeof(busy), "{\"%s\":%.3f,\"%s\":%.3f,\"%s\":%.3f,\"%s\":%.3f,\"%s\":%.3f}",
              mf_phase_names[0], slot->busy_s[0], mf_phase_names[1], slot->busy_s[1], mf_phase_names[2],
              slot->busy_s[2], mf_phase_names[3], slot->busy_s[3], mf_phase_names[4], slot->busy_s[4]);
    return mf_sql_write(
        s,
        "UPDATE worker SET state = ?, unit = ?, step = ?, seen_ms = ?, busy = ?, n_results = ?,"
        " n_deaths = ? WHERE id = ?",
        "tItitiii", state, slot->unit, slot->step, now_ms, busy, slot->n_results, slot->n_deaths, slot->id);
}

int mf_store_workers_live(struct mf_store *s, int64_t *ret)
{
    int r = mf_sql_get_i64(s, "SELECT count(*) FROM worker WHERE state IN ('idle', 'busy')", ret, "");
    return r < 0 ? r : 0;
}

/* ---- trust ---- */

int mf_store_worker_quarantine(struct mf_store *s, int64_t worker, const char *reason)
{
    int r =
        mf_sql_write(s, "UPDATE worker SET quarantined = ?, n_undone = 0 WHERE id = ?", "ti", reason, worker);
    return r < 0 || !*reason ? r : mf_store_enumerations_drop(s, worker);
}

int mf_store_worker_quarantined(struct mf_store *s, int64_t worker, char ret_name[MF_WORKER_NAME_MAX])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT name FROM worker WHERE id = ? AND quarantined <> ''", &q, "i", worker);
    if (r <= 0)
        return r;
    r = mf_copy(ret_name, MF_WORKER_NAME_MAX, mf_sql_text(q, 0));
    return r < 0 ? r : 1;
}

int mf_store_worker_add_undone(struct mf_store *s, const char *name, int64_t *ret_worker, int64_t *ret_n)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s,
                         "UPDATE worker SET n_undone = n_undone + 1 WHERE name = ? AND quarantined = ''"
                         " RETURNING id, n_undone",
                         &q, "t", name);
    if (r <= 0)
        return r;
    *ret_worker = mf_sql_i64(q, 0);
    *ret_n = mf_sql_i64(q, 1);
    return 1;
}

int mf_store_worker_claims_each(struct mf_store *s, int64_t model, mf_worker_claim_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT w.id, w.name, w.quarantined, m.simulated, json_extract(w.device, '$.gap_us'),"
                   " json_extract(w.device, '$.mem_read_gbs'),"
                   " (SELECT max(p.value) FROM json_each(w.device, '$.peak_gflops') p), m.name"
                   " FROM device_model m"
                   " JOIN worker w ON w.model = m.id WHERE (m.class, m.name) ="
                   " (SELECT class, name FROM device_model WHERE id = ?) ORDER BY w.id",
                   &q, "i", model);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, &(struct mf_worker_claim){.worker = mf_sql_i64(q, 0),
                                                  .name = mf_sql_text(q, 1),
                                                  .quarantined = mf_sql_text(q, 2),
                                                  .simulated = mf_sql_i64(q, 3) != 0,
                                                  .gap_us = mf_sql_double(q, 4),
                                                  .mem_read_gbs = mf_sql_double(q, 5),
                                                  .peak_gflops = mf_sql_double(q, 6),
                                                  .model = mf_sql_text(q, 7)});
    return r;
}

int mf_store_gaps_each(struct mf_store *s, int64_t model, mf_gap_fn fn, void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT json_extract(device, '$.gap_us') AS gap FROM worker WHERE model = ? AND"
                   " quarantined = '' AND typeof(gap) IN ('integer', 'real') ORDER BY id",
                   &q, "i", model);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, mf_sql_double(q, 0));
    return r;
}

int mf_store_worker_is_alone(struct mf_store *s, int64_t model, int64_t worker)
{
    int64_t n = 0;
    int r = mf_sql_get_i64(s,
                           "SELECT count(*) FROM worker WHERE model = ? AND id <> ? AND quarantined = ''"
                           " AND n_results > 0",
                           &n, "ii", model, worker);
    return r < 0 ? r : n == 0;
}
