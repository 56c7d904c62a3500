#include "server/store/store_export.h"

#include "server/store/store_private.h"

#include "common/base/text.h"
#include "common/moe/pipeline_text.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Parameters 1 to 6 of each query are the filter; ?6 is the consumer. A filter on one batch uses its own
 * statement, so that SQLite finds the batch's tasks by index. A task that ended before any device began to
 * measure it has no model. Such a task passes the filter for every model of its class. */
#define ANY_BATCH " ?1 IS NULL"
#define ONE_BATCH " g.batch = ?1"
#define FILTER(batch)                                                                                    \
    batch " AND (?2 IS NULL OR c.gfx = ?2) AND (?3 IS NULL OR c.cu_num = ?3)"                            \
          " AND (?4 IS NULL OR coalesce(m.name = ?4, EXISTS (SELECT 1 FROM device_model d WHERE d.class" \
          " = g.class AND d.name = ?4))) AND (?5 IS NULL OR s.layer_model = ?5)"
#define FILTER_TYPES   "ItIttt"
#define FILTER_ARGS(f) (f)->batch, (f)->gfx, (f)->cu_num, (f)->model, (f)->layer_model, (f)->consumer

/* A config whose promotion is pending or undecided is not exported. */
#define DECIDED(task)                                                                    \
    " NOT EXISTS (SELECT 1 FROM promotion x WHERE x.task = " task " AND x.consumer = ?6" \
    " AND x.decision IN ('pending', 'undecided'))"

/* If a key has several configs, the config with the highest id is used. Time stamps would be unreliable,
 * because the clock may be set back. */
/* clang-format off */
#define CONFIGS(batch)                                                                                       \
    "SELECT q.gfx, q.cu_num, q.model, q.simulated, q.row, q.layout, q.provenance, q.block_m, q.us, q.us1,"   \
    " q.us2, q.err1, q.err2, q.steps, q.n, q.mad, q.tries, q.unstable, q.config, q.task, q.pipeline,"        \
    " q.ties, q.regret, q.batch, coalesce(o.decision = 'promoted' AND o.source <> '', 0),"                   \
    " (SELECT options FROM batch WHERE id = q.batch)"                                                        \
    " FROM (SELECT c.gfx AS gfx, c.cu_num AS cu_num, m.name AS model, m.simulated AS simulated,"             \
    "  s.row AS row, s.layer_model AS layer_model, s.token AS token, p.layout AS layout,"                    \
    "  f.provenance AS provenance, p.block_m AS block_m, f.us AS us, f.n AS n, f.mad AS mad,"                \
    "  f.tries AS tries, f.unstable AS unstable, f.us1 AS us1, f.us2 AS us2, f.err1 AS err1,"                \
    "  f.err2 AS err2, p.steps AS steps, f.task AS task, p.id AS pipeline, f.id AS config,"                  \
    "  f.ties AS ties, f.regret AS regret, g.batch AS batch,"                                                \
    "  row_number() OVER (PARTITION BY f.class, f.model, f.shape ORDER BY f.id DESC) AS nth"                 \
    "  FROM config f JOIN task g ON g.id = f.task JOIN shape s ON s.id = f.shape"                            \
    "  JOIN device_class c ON c.id = f.class JOIN device_model m ON m.id = f.model"                          \
    "  JOIN pipeline p ON p.id = f.pipeline WHERE f.consumer = ?6 AND" FILTER(batch) " AND"                  \
    DECIDED("f.task") ") q"                                                                                  \
    " LEFT JOIN promotion o ON o.task = q.task AND o.consumer = ?6 WHERE nth = 1"                            \
    " ORDER BY q.gfx, q.cu_num, q.layer_model, q.token, q.model"
/* clang-format on */

/* Reads the steps of a config. -EOVERFLOW: the config has more than MF_EXPORT_STEPS_MAX steps. */
static int read_steps(struct mf_store *s, const char *ids, struct mf_export_config *c)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s,
                   "SELECT k.family, k.name, json_extract(t.body, '$.stage'), t.covers,"
                   " coalesce(json_extract(t.body, '$.ksplit'), 0), coalesce(json_extract(t.body, "
                   "'$.aiter'), 0), coalesce(json_extract(t.body, '$.foreign'), 0) FROM json_each(?1) e "
                   "CROSS JOIN step t ON "
                   "t.id = e.value"
                   " JOIN kernel k ON k.id = t.kernel ORDER BY e.key",
                   &q, "t", ids);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        if (c->n_steps == MF_EXPORT_STEPS_MAX)
            return -EOVERFLOW;
        struct mf_export_step *step = &c->steps[c->n_steps++];
        step->ksplit = (int32_t)mf_sql_i64(q, 4);
        step->aiter = mf_sql_i64(q, 5) != 0;
        step->foreign = mf_sql_i64(q, 6) != 0;
        if ((r = mf_copy(step->family, sizeof(step->family), mf_sql_text(q, 0))) < 0 ||
            (r = mf_copy(step->name, sizeof(step->name), mf_sql_text(q, 1))) < 0 ||
            (r = mf_stage_parse(mf_sql_text(q, 2), &step->stage)) < 0 ||
            (r = mf_ops_parse(mf_sql_text(q, 3), &step->covers)) < 0)
            return r;
    }
    return r;
}

static int read_config(struct mf_store *s, const struct mf_sql *q, const char *consumer, mf_export_fn each,
                       void *data)
{
    struct mf_export_config c = {
        .consumer = consumer,
        .class.cu_num = (int)mf_sql_i64(q, 1),
        .model = mf_sql_text(q, 2),
        .simulated = mf_sql_i64(q, 3) != 0,
        .row = mf_sql_text(q, 4),
        .layout = mf_sql_text(q, 5),
        .provenance = mf_sql_text(q, 6),
        .block_m = (int32_t)mf_sql_i64(q, 7),
        .us = mf_sql_double(q, 8),
        .us1 = mf_sql_double(q, 9),
        .us2 = mf_sql_double(q, 10),
        .err1 = mf_sql_double(q, 11),
        .err2 = mf_sql_double(q, 12),
        .n = mf_sql_i64(q, 14),
        .mad = mf_sql_double(q, 15),
        .tries = mf_sql_i64(q, 16),
        .unstable = mf_sql_text(q, 17),
        .config = mf_sql_i64(q, 18),
        .task = mf_sql_i64(q, 19),
        .pipeline = mf_sql_i64(q, 20),
        .ties = mf_sql_text(q, 21),
        .regret = mf_sql_text(q, 22),
        .batch = mf_sql_i64(q, 23),
        .promoted = mf_sql_i64(q, 24) != 0,
        .options = mf_sql_text(q, 25),
    };
    int r = mf_copy(c.class.gfx, sizeof(c.class.gfx), mf_sql_text(q, 0));
    if (r == 0)
        r = read_steps(s, mf_sql_text(q, 13), &c);
    return r < 0 ? r : each(&c, data);
}

int mf_store_export(struct mf_store *s, const struct mf_export_filter *filter, mf_export_fn each, void *data)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, filter->batch ? CONFIGS(ONE_BATCH) : CONFIGS(ANY_BATCH), &q, FILTER_TYPES,
                   FILTER_ARGS(filter));
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        int e = read_config(s, q, filter->consumer, each, data);
        if (e < 0)
            return e;
    }
    return r;
}

/* A filter on the model excludes configs and tasks of other models. A task without a model passes the filter
 * for every model of its class. */
#define OF_MODEL(model) \
    " (?4 IS NULL OR coalesce((SELECT d.name FROM device_model d WHERE d.id = " model ") = ?4, 1))"
#define HAS_CONFIG                                                                                      \
    " EXISTS (SELECT 1 FROM config f WHERE f.shape = g.shape AND f.class = g.class AND f.consumer = ?6" \
    " AND" OF_MODEL("f.model") " AND" DECIDED("f.task") ")"
#define SERVES(task) " EXISTS (SELECT 1 FROM task_consumer t WHERE t.task = " task " AND t.consumer = ?6)"
/* Why the consumer has no config of the task; NULL: it has one, or the task is done and needs none. */
#define REASON                                                                                              \
    " coalesce((SELECT o.reason FROM promotion o WHERE o.task = g.id AND o.consumer = ?6 AND o.decision ="  \
    " 'undecided'), (SELECT nullif(t.reason, '') FROM task_consumer t WHERE t.task = g.id AND t.consumer =" \
    " ?6), CASE WHEN g.state = 'failed' THEN g.reason WHEN NOT" SERVES(                                     \
        "g.id") " THEN 'batch ' || g.batch ||"                                                              \
                " ' does not tune for ' || ?6 || '; submit a batch with consumer=' || ?6 END)"

/* A task that does not serve the consumer counts only if no task of its shape and class does. */
#define FAILED(batch)                                                                                     \
    "SELECT c.gfx || '/' || c.cu_num, s.row," REASON " AS why FROM task g JOIN shape s ON s.id = g.shape" \
    " JOIN device_class c ON c.id = g.class LEFT JOIN device_model m ON m.id = g.model WHERE" FILTER(     \
        batch) " AND g.id = (SELECT x.id FROM task x WHERE x.shape = g.shape AND x.class = g.class"       \
               " AND x.state IN ('done', 'failed') AND" OF_MODEL("x.model") " ORDER BY" SERVES(           \
                   "x.id") " DESC, x.id DESC LIMIT 1) AND NOT" HAS_CONFIG " AND why IS NOT NULL"          \
                           " ORDER BY c.gfx, c.cu_num, s.layer_model, s.token"

#define MISSING(batch)                                                                                       \
    "SELECT coalesce(c.gfx || '/' || c.cu_num, ''), s.row, 'the task is ' || g.state || CASE g.reason WHEN " \
    "'' THEN '' ELSE ': ' || g.reason END FROM task g JOIN shape s ON s.id = g.shape"                        \
    " LEFT JOIN device_class c ON c.id = g.class LEFT JOIN device_model m ON m.id = g.model"                 \
    " WHERE g.state NOT IN ('done', 'failed') AND" SERVES("g.id") " AND" FILTER(                             \
        batch) " AND g.id = (SELECT max(x.id) FROM task x WHERE x.shape = g.shape AND x.class IS g.class "   \
               "AND" OF_MODEL("x.model") ")"                                                                 \
                                         " AND NOT EXISTS (SELECT 1 FROM task x WHERE x.shape = g.shape "    \
                                         "AND x.class IS g.class AND "                                       \
                                         "x.state IN ('done', 'failed') AND" OF_MODEL(                       \
                                             "x.model") ")"                                                  \
                                                        " AND NOT" HAS_CONFIG                                \
                                                        " ORDER BY c.gfx, c.cu_num, s.layer_model, s.token"

static int each_left_out(struct mf_store *s, const char *literal, const struct mf_export_filter *filter,
                         mf_export_left_out_fn each, void *data)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    int r = mf_sql(s, literal, &q, FILTER_TYPES, FILTER_ARGS(filter));
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        int e = each(mf_sql_text(q, 0), mf_sql_text(q, 1), mf_sql_text(q, 2), data);
        if (e < 0)
            return e;
    }
    return r;
}

int mf_store_export_failed(struct mf_store *s, const struct mf_export_filter *filter,
                           mf_export_left_out_fn each, void *data)
{
    return each_left_out(s, filter->batch ? FAILED(ONE_BATCH) : FAILED(ANY_BATCH), filter, each, data);
}

int mf_store_export_missing(struct mf_store *s, const struct mf_export_filter *filter,
                            mf_export_left_out_fn each, void *data)
{
    return each_left_out(s, filter->batch ? MISSING(ONE_BATCH) : MISSING(ANY_BATCH), filter, each, data);
}

int mf_store_export_names(struct mf_store *s, int64_t pipeline, char *ret, size_t cap)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    *ret = '\0';
    int r = mf_sql(s,
                   "SELECT k.family, k.name FROM pipeline p, json_each(p.steps) e CROSS JOIN step t "
                   "ON t.id = e.value JOIN kernel k ON k.id = t.kernel WHERE p.id = ?1 ORDER BY e.key",
                   &q, "i", pipeline);
    while (r >= 0 && (r = mf_sql_next(q)) > 0)
        r = mf_pipeline_text_add(ret, cap, mf_sql_text(q, 0), mf_sql_text(q, 1));
    return r;
}

int mf_store_export_promotion(struct mf_store *s, int64_t task, const char *consumer, char *ret, size_t cap)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    *ret = '\0';
    int r =
        mf_sql_first(s,
                     "SELECT json_object('decision', decision, 'reason', reason, 'source', source, 'known', "
                     "known, 'known_us', known_us, 'least', least) FROM promotion WHERE task = ? AND"
                     " consumer = ?",
                     &q, "it", task, consumer);
    return r > 0 ? mf_copy(ret, cap, mf_sql_text(q, 0)) : r;
}

#define MODELS(batch)                                                                                     \
    "SELECT gfx || '/' || cu_num || ': ' || group_concat(name, ', ') FROM (SELECT DISTINCT "              \
    "c.gfx AS gfx, c.cu_num AS cu_num,"                                                                   \
    " m.name AS name FROM config f JOIN task g ON g.id = f.task JOIN shape s ON s.id = f.shape"           \
    " JOIN device_class c ON c.id = f.class JOIN device_model m ON m.id = f.model WHERE f.consumer = ?6 " \
    "AND" FILTER(                                                                                         \
        batch) " AND (m.simulated = 0 OR ?7) ORDER BY 1, 2, 3) GROUP BY gfx, cu_num HAVING count(*) > 1"

int mf_store_export_models(struct mf_store *s, const struct mf_export_filter *filter, bool simulated,
                           char *ret, size_t cap)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    *ret = 0;
    int r = mf_sql(s, filter->batch ? MODELS(ONE_BATCH) : MODELS(ANY_BATCH), &q, FILTER_TYPES "i",
                   FILTER_ARGS(filter), (int64_t)simulated);
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        size_t len = strlen(ret);
        mf_format(ret + len, cap - len, "%s%s", len ? "; " : "", mf_sql_text(q, 0));
    }
    return r;
}
