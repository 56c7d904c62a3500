#include "server/store/store_family.h"
#include "server/store/store_private.h"

#include "common/base/text.h"

#include <errno.h>

int mf_store_family_get(struct mf_store *s, int64_t family, struct mf_family_row *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT name, revision FROM family WHERE id = ?", &q, "i", family);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    r = mf_copy(ret->name, sizeof(ret->name), mf_sql_text(q, 0));
    return r < 0 ? r : mf_copy(ret->revision, sizeof(ret->revision), mf_sql_text(q, 1));
}

/* ---- workers and sets ---- */

/* True if the worker w offers all families of the set s. */
#define OFFERS                                                                                           \
    "NOT EXISTS (SELECT 1 FROM json_each(s.families) j WHERE NOT EXISTS (SELECT 1 FROM worker_family o " \
    "WHERE"                                                                                              \
    " o.worker = w.id AND o.family = j.value))"

/* Removes the families of a worker, and from table family those that nothing else refers to. Otherwise the
 * table would grow with each HELLO that names new revisions. Enumerations and sets refer only to families of
 * a batch. */
static int remove_families(struct mf_store *s, int64_t worker)
{
    struct mf_ids unused = {0};
    int r =
        mf_sql_ids(s,
                   "SELECT o.family FROM worker_family o WHERE o.worker = ?1 AND NOT EXISTS (SELECT 1 FROM"
                   " worker_family p WHERE p.family = o.family AND p.worker <> ?1) AND NOT EXISTS"
                   " (SELECT 1 FROM batch_family b WHERE b.family = o.family)",
                   &unused, "i", worker);
    if (r == 0)
        r = mf_sql_write(s, "DELETE FROM worker_family WHERE worker = ?", "i", worker);
    for (size_t i = 0; r == 0 && i < unused.n; i++)
        r = mf_sql_write(s, "DELETE FROM family WHERE id = ?", "i", unused.all[i]);
    mf_ids_release(&unused);
    return r;
}

static int add_families(struct mf_store *s, int64_t worker, const char *families)
{
    int r = mf_sql_write(s,
                         "INSERT INTO family (name, revision) SELECT key, value FROM json_each(?) WHERE true"
                         " ON CONFLICT (name, revision) DO NOTHING",
                         "t", families);
    if (r < 0)
        return r;
    return mf_sql_write(s,
                        "INSERT INTO worker_family SELECT ?1, f.id FROM json_each(?2) j JOIN family f ON"
                        " f.name = j.key AND f.revision = j.value",
                        "it", worker, families);
}

static int find_sets(struct mf_store *s, int64_t worker)
{
    int r = mf_sql_write(s, "DELETE FROM worker_family_set WHERE worker = ?", "i", worker);
    if (r < 0)
        return r;
    return mf_sql_write(s,
                        "INSERT INTO worker_family_set SELECT w.id, s.id FROM worker w JOIN family_set s"
                        " WHERE w.id = ? AND " OFFERS,
                        "i", worker);
}

static int read_families(struct mf_store *s, struct mf_slot *slot)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, "SELECT family FROM worker_family WHERE worker = ? ORDER BY family", &q, "i", slot->id);
    slot->n_families = 0;
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        if (slot->n_families == MF_SLOT_FAMILIES_MAX)
            return -E2BIG;
        slot->families[slot->n_families++] = mf_sql_i64(q, 0);
    }
    return r;
}

int mf_store_worker_set_families(struct mf_store *s, const char *families, struct mf_slot *slot)
{
    int r = remove_families(s, slot->id);
    if (r == 0)
        r = add_families(s, slot->id, families);
    if (r == 0)
        r = find_sets(s, slot->id);
    return r < 0 ? r : read_families(s, slot);
}

int mf_store_family_set(struct mf_store *s, const char *families, int64_t *ret)
{
    int r = mf_sql_get_i64(s, "SELECT id FROM family_set WHERE families = ?", ret, "t", families);
    if (r != 0)
        return r < 0 ? r : 0;
    r = mf_sql_run(s, "INSERT INTO family_set (families) VALUES (?)", "t", families);
    if (r < 0)
        return r;
    *ret = mf_store_last_id(s);
    return mf_sql_write(s,
                        "INSERT INTO worker_family_set SELECT w.id, s.id FROM family_set s JOIN worker w"
                        " WHERE s.id = ? AND w.state IN ('idle', 'busy', 'draining') AND " OFFERS,
                        "i", *ret);
}

int mf_store_family_set_print(struct mf_store *s, int64_t set, struct mf_buf *out)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql_first(s,
                     "SELECT json_group_object(f.name, f.revision) FROM family_set s, json_each(s.families)"
                     " j JOIN family f ON f.id = j.value WHERE s.id = ?",
                     &q, "i", set);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    return mf_buf_adds(out, mf_sql_text(q, 0));
}

int mf_store_has_other_worker(struct mf_store *s, int64_t set, int64_t model, int64_t worker)
{
    int64_t id;
    return mf_sql_get_i64(s,
                          "SELECT w.id FROM worker_family_set o JOIN worker w ON w.id = o.worker WHERE"
                          " o.family_set = ? AND w.model = ? AND w.id <> ? AND " MF_WORKER_AVAILABLE
                          " LIMIT 1",
                          &id, "iii", set, model, worker);
}

int mf_store_model_offers_each(struct mf_store *s, int64_t batch, int64_t class, mf_model_offer_fn fn,
                               void *context)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT w.model, count(DISTINCT o.family) AS n FROM device_model m JOIN worker w ON"
                   " w.model = m.id JOIN worker_family o ON o.worker = w.id JOIN batch_family b ON"
                   " b.batch = ?1 AND b.class = ?2 AND b.family = o.family WHERE m.class = ?2 AND"
                   " w.quarantined = '' GROUP BY w.model ORDER BY n DESC, min(w.id)",
                   &q, "ii", batch, class);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = fn(context, mf_sql_i64(q, 0), mf_sql_i64(q, 1));
    return r;
}

int mf_store_model_offers(struct mf_store *s, int64_t model, int64_t family)
{
    int64_t id;
    return mf_sql_get_i64(s,
                          "SELECT w.id FROM worker w CROSS JOIN worker_family o ON o.worker = w.id AND"
                          " o.family = ?2 WHERE w.model = ?1 AND w.quarantined = '' LIMIT 1",
                          &id, "ii", model, family);
}

/* ---- batches ---- */

int mf_store_batch_families(struct mf_store *s, int64_t batch, int64_t class, struct mf_ids *ret)
{
    return mf_sql_ids(s, "SELECT family FROM batch_family WHERE batch = ? AND class = ? ORDER BY family", ret,
                      "ii", batch, class);
}

int mf_store_batch_add_family(struct mf_store *s, int64_t batch, int64_t class, int64_t family)
{
    return mf_sql_write(s, "INSERT INTO batch_family (batch, class, family) VALUES (?, ?, ?)", "iii", batch,
                        class, family);
}

int mf_store_steps_families(struct mf_store *s, const char *steps, struct mf_ids *ret)
{
    return mf_sql_ids(s,
                      "SELECT DISTINCT e.family FROM json_each(?) j JOIN step t ON t.id = j.value"
                      " JOIN enumeration e ON e.id = t.enumeration ORDER BY 1",
                      ret, "t", steps);
}

int mf_store_pipelines_families(struct mf_store *s, int64_t a, int64_t b, struct mf_ids *ret)
{
    return mf_sql_ids(s,
                      "SELECT DISTINCT e.family FROM pipeline p, json_each(p.steps) j JOIN step t ON"
                      " t.id = j.value JOIN enumeration e ON e.id = t.enumeration WHERE p.id IN (?, ?)"
                      " ORDER BY 1",
                      ret, "ii", a, b);
}
