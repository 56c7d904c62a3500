/* REST queries for shapes over all batches, with their latest tasks. */
#include "server/store/store_json.h"
#include "server/store/store_read.h"

#include "common/base/json.h"

#include <errno.h>

/* Number of latest tasks per shape, over all classes */
#define TASKS_MAX 256
#define SHAPE_ROW 2 /* column of shape.row */

struct maker {
    struct mf_store *s;
    const char *class;
};

static int make_shape(struct mf_sql *q, void *data, cJSON **ret)
{
    const struct maker *m = data;
    _cleanup_(mf_sql_donep) struct mf_sql *tasks = NULL;
    _cleanup_(cJSON_Deletep) cJSON *o = mf_row_json(q, "it.");
    if (!o || mf_shape_add_to_json(o, mf_sql_text(q, SHAPE_ROW)) < 0)
        return -ENOMEM;
    int r = mf_sql(
        m->s,
        "SELECT g.id AS id, g.batch AS batch, c.gfx || '/' || c.cu_num AS class, d.name AS model,"
        " g.state AS state, g.reason AS reason, f.us AS us, f.unstable AS unstable, f.pipeline AS pipeline, "
        "g.ended_ms AS ended_ms"
        " FROM task g LEFT JOIN device_class c ON c.id = g.class LEFT JOIN device_model d ON d.id = g.model"
        " LEFT JOIN config f ON f.task = g.id AND f.consumer = " MF_SHOWN_CONSUMER(
            "g.id") " WHERE g.shape = ?1"
                    " AND (?2 IS NULL OR c.gfx || '/' || c.cu_num = ?2) ORDER BY g.id DESC LIMIT ?3",
        &tasks, "iti", mf_sql_i64(q, 0), m->class, (int64_t)TASKS_MAX);
    if (r < 0 || (r = mf_rows_json(tasks, "iittttdtii", o, "tasks")) < 0)
        return r;
    *ret = MF_TAKE(o);
    return 0;
}

int mf_read_shapes(struct mf_store *s, const char *layer_model, const char *class, const struct mf_page *page,
                   struct mf_list *ret)
{
    _cleanup_(mf_sql_donep) struct mf_sql *q = NULL;
    struct maker m = {s, class};
    int r = mf_sql(
        s,
        "SELECT h.id AS id, h.layer_model AS layer_model, h.row FROM shape h WHERE h.id > ?1"
        " AND (?2 IS NULL OR h.layer_model = ?2) AND (?3 IS NULL OR EXISTS (SELECT 1 FROM task g"
        " JOIN device_class c ON c.id = g.class WHERE g.shape = h.id AND c.gfx || '/' || c.cu_num = ?3))"
        " ORDER BY h.id LIMIT ?4",
        &q, "itti", page->id, layer_model, class, (int64_t)page->limit + 1);
    return r < 0 ? r : mf_list_read(q, page, &(struct mf_list_keys){-1, -1, 0}, make_shape, &m, ret);
}
