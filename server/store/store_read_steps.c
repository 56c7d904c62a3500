/* REST queries for pipelines, races, steps, rejections and results. */
#include "server/store/store_json.h"
#include "server/store/store_read.h"

#include "common/base/json.h"
#include "common/moe/family_name.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static int task_exists(struct mf_store *s, int64_t id)
{
    return mf_sql_exists(s, "SELECT id FROM task WHERE id = ?", id);
}

/* ---- pipelines ---- */

/* Adds `names` and `ops`: all steps in order, with their times in this task. */
static int add_ops(struct mf_store *s, int64_t task, const char *steps, cJSON *o)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    cJSON *names = cJSON_AddArrayToObject(o, "names"), *ops = cJSON_AddArrayToObject(o, "ops");
    int r = mf_sql(s,
                   "SELECT s.covers AS covers, s.id AS step, k.family || ':' || k.name AS name,"
                   " r.us AS us, r.mad AS mad FROM json_each(?1) e CROSS JOIN step s ON s.id = e.value JOIN "
                   "kernel k ON k.id = s.kernel"
                   " LEFT JOIN result r ON r.task = ?2 AND r.step = s.id AND r.final = 1"
                   " ORDER BY e.key",
                   &q, "ti", steps, task);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        cJSON *op = mf_row_json(q, "titdd");
        if (!op)
            return -ENOMEM;
        cJSON_AddItemToArray(ops, op);
        cJSON_AddItemToArray(names, cJSON_CreateString(mf_sql_text(q, 2)));
    }
    return r;
}

enum {
    PIPELINE_GROUP = 0,
    PIPELINE_KEY = 7,
    PIPELINE_STEPS = 16,
    PIPELINE_TASK = 17,
    PIPELINE_REPORTED = 18
};

/* Adds `reported`: the reported time of the winner; null for other pipelines. */
static int add_reported(const struct mf_sql *q, cJSON *o)
{
    if (mf_sql_null(q, PIPELINE_REPORTED))
        return cJSON_AddNullToObject(o, "reported") ? 0 : -ENOMEM;
    cJSON *reported = cJSON_AddObjectToObject(o, "reported");
    return reported ? mf_reported_json(q, PIPELINE_REPORTED, reported) : -ENOMEM;
}

static int make_pipeline(struct mf_sql *q, void *store, cJSON **ret)
{
    /* columns: group, id, place, structure, block_m, layout, forecast_us, key, finalist, us, mad, samples_n,
     * dropped_at, winner, tie, other_layout, steps, task, reported us, mad, n, tries, unstable, consumer */
    _cleanup_(cJSON_Deletep) cJSON *o = mf_row_json(q, ".iititd.bddiibbb.......t");
    if (!o)
        return -ENOMEM;
    int r = add_ops(store, mf_sql_i64(q, PIPELINE_TASK), mf_sql_text(q, PIPELINE_STEPS), o);
    if (r == 0)
        r = add_reported(q, o);
    if (r < 0)
        return r;
    mf_json_add_i64(o, "task", mf_sql_i64(q, PIPELINE_TASK));
    *ret = MF_TAKE(o);
    return 0;
}

/* Order: the winner, then pipelines with a time in the race (by that time; other weight layouts than the
 * winner's last), then all other pipelines (by forecast). us and mad: time in the race, which can be compared
 * among the pipelines of a task (server/choose/race_times.h). */
/* clang-format off */
#define PIPELINES                                                                                            \
    "SELECT CASE WHEN f.pipeline = p.id THEN 0 WHEN p.race_us IS NULL THEN 3 WHEN w.layout <> p.layout"      \
    " THEN 2 ELSE 1 END AS grp, p.id AS id, p.place AS place, p.structure AS structure,"                     \
    " p.block_m AS block_m, p.layout AS layout, p.forecast_us AS forecast_us,"                               \
    " coalesce(p.race_us, p.forecast_us) AS number, p.finalist AS finalist, p.race_us AS us,"                \
    " p.race_mad AS mad, CASE WHEN p.race_us IS NULL THEN 0 ELSE coalesce(length(r.samples) / 4, 0) END"     \
    " AS samples_n, json_extract(r.extra, '$.dropped_at') AS dropped_at, f.pipeline IS p.id AS winner,"      \
    " EXISTS (SELECT 1 FROM json_each(f.ties) t WHERE t.value = p.id) AS tie,"                               \
    " coalesce(w.layout <> p.layout, 0) AS other_layout, p.steps AS steps, p.task AS task,"                  \
    " CASE WHEN f.pipeline = p.id THEN f.us END AS reported_us, f.mad AS reported_mad, f.n AS reported_n,"   \
    " f.tries AS tries, f.unstable AS unstable, p.consumer AS consumer"                                      \
    " FROM pipeline p LEFT JOIN config f ON f.task = p.task AND f.consumer = p.consumer"                     \
    " LEFT JOIN pipeline w ON w.id = f.pipeline"                                                             \
    " LEFT JOIN result r ON r.id = (SELECT max(id) FROM result WHERE task = p.task AND step IS NULL AND"     \
    " final = 1 AND pipeline = p.id AND us IS NOT NULL)"
/* clang-format on */

int mf_read_pipelines(struct mf_store *s, int64_t task, const char *consumer, bool finalists,
                      const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    char shown[MF_READ_CONSUMER_MAX];
    int r = mf_read_shown_consumer(s, task, consumer, shown);
    if (r < 0)
        return r;
    r = mf_sql(s,
               "SELECT * FROM (" PIPELINES " WHERE p.task = ?1 AND p.finalist >= ?2 AND p.consumer = ?7"
               ") WHERE (grp, number, id) > (?3, ?4, ?5) ORDER BY grp, number, id LIMIT ?6",
               &q, "iiidiit", task, (int64_t)finalists, page->from ? page->group : -1, page->number, page->id,
               (int64_t)page->limit + 1, shown);
    return r < 0 ? r
                 : mf_list_read(q, page, &(struct mf_list_keys){PIPELINE_GROUP, PIPELINE_KEY, 1},
                                make_pipeline, s, ret);
}

int mf_read_pipeline(struct mf_store *s, int64_t id, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s, PIPELINES " WHERE p.id = ?1", &q, "i", id);
    if (r < 0)
        return r;
    return r == 0 ? -ENOENT : make_pipeline(q, s, ret);
}

static int add_racers(struct mf_store *s, int64_t task, const char *consumer, cJSON *race)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    cJSON *list = cJSON_AddArrayToObject(race, "pipelines");
    int r = mf_sql(s,
                   "SELECT p.id AS id, coalesce(p.race_us, r.us) AS us, coalesce(p.race_mad, r.mad) AS mad, "
                   "r.status AS status, r.reason AS reason, w.name AS worker,"
                   " json_extract(r.extra, '$.dropped_at') AS dropped_at, json_extract(r.extra, '$.fresh') "
                   "AS fresh, r.samples, p.steps"
                   " FROM pipeline p JOIN result r ON r.id = (SELECT max(id) FROM result WHERE task = p.task "
                   "AND step IS NULL"
                   " AND final = 1 AND pipeline = p.id) JOIN worker w ON w.id = r.worker"
                   " WHERE p.task = ?1 AND p.consumer = ?2"
                   " ORDER BY coalesce(p.race_us, r.us, 1e300), p.id LIMIT 256",
                   &q, "it", task, consumer);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        size_t len;
        const void *blob = mf_sql_blob(q, 8, &len);
        cJSON *o = mf_row_json(q, "iddtttij");
        if (!o)
            return -ENOMEM;
        cJSON_AddItemToArray(list, o);
        cJSON_AddItemToObject(o, "samples", mf_samples_json(blob, len));
        int e = add_ops(s, task, mf_sql_text(q, 9), o);
        if (e < 0)
            return e;
        cJSON_DeleteItemFromObjectCaseSensitive(o, "ops");
    }
    return r;
}

int mf_read_race(struct mf_store *s, int64_t task, const char *consumer, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    _cleanup_(cJSON_Deletep) cJSON *race = NULL;
    char shown[MF_READ_CONSUMER_MAX];
    int r = mf_read_shown_consumer(s, task, consumer, shown);
    if (r < 0)
        return r;
    r = mf_sql_first(s, MF_RACE_OF_TASK, &q, "it", task, shown);
    if (r < 0)
        return r;
    race = r > 0 ? mf_race_json(q) : cJSON_CreateObject();
    if (!race)
        return -ENOMEM;
    if ((r = add_racers(s, task, shown, race)) < 0)
        return r;
    *ret = MF_TAKE(race);
    return 0;
}

/* ---- steps ---- */

/* Steps of task ?1 with their deciding results. */
#define STEPS_FROM                                                                                           \
    " FROM task_enumeration g JOIN step s ON s.enumeration = g.enumeration JOIN kernel k ON k.id = s.kernel" \
    " LEFT JOIN result r ON r.task = g.task AND r.step = s.id AND r.final = 1"                               \
    " WHERE g.task = ?1"

int mf_read_steps(struct mf_store *s, int64_t task, const struct mf_step_filter *filter,
                  const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    const char *family = filter->family ? mf_family_current_name(filter->family) : NULL;
    int r = task_exists(s, task);
    if (r < 0)
        return r;
    r = mf_sql(
        s,
        "SELECT s.id AS id, k.family AS family, k.name AS name, json_extract(s.body, '$.stage') AS stage,"
        " s.covers AS covers, s.block_m AS block_m,"
        " coalesce(r.status, 'pending') AS status, k.id AS kernel, r.us AS us, r.mad AS mad,"
        " length(r.samples) / 4 AS n, r.err AS err, r.row_err AS row_err, json_extract(r.extra, "
        "'$.row_limit') AS row_limit,"
        " r.verified AS verified, coalesce(r.reason, '') AS reason,"
        " json_extract(r.extra, '$.registers') AS registers, json_extract(r.extra, '$.spills') AS spills,"
        " json_extract(r.extra, '$.lds') AS lds, json_extract(r.extra, '$.occupancy') AS occupancy" STEPS_FROM
        " AND s.id > ?2 AND (?3 IS NULL OR k.family IN (?3, ?7))"
        " AND (?4 IS NULL OR coalesce(r.status, 'pending') = ?4)"
        " AND (?5 IS NULL OR s.covers = ?5) ORDER BY s.id LIMIT ?6",
        &q, "iitttit", task, page->id, family, filter->status, filter->covers, (int64_t)page->limit + 1,
        family ? mf_family_old_name(family) : NULL);
    return r < 0 ? r : mf_list_rows(q, page, "ittttitiddiddditiiii", ret);
}

#define STEP_SHAPE_ROW 14 /* column of shape.row in the query below */

int mf_read_step(struct mf_store *s, int64_t id, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(
        s,
        "SELECT s.id AS id, k.id AS kernel, k.family AS family, k.name AS name, k.revision AS revision,"
        " json_extract(s.body, '$.stage') AS stage, s.covers AS covers, s.block_m AS block_m,"
        " c.gfx || '/' || c.cu_num AS class, s.flops AS flops, s.bytes AS bytes,"
        " coalesce(json_extract(s.body, '$.saved'), 0.0) AS saved,"
        " coalesce(json_extract(s.body, '$.needs'), '[]') AS needs,"
        " coalesce(json_extract(s.body, '$.gives'), '[]') AS gives, h.row"
        " FROM step s JOIN kernel k ON k.id = s.kernel JOIN enumeration e ON e.id = s.enumeration"
        " JOIN device_class c ON c.id = e.class JOIN shape h ON h.id = e.shape WHERE s.id = ?1",
        &q, "i", id);
    if (r < 0)
        return r;
    if (r == 0)
        return -ENOENT;
    _cleanup_(cJSON_Deletep) cJSON *o = mf_row_json(q, "iitttttitdddjj.");
    if (!o || mf_shape_add_to_json(o, mf_sql_text(q, STEP_SHAPE_ROW)) < 0)
        return -ENOMEM;
    *ret = MF_TAKE(o);
    return 0;
}

static int make_rejection(struct mf_sql *q, void *data, cJSON **ret)
{
    (void)data;
    *ret = mf_row_json(q, "..tttti");
    return *ret ? 0 : -ENOMEM;
}

int mf_read_rejections(struct mf_store *s, int64_t task, const char *kernel, const struct mf_page *page,
                       struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = task_exists(s, task);
    if (r < 0)
        return r;
    r = mf_sql(s,
               "SELECT * FROM (SELECT 0 AS grp, j.id AS id, j.family AS family, j.kernel AS kernel, j.rule "
               "AS rule, j.reason AS reason,"
               " NULL AS step FROM task g JOIN task_enumeration e ON e.task = g.id JOIN rejection j ON"
               " j.enumeration = e.enumeration AND (j.batch IS NULL OR j.batch = g.batch) WHERE g.id = ?1"
               " UNION ALL SELECT 1, s.id, k.family, k.name, r.status, r.reason, s.id" STEPS_FROM
               " AND r.status <> 'ok')"
               " WHERE (grp, id) > (?2, ?3) AND (?4 IS NULL OR kernel GLOB ?4) ORDER BY grp, id LIMIT ?5",
               &q, "iiiti", task, page->group, page->id, kernel, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){0, -1, 1}, make_rejection, NULL, ret);
}

/* ---- results ---- */

#define RESULT_COLUMNS                                                                                      \
    "SELECT r.id AS id, r.unit AS unit, r.attempt AS attempt, r.seq AS seq, r.task AS task, w.name AS "     \
    "worker, r.status AS status,"                                                                           \
    " r.reason AS reason, r.us AS us, r.mad AS mad, r.err AS err, r.row_err AS row_err, r.verified AS "     \
    "verified, r.late AS late,"                                                                             \
    " r.final AS final, r.extra AS extra, r.at_ms AS at_ms, r.samples FROM result r LEFT JOIN worker w ON " \
    "w.id = r.worker"

static int make_result(struct mf_sql *q, void *data, cJSON **ret)
{
    (void)data;
    size_t len;
    const void *blob = mf_sql_blob(q, 17, &len);
    cJSON *o = mf_row_json(q, "iiiiitttddddibbji");
    if (!o)
        return -ENOMEM;
    cJSON_AddItemToObject(o, "samples", mf_samples_json(blob, len));
    *ret = o;
    return 0;
}

/* A query with two halves, one for each index on result: result_final holds the deciding results,
 * result_other all other results. Both indices start with the task, so each half goes through the tasks that
 * share the step's enumeration. */
#define STEP_RESULTS(final)                                                                                 \
    RESULT_COLUMNS " WHERE r.task IN (SELECT g.task FROM step t JOIN task_enumeration g ON g.enumeration =" \
                   " t.enumeration WHERE t.id = ?1"                                                         \
                   " AND (?2 IS NULL OR g.task = ?2)) AND r.step = ?1 AND r.final = " final " AND r.id > ?3"

int mf_read_step_results(struct mf_store *s, int64_t step, int64_t task, const struct mf_page *page,
                         struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_exists(s, "SELECT id FROM step WHERE id = ?", step);
    if (r < 0)
        return r;
    r = mf_sql(s, STEP_RESULTS("1") " UNION ALL " STEP_RESULTS("0") " ORDER BY 1 LIMIT ?4", &q, "iIii", step,
               task, page->id, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){-1, -1, 0}, make_result, NULL, ret);
}

#define PIPELINE_RESULTS(final)                                                 \
    RESULT_COLUMNS " WHERE r.task = ?1 AND r.step IS NULL AND r.final = " final \
                   " AND r.pipeline = ?2 AND r.id > ?3"

int mf_read_pipeline_results(struct mf_store *s, int64_t pipeline, const struct mf_page *page,
                             struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int64_t task;
    int r = mf_sql_get_i64(s, "SELECT task FROM pipeline WHERE id = ?1", &task, "i", pipeline);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    r = mf_sql(s, PIPELINE_RESULTS("1") " UNION ALL " PIPELINE_RESULTS("0") " ORDER BY 1 LIMIT ?4", &q,
               "iiii", task, pipeline, page->id, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){-1, -1, 0}, make_result, NULL, ret);
}
