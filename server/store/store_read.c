/* REST queries for batches, tasks, workers, quarantine and events. store_read_steps.c has steps, pipelines
 * and results. */
#include "server/store/store_read.h"
#include "server/store/store_json.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/pipeline_text.h"
#include "common/moe/step.h"
#include "server/http/events.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static int take(cJSON *item, cJSON **ret)
{
    *ret = item;
    return item ? 0 : -ENOMEM;
}

/* ---- batches ---- */

#define BATCH_COLUMNS                                                                                  \
    "SELECT b.id AS id, b.name AS name, iif(b.receipt = '', 'submitting', b.state) AS state,"          \
    " b.priority AS priority, b.created_ms AS created_ms,"                                             \
    " b.ended_ms AS ended_ms, count(g.id) AS tasks, coalesce(sum(g.state = 'done'), 0) AS done,"       \
    " coalesce(sum(g.state = 'failed'), 0) AS failed, coalesce(sum(g.n_candidates), 0) AS candidates," \
    " coalesce(sum(g.n_steps), 0) AS steps, coalesce(sum(g.n_measured), 0) AS measured"
#define BATCH_TYPES "ittiiiiiiiii"

int mf_read_batches(struct mf_store *s, const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   BATCH_COLUMNS " FROM batch b LEFT JOIN task g ON g.batch = b.id"
                                 " WHERE b.id < ?1 GROUP BY b.id ORDER BY b.id DESC LIMIT ?2",
                   &q, "ii", page->from ? page->id : INT64_MAX, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_rows(q, page, BATCH_TYPES, ret);
}

int mf_read_batch_exists(struct mf_store *s, int64_t id)
{
    return mf_sql_exists(s, "SELECT id FROM batch WHERE id = ?", id);
}

/* The families that a unit waits for: those of its set that no available worker of the class offers; if each
 * is offered, but not together, all of the set. */
#define MISSING_FAMILIES                                                                    \
    "coalesce(" FAMILY_LIST(                                                                \
        " WHERE NOT EXISTS (SELECT 1 FROM worker_family o JOIN worker w ON w.id = o.worker" \
        " JOIN device_model n ON n.id = w.model WHERE o.family = f.id AND n.class ="        \
        " c.id AND " MF_WORKER_AVAILABLE ")") ", " FAMILY_LIST("") ")"
#define FAMILY_LIST(condition)                                                                 \
    "(SELECT group_concat('family ' || f.name || ' at revision ' || f.revision, ' and ') FROM" \
    " json_each(s.families) j JOIN family f ON f.id = j.value" condition ")"

/* clang-format off */
/* live: sets of families that available workers offer, by class and model
 * stuck: sets that no available worker of a class offers
 * away: sets that available workers of a class offer, but none of a model of the class */
#define WAITING                                                                                           \
    "WITH live AS MATERIALIZED ("                                                                         \
    " SELECT DISTINCT m.class AS class, w.model AS model, o.family_set AS families FROM worker w"         \
    " JOIN device_model m ON m.id = w.model JOIN worker_family_set o ON o.worker = w.id"                  \
    " WHERE " MF_WORKER_AVAILABLE "),"                                                                    \
    " stuck AS MATERIALIZED ("                                                                            \
    " SELECT c.id AS class, s.id AS families, " MISSING_FAMILIES " AS missing"                            \
    " FROM device_class c JOIN family_set s WHERE c.id IN (SELECT class FROM task WHERE batch = ?1)"      \
    " AND NOT EXISTS (SELECT 1 FROM live l WHERE l.class = c.id AND l.families = s.id)),"                 \
    " away AS MATERIALIZED ("                                                                             \
    " SELECT c.id AS class, m.id AS model, m.name AS name, s.id AS families,"                             \
    " " FAMILY_LIST("") " AS missing"                                                                     \
    " FROM device_class c JOIN device_model m ON m.class = c.id JOIN family_set s"                        \
    " WHERE c.id IN (SELECT class FROM task WHERE batch = ?1)"                                            \
    " AND EXISTS (SELECT 1 FROM live l WHERE l.class = c.id AND l.families = s.id)"                       \
    " AND NOT EXISTS (SELECT 1 FROM live l WHERE l.model = m.id AND l.families = s.id)),"                 \
    " waiting AS ("                                                                                       \
    " SELECT g.id AS task, g.class AS class, g.reason AS reason FROM task g"                              \
    " WHERE g.batch = ?1 AND g.state = 'waiting'"                                                         \
    " UNION ALL SELECT DISTINCT g.id, g.class, 'waits for a worker of class ' || c.gfx || '/' ||"         \
    " c.cu_num || ' with ' || x.missing FROM stuck x CROSS JOIN unit u INDEXED BY unit_ready ON"          \
    " u.state = 'ready' AND u.class = x.class AND u.families = x.families CROSS JOIN task g ON"           \
    " g.id = u.task JOIN device_class c ON c.id = g.class WHERE g.batch = ?1"                             \
    " UNION ALL SELECT DISTINCT g.id, g.class, 'waits for a worker of class ' || c.gfx || '/' ||"         \
    " c.cu_num || ' and model ' || x.name || ' with ' || x.missing FROM away x CROSS JOIN unit u"         \
    " INDEXED BY unit_ready ON u.state = 'ready' AND u.class = x.class AND u.families = x.families"       \
    " CROSS JOIN task g ON g.id = u.task JOIN device_class c ON c.id = g.class"                           \
    " WHERE g.batch = ?1 AND g.model = x.model)"                                                          \
    " SELECT c.gfx || '/' || c.cu_num AS class, count(*) AS tasks, w.reason AS reason FROM waiting w"     \
    " LEFT JOIN device_class c ON c.id = w.class GROUP BY w.class, w.reason"                              \
    " ORDER BY c.gfx, c.cu_num, w.reason"
/* clang-format on */

/* Adds `waiting`: the number of tasks by reason. A task waits if it has not begun. It also waits if it has a
 * unit whose families no connected worker of its class, or of its device model, offers. */
static int add_waiting(struct mf_store *s, int64_t id, cJSON *batch)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, WAITING, &q, "i", id);
    return r < 0 ? r : mf_rows_json(q, "tit", batch, "waiting");
}

/* Layout choices written by older versions lack some members of the body. */
#define LAYOUT_COLUMNS                                                                                 \
    "SELECT c.gfx || '/' || c.cu_num AS class, l.layer_model AS layer_model, l.consumer AS consumer, " \
    "l.layout AS layout, l.us AS "                                                                     \
    "us,"                                                                                              \
    " json_extract(l.body, '$.free_gain') AS free_gain, coalesce(json_extract(l.body, '$.by'), "       \
    "'forecast') AS by,"                                                                               \
    " coalesce(json_extract(l.body, '$.pending'), 0) AS pending, coalesce(json_extract(l.body, "       \
    "'$.layouts'), '[]') AS "                                                                          \
    "layouts"                                                                                          \
    " FROM layout_choice l JOIN device_class c ON c.id = l.class"
#define LAYOUT_TYPES "ttttddtbj"

static int add_layouts(struct mf_store *s, int64_t id, cJSON *batch)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql(s, LAYOUT_COLUMNS " WHERE l.batch = ?1 ORDER BY c.gfx, c.cu_num, l.layer_model, l.consumer",
               &q, "i", id);
    return r < 0 ? r : mf_rows_json(q, LAYOUT_TYPES, batch, "layouts");
}

/* The rate is computed from the batch's last ETA_RESULTS results among the farm's last ETA_WINDOW results. */
#define ETA_WINDOW  "20000"
#define ETA_RESULTS "500"

/* Estimates the remaining seconds from the batch's recent rate. Returns NAN in *ret if there are fewer than
 * five recent results, or if no worker has enumerated some of the tasks. */
static int read_eta(struct mf_store *s, int64_t id, double *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL, *left = NULL;
    *ret = (double)NAN;
    int r = mf_sql_first(
        s,
        "SELECT sum(n_steps - n_measured), sum(n_steps), sum(n_steps > 0), sum(n_steps = 0 AND state <> "
        "'waiting'),"
        " sum(state = 'waiting') FROM task WHERE batch = ?1 AND state NOT IN ('done', 'failed', 'cancelled')",
        &left, "i", id);
    if (r <= 0)
        return r;
    double known = mf_sql_double(left, 2);
    if (!(known > 0) || mf_sql_i64(left, 4) > 0)
        return 0;
    double steps = mf_sql_double(left, 0) + mf_sql_double(left, 3) * mf_sql_double(left, 1) / known;

    r = mf_sql_first(
        s,
        "SELECT count(*), min(at_ms) FROM (SELECT r.at_ms FROM result r JOIN task g ON g.id = r.task"
        " WHERE r.id > (SELECT max(id) FROM result) - " ETA_WINDOW
        " AND g.batch = ?1 ORDER BY r.id DESC LIMIT " ETA_RESULTS ")",
        &q, "i", id);
    if (r <= 0)
        return r;
    double n = mf_sql_double(q, 0), span = (double)(mf_wall_ms() - mf_sql_i64(q, 1)) / 1e3;
    if (n >= 5 && span > 0)
        *ret = steps * span / n;
    return 0;
}

int mf_read_batch(struct mf_store *s, int64_t id, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s,
                         BATCH_COLUMNS
                         ", b.options AS options, json_extract(b.receipt, '$.errors') AS errors"
                         " FROM batch b LEFT JOIN task g ON g.batch = b.id WHERE b.id = ?1 GROUP BY b.id",
                         &q, "i", id);
    if (r < 0)
        return r;
    if (r == 0)
        return -ENOENT;
    _cleanup_(cJSON_Deletep) cJSON *batch = mf_row_json(q, BATCH_TYPES "jj");
    double eta = (double)NAN;
    if (!batch)
        return -ENOMEM;
    if (strcmp(mf_sql_text(q, 2), "open") == 0 && (r = read_eta(s, id, &eta)) < 0)
        return r;
    cJSON_AddItemToObject(batch, "eta_s", isnan(eta) ? cJSON_CreateNull() : cJSON_CreateNumber(round(eta)));
    if ((r = add_waiting(s, id, batch)) < 0 || (r = add_layouts(s, id, batch)) < 0)
        return r;
    *ret = MF_TAKE(batch);
    return 0;
}

/* ---- tasks ---- */

#define TASK_COLUMNS                                                                                         \
    "SELECT g.id AS id, g.batch AS batch, s.row, s.layer_model AS layer_model, c.gfx || '/' || c.cu_num AS " \
    "class,"                                                                                                 \
    " m.name AS model, g.state AS state, g.reason AS reason, g.n_candidates AS candidates,"                  \
    " g.n_steps AS steps, g.n_measured AS measured,"                                                         \
    " g.ended_ms AS ended_ms, f.us AS us, f.mad AS mad, f.n AS n,"                                           \
    " f.unstable AS unstable, f.pipeline AS pipeline, p.structure AS structure, x.decision AS decision,"     \
    " o.consumer AS consumer,"                                                                               \
    " p.steps"                                                                                               \
    " FROM task g JOIN shape s ON s.id = g.shape LEFT JOIN device_class c ON c.id = g.class"                 \
    " LEFT JOIN device_model m ON m.id = g.model LEFT JOIN task_consumer o ON o.task = g.id"                 \
    " AND o.consumer = coalesce(?5, " MF_SHOWN_CONSUMER(                                                     \
        "g.id") ") LEFT JOIN config f ON f.task = g.id AND"                                                  \
                " f.consumer = o.consumer LEFT JOIN pipeline p ON p.id = f.pipeline LEFT JOIN promotion x "  \
                "ON x.task ="                                                                                \
                " g.id AND x.consumer = o.consumer"
#define TASK_TYPES "ii.tttttiiiiddititt" /* consumer: */ "t."
enum { TASK_ROW = 2, TASK_STEPS = 20 };

/* Returns ["family:step", …] for a JSON array of step ids. */
static cJSON *names_json(struct mf_store *s, const char *steps)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    _cleanup_(cJSON_Deletep) cJSON *list = cJSON_CreateArray();
    int r = mf_sql(s,
                   "SELECT k.family || ':' || k.name FROM json_each(?1) e CROSS JOIN step s ON s.id = e.value"
                   " JOIN kernel k ON k.id = s.kernel ORDER BY e.key",
                   &q, "t", steps);
    while (list && r >= 0 && (r = mf_sql_next(q)) > 0)
        cJSON_AddItemToArray(list, cJSON_CreateString(mf_sql_text(q, 0)));
    return r < 0 ? NULL : MF_TAKE(list);
}

static int make_task(struct mf_sql *q, void *store, cJSON **ret)
{
    _cleanup_(cJSON_Deletep) cJSON *o = mf_row_json(q, TASK_TYPES);
    cJSON *winner =
        mf_sql_null(q, TASK_STEPS) ? cJSON_CreateNull() : names_json(store, mf_sql_text(q, TASK_STEPS));
    if (!o || !winner || mf_shape_add_to_json(o, mf_sql_text(q, TASK_ROW)) < 0) {
        cJSON_Delete(winner);
        return -ENOMEM;
    }
    cJSON_AddItemToObject(o, "winner", winner);
    *ret = MF_TAKE(o);
    return 0;
}

int mf_read_tasks(struct mf_store *s, int64_t batch, const char *state, const struct mf_page *page,
                  struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_read_batch_exists(s, batch);
    if (r < 0)
        return r;
    r = mf_sql(s,
               TASK_COLUMNS
               " WHERE g.batch = ?1 AND (?2 IS NULL OR g.state = ?2) AND g.id > ?3 ORDER BY g.id LIMIT ?4",
               &q, "itiit", batch, state, page->id, (int64_t)page->limit + 1, NULL);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){-1, -1, 0}, make_task, s, ret);
}

/* Adds `config`; null if the task has no configuration. */
static int add_config(struct mf_store *s, int64_t task, const char *consumer, cJSON *o)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL, *race = NULL;
    int r = mf_sql_first(
        s,
        "SELECT us, mad, n, tries, unstable, pipeline AS pipeline, us1 AS us1, us2 AS us2, err1 AS err1,"
        " err2 AS err2, ties AS ties, regret AS regret, provenance AS provenance, at_ms AS at_ms"
        " FROM config WHERE task = ?1 AND consumer = ?2",
        &q, "it", task, consumer);
    if (r < 0)
        return r;
    cJSON *config = r > 0 ? mf_row_json(q, ".....iddddjjji") : cJSON_CreateNull();
    if (!config || !cJSON_AddItemToObject(o, "config", config))
        return -ENOMEM;
    if (r == 0)
        return 0;
    r = mf_reported_json(q, 0, config);
    if (r < 0)
        return r;
    r = mf_sql_first(s, MF_RACE_OF_TASK, &race, "it", task, consumer);
    if (r < 0)
        return r;
    cJSON *json = r > 0 ? mf_race_json(race) : NULL;
    cJSON_AddItemToObject(config, "race", json ? json : cJSON_CreateNull());
    return 0;
}

/* Adds `layout`, the layout choice of the task's layer model, or null if no layout has been chosen yet. */
static int add_layout(struct mf_store *s, int64_t task, const char *consumer, cJSON *o)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql_first(s,
                         LAYOUT_COLUMNS " JOIN task g ON g.batch = l.batch AND g.class = l.class"
                                        " JOIN shape h ON h.id = g.shape AND h.layer_model = l.layer_model"
                                        " WHERE g.id = ?1 AND l.consumer = ?2",
                         &q, "it", task, consumer);
    if (r < 0)
        return r;
    cJSON *layout = r > 0 ? mf_row_json(q, LAYOUT_TYPES) : cJSON_CreateNull();
    return layout && cJSON_AddItemToObject(o, "layout", layout) ? 0 : -ENOMEM;
}

/* Adds `promotion`, or null if the batch replaces every row. */
static int add_promotion(struct mf_store *s, int64_t task, const char *consumer, cJSON *o)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL, *devices = NULL;
    int r = mf_sql_first(
        s,
        "SELECT x.decision AS decision, x.reason AS reason, x.source AS source, x.known_us AS known_us,"
        " x.old AS old, x.new AS new, x.new_us AS new_us, x.least AS min_effect, x.at_ms AS at_ms, x.known,"
        " coalesce(p.steps, '[]') FROM promotion x LEFT JOIN pipeline p ON p.id = x.new WHERE x.task = ?1"
        " AND x.consumer = ?2",
        &q, "it", task, consumer);
    if (r < 0)
        return r;
    cJSON *promotion = r > 0 ? mf_row_json(q, "tttdiiddi") : cJSON_CreateNull();
    if (!promotion || !cJSON_AddItemToObject(o, "promotion", promotion))
        return -ENOMEM;
    if (r == 0)
        return 0;
    cJSON *known = mf_pipeline_text_json(mf_sql_text(q, 9)), *new = names_json(s, mf_sql_text(q, 10));
    if (known)
        cJSON_AddItemToObject(promotion, "known", known);
    if (new)
        cJSON_AddItemToObject(promotion, "names", new);
    if (!known || !new)
        return -ENOMEM;
    r = mf_sql(s,
               "SELECT w.name AS worker, c.verdict AS verdict, c.low AS low, c.mid AS mid, c.high AS high,"
               " c.n AS n, c.old_us AS old_us, c.new_us AS new_us, c.old_status AS old_status,"
               " c.new_status AS new_status, c.old_reason AS old_reason, c.new_reason AS new_reason,"
               " c.unit AS unit, c.at_ms AS at_ms FROM comparison c JOIN worker w ON w.id = c.worker"
               " WHERE c.task = ?1 AND c.consumer = ?2 ORDER BY c.unit",
               &devices, "it", task, consumer);
    return r < 0 ? r : mf_rows_json(devices, "ttdddiddttttii", promotion, "devices");
}

int mf_read_shown_consumer(struct mf_store *s, int64_t task, const char *given,
                           char ret[MF_READ_CONSUMER_MAX])
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r =
        mf_sql_first(s, "SELECT coalesce(?2, " MF_SHOWN_CONSUMER("g.id") ", '') FROM task g WHERE g.id = ?1",
                     &q, "it", task, given);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    return mf_copy(ret, MF_READ_CONSUMER_MAX, mf_sql_text(q, 0));
}

#define CONSUMER_STEPS 7 /* column of pipeline.steps in the query below */

/* Adds `consumers`: the config of each consumer that the task serves, or why it has none. ratio: time
 * relative to the fastest config. */
static int add_consumers(struct mf_store *s, int64_t task, cJSON *o)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    cJSON *list = cJSON_AddArrayToObject(o, "consumers");
    int r = mf_sql(s,
                   "SELECT t.consumer AS consumer, t.reason AS reason, f.us AS us, f.mad AS mad,"
                   " f.us / (SELECT min(y.us) FROM config y WHERE y.task = t.task) AS ratio,"
                   " f.pipeline AS pipeline, p.structure AS structure, p.steps FROM task_consumer t"
                   " LEFT JOIN config f ON f.task = t.task AND f.consumer = t.consumer"
                   " LEFT JOIN pipeline p ON p.id = f.pipeline WHERE t.task = ?1"
                   " ORDER BY instr('moefarm,aiter,vllm,sglang,any', t.consumer)",
                   &q, "i", task);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        cJSON *item = mf_row_json(q, "ttdddit");
        if (!item || !cJSON_AddItemToArray(list, item))
            return -ENOMEM;
        cJSON *winner = mf_sql_null(q, CONSUMER_STEPS) ? cJSON_CreateNull()
                                                       : names_json(s, mf_sql_text(q, CONSUMER_STEPS));
        if (!winner || !cJSON_AddItemToObject(item, "winner", winner))
            return -ENOMEM;
    }
    return r;
}

int mf_read_task(struct mf_store *s, int64_t id, const char *consumer, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    _cleanup_(cJSON_Deletep) cJSON *task = NULL;
    char shown[MF_READ_CONSUMER_MAX];
    int r = mf_read_shown_consumer(s, id, consumer, shown);
    if (r < 0)
        return r;
    r = mf_sql_first(s, TASK_COLUMNS " WHERE g.id = ?1", &q, "iiiit", id, (int64_t)0, (int64_t)0, (int64_t)0,
                     shown);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    if ((r = make_task(q, s, &task)) < 0 || (r = add_config(s, id, shown, task)) < 0 ||
        (r = add_layout(s, id, shown, task)) < 0 || (r = add_promotion(s, id, shown, task)) < 0 ||
        (r = add_consumers(s, id, task)) < 0)
        return r;
    *ret = MF_TAKE(task);
    return 0;
}

/* ---- workers, quarantine ---- */

/* Adds `busy`: the fraction of time per phase, from the seconds in busy_s. */
static void add_shares(cJSON *worker)
{
    cJSON *seconds = cJSON_GetObjectItemCaseSensitive(worker, "busy_s"), *item;
    cJSON *shares = cJSON_AddObjectToObject(worker, "busy");
    double sum = 0;
    cJSON_ArrayForEach (item, seconds)
        sum += item->valuedouble;
    cJSON_ArrayForEach (item, seconds) {
        if (sum > 0)
            cJSON_AddNumberToObject(shares, item->string, round(item->valuedouble / sum * 1e4) / 1e4);
    }
}

static int make_worker(struct mf_sql *q, void *data, cJSON **ret)
{
    (void)data;
    cJSON *o = mf_row_json(q, "itttbttitiiiiitjjttjtj");
    if (o)
        add_shares(o);
    return take(o, ret);
}

int mf_read_workers(struct mf_store *s, const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(
        s,
        "SELECT w.id AS id, w.name AS name, w.host AS host, c.gfx || '/' || c.cu_num AS class, m.simulated "
        "AS simulated,"
        " m.name AS model, w.state AS state, w.unit AS unit, w.step AS step, w.pid AS pid, w.joined_ms AS "
        "joined_ms,"
        " w.seen_ms AS seen_ms, w.n_results AS n_results, w.n_deaths AS n_deaths, w.revision AS revision,"
        " w.families AS families, w.busy AS busy_s, w.version AS version, w.sandbox AS "
        "sandbox, w.device AS device, w.quarantined AS quarantined, w.refused_families AS refused_families"
        " FROM worker w JOIN device_model m ON m.id = w.model JOIN device_class c ON c.id = m.class"
        " WHERE w.id > ?1 ORDER BY w.id LIMIT ?2",
        &q, "ii", page->id, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){-1, -1, 0}, make_worker, NULL, ret);
}

static int make_quarantine(struct mf_sql *q, void *store, cJSON **ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *strikes = NULL;
    _cleanup_(cJSON_Deletep) cJSON *o = mf_row_json(q, "ittttti.");
    int r = mf_sql(
        store,
        "SELECT t.status AS status, t.reason AS reason, w.name AS worker, t.task AS task, t.at_ms AS at_ms"
        " FROM strike t JOIN worker w ON w.id = t.worker WHERE t.kernel = ?1 AND t.class = ?2 ORDER BY t.id "
        "LIMIT 100",
        &strikes, "ii", mf_sql_i64(q, 0), mf_sql_i64(q, 7));
    if (r < 0 || !o)
        return r < 0 ? r : -ENOMEM;
    if ((r = mf_rows_json(strikes, "tttii", o, "strikes")) < 0)
        return r;
    *ret = MF_TAKE(o);
    return 0;
}

int mf_read_quarantine(struct mf_store *s, const struct mf_page *page, struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT k.id AS kernel, k.family AS family, k.name AS name, k.revision AS revision,"
                   " c.gfx || '/' || c.cu_num AS class, x.reason AS reason, x.at_ms AS at_ms, x.class"
                   " FROM quarantine x JOIN kernel k ON k.id = x.kernel JOIN device_class c ON c.id = x.class"
                   " WHERE (x.kernel, x.class) > (?1, ?2) ORDER BY x.kernel, x.class LIMIT ?3",
                   &q, "iii", page->group, page->id, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){0, -1, 7}, make_quarantine, s, ret);
}

/* ---- events ---- */

int mf_read_last_event(struct mf_store *s, int64_t *ret_id)
{
    *ret_id = 0;
    int r = mf_sql_get_i64(s, "SELECT coalesce(max(id), 0) FROM event", ret_id, "");
    return r < 0 ? r : 0;
}

int mf_read_events(struct mf_store *s, int64_t batch, int64_t *cursor, struct mf_buf *out, size_t max)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int64_t last;
    int r = mf_read_last_event(s, &last);
    if (r < 0)
        return r;
    if (batch > 0)
        r = mf_sql(s, "SELECT id, kind, body FROM event WHERE batch = ?1 AND id > ?2 ORDER BY id", &q, "ii",
                   batch, *cursor);
    else
        r = mf_sql(s, "SELECT id, kind, body FROM event WHERE id > ?1 ORDER BY id", &q, "i", *cursor);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        if (out->len >= max)
            return 0;
        if ((r = mf_event_format(out, mf_sql_i64(q, 0), mf_sql_text(q, 1), mf_sql_text(q, 2))) < 0)
            return r;
        *cursor = mf_sql_i64(q, 0);
    }
    /* No event of the batch is left, so skip the farm's other events */
    if (r == 0 && last > *cursor)
        *cursor = last;
    return r;
}
