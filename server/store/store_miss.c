#include "server/store/store_miss.h"

#include "server/store/store_batch.h"
#include "server/store/store_json.h"

#include "common/base/text.h"

#include <errno.h>
#include <string.h>

MF_NAMES_DEFINE(mf_miss_state, MF_MISS_, MF_MISS_MAP)

/* TASK: latest task of m's shape on its class. STATE: state of miss m. If a task is done and has no config,
 * it only enumerated steps, so the miss is open. Misses are those of libfmoe. */
#define SAME_SHAPE_AND_CLASS                                                           \
    " JOIN shape s ON s.id = x.shape AND s.row = m.row JOIN device_class c ON c.id = " \
    "x.class AND c.gfx = m.gfx AND c.cu_num = m.cu_num"
#define TASK " (SELECT max(x.id) FROM task x" SAME_SHAPE_AND_CLASS ")"
#define STATE                                                                                               \
    " CASE WHEN EXISTS (SELECT 1 FROM config x" SAME_SHAPE_AND_CLASS                                        \
    " WHERE x.consumer = 'moefarm') THEN 'tuned' ELSE coalesce((SELECT CASE g.state "                       \
    "WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'failed' WHEN 'done' THEN 'open' ELSE 'tuning' END " \
    "FROM task g WHERE g.id =" TASK "), 'open') END"

int mf_store_miss_find_receipt(struct mf_store *s, const char *key, const char *body_hash,
                               cJSON **ret_receipt)
{
    return mf_store_find_receipt(s, "SELECT body_hash, receipt FROM miss_report WHERE idempotency_key = ?",
                                 key, body_hash, ret_receipt);
}

int mf_store_miss_add_receipt(struct mf_store *s, const char *key, const char *body_hash, const char *receipt,
                              int64_t now_ms)
{
    int r = mf_sql_run(
        s, "INSERT INTO miss_report (idempotency_key, body_hash, receipt, at_ms) VALUES (?, ?, ?, ?)", "ttti",
        key, body_hash, receipt, now_ms);
    if (r >= 0)
        r = mf_sql_run(s, "DELETE FROM miss_report WHERE id <= ?", "i",
                       mf_store_last_id(s) - MF_MISS_REPORTS_MAX);
    return r < 0 ? r : 0;
}

static int add_source(struct mf_store *s, int64_t miss, const char *source)
{
    int r = mf_sql_run(s,
                       "INSERT INTO miss_source (miss, source) SELECT ?1, ?2 WHERE (SELECT n_sources FROM "
                       "miss WHERE id = ?1) < ?3 ON CONFLICT DO NOTHING",
                       "iti", miss, source, (int64_t)MF_MISS_SOURCES_MAX);
    if (r > 0)
        r = mf_sql_run(s, "UPDATE miss SET n_sources = n_sources + 1 WHERE id = ?", "i", miss);
    return r;
}

static int read_state(struct mf_store *s, int64_t miss, enum mf_miss_state *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, "SELECT" STATE " FROM miss m WHERE m.id = ?", &q, "i", miss);
    if (r <= 0)
        return r < 0 ? r : -EIO;
    return mf_miss_state_parse(mf_sql_text(q, 0), ret);
}

int mf_store_miss_add(struct mf_store *s, const struct mf_miss *miss, bool room, enum mf_miss_state *ret)
{
    int64_t id = 0, cu_num = miss->class->cu_num;
    /* The count saturates at 2^53, the largest exact integer in JSON */
    int r = mf_sql_get_i64(
        s,
        "UPDATE miss SET count = min(count + ?4, 9007199254740992), last_ms = max(last_ms, "
        "?5), layout = ?6 WHERE gfx = ?1 AND cu_num = ?2 AND row = ?3 RETURNING id",
        &id, "titiit", miss->class->gfx, cu_num, miss->row, miss->count, miss->at_ms, miss->layout);
    bool known = r > 0;
    if (r == 0 && !room)
        return 0;
    if (r == 0) {
        r = mf_sql_run(s,
                       "INSERT INTO miss (gfx, cu_num, row, count, n_sources, first_ms, last_ms, layout) "
                       "VALUES (?1, ?2, ?3, ?4, 0, ?5, ?5, ?6)",
                       "titiit", miss->class->gfx, cu_num, miss->row, miss->count, miss->at_ms, miss->layout);
        id = mf_store_last_id(s);
    }
    if (r >= 0)
        r = add_source(s, id, miss->source);
    if (r >= 0)
        r = read_state(s, id, ret);
    return r < 0 ? r : known ? 1 : 2;
}

int mf_store_misses_count(struct mf_store *s, int64_t *ret)
{
    int r = mf_sql_get_i64(s, "SELECT count(*) FROM miss", ret, "");
    return r < 0 ? r : 0;
}

int mf_store_misses_delete_tuned(struct mf_store *s)
{
    return mf_sql_run(s, "DELETE FROM miss AS m WHERE" STATE " = 'tuned'", "");
}

int mf_store_misses_open(struct mf_store *s, const struct mf_miss_filter *filter, mf_miss_fn each, void *data)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    const struct mf_device_class *wanted = filter->class;
    int r =
        mf_sql(s,
               "SELECT gfx, cu_num, row, layout FROM (SELECT m.gfx AS gfx, m.cu_num AS cu_num, m.row AS row, "
               "m.layout AS layout, m.count AS count, m.id AS id," STATE
               " AS state FROM miss m WHERE m.count >= ?3 AND (?1 IS NULL OR (m.gfx = ?1 AND m.cu_num = "
               "?2))) WHERE state = 'open' OR (?4 AND state = 'failed') ORDER BY gfx, cu_num, layout, count "
               "DESC, id",
               &q, "tiii", wanted ? wanted->gfx : NULL, wanted ? (int64_t)wanted->cu_num : (int64_t)0,
               filter->min_count, (int64_t)filter->failed);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        struct mf_device_class class = {.cu_num = (int)mf_sql_i64(q, 1)};
        r = mf_copy(class.gfx, sizeof(class.gfx), mf_sql_text(q, 0));
        if (r >= 0)
            r = each(&class, mf_sql_text(q, 2), mf_sql_text(q, 3), data);
    }
    return r;
}

static int make_miss(struct mf_sql *q, void *data, cJSON **ret)
{
    (void)data;
    cJSON *o = mf_row_json(q, "it.iitiiit");
    if (!o || mf_shape_add_to_json(o, mf_sql_text(q, 2)) < 0) {
        cJSON_Delete(o);
        return -ENOMEM;
    }
    *ret = o;
    return 0;
}

int mf_read_misses(struct mf_store *s, const struct mf_device_class *class, const char *state,
                   const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(
        s,
        "SELECT id, class, row, count, sources, state, task, first_ms, last_ms, layout FROM (SELECT m.id AS "
        "id, m.gfx || '/' || m.cu_num AS class, m.row AS row, m.count AS count, m.n_sources AS "
        "sources," STATE " AS state," TASK " AS task, m.first_ms AS first_ms, m.last_ms AS last_ms, m.layout "
        "AS layout FROM miss m WHERE (?1 IS NULL OR "
        "(m.gfx = ?1 AND m.cu_num = ?2)) AND (?4 = 0 OR m.count < ?5 OR (m.count = ?5 AND m.id > "
        "?6)) ORDER BY m.count DESC, m.id) WHERE ?3 IS NULL OR state = ?3 LIMIT ?7",
        &q, "titiiii", class ? class->gfx : NULL, class ? (int64_t) class->cu_num : (int64_t)0, state,
        (int64_t)page->from, (int64_t)page->number, page->id, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){-1, 3, 0}, make_miss, NULL, ret);
}
