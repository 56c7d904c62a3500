/* Converts query rows to JSON for the store_read*.c files. SQL column names are the JSON member names. */
#pragma once

#include "common/moe/shape_json.h"
#include "server/store/store_list.h"
#include "server/store/store_private.h"

/* Converts the current row. types has one letter per column: i integer, d number, t text, b bool, j JSON
 * text, and . for a column to skip. NULL becomes null. Returns NULL if out of memory. */
cJSON *mf_row_json(const struct mf_sql *q, const char *types);

/* Creates one item from the current row. May run further queries to add members. */
typedef int (*mf_row_maker)(struct mf_sql *q, void *data, cJSON **ret);
/* Columns that hold the keys of the list cursor; -1 if the list has no such key. */
struct mf_list_keys {
    int group, number, id;
};
/* Reads q to its end and fills ret with items and the cursor. The query must return at most page->limit + 1
 * rows. */
int mf_list_read(struct mf_sql *q, const struct mf_page *page, const struct mf_list_keys *keys,
                 mf_row_maker maker, void *data, struct mf_list *ret);
/* Same as mf_list_read, for a query whose rows are the items, ordered by their first column. */
int mf_list_rows(struct mf_sql *q, const struct mf_page *page, const char *types, struct mf_list *ret);
/* Adds every row of q as an item of a new array member `name` of the object. */
int mf_rows_json(struct mf_sql *q, const char *types, cJSON *object, const char *name);
/* The consumer whose config is shown for a task if the request names none: the first one, in the order of
 * common/moe/consumer.h, that has a config; else the first one. */
#define MF_SHOWN_CONSUMER(task)                                                                     \
    "(SELECT t.consumer FROM task_consumer t WHERE t.task = " task " ORDER BY NOT EXISTS (SELECT 1" \
    " FROM config y WHERE y.task = t.task AND y.consumer = t.consumer), instr('moefarm,aiter,vllm," \
    "sglang,any', t.consumer) LIMIT 1)"
/* Query for the race of task ?1 for consumer ?2 as JSON, and for the pipeline that won within the chosen
 * layout (NULL if unknown). Its rows are the input of mf_race_json. */
#define MF_RACE_OF_TASK                                                                                    \
    "SELECT json_extract(r.extra, '$.race'), (SELECT coalesce(x.new, f.pipeline) FROM config f LEFT JOIN " \
    "promotion x ON x.task = f.task AND x.consumer = f.consumer WHERE f.task = ?1 AND f.consumer = ?2)"    \
    " FROM result r WHERE r.task = ?1 AND r.step IS NULL AND r.pipeline IS NULL AND r.final = 1"           \
    " AND json_extract(r.extra, '$.race') IS NOT NULL AND coalesce((SELECT json_extract(u.body,"           \
    " '$.consumer') FROM unit u WHERE u.id = r.unit), 'moefarm') = ?2 ORDER BY r.id DESC LIMIT 1"
/* Returns the race as JSON, or NULL if the text is not JSON. If the race had several groups (one per layout),
 * the top-level members are those of the winner's group. */
cJSON *mf_race_json(const struct mf_sql *q);
/* Adds us, mad, n, tries and unstable of a config, read from this column on. Returns 0 or -ENOMEM. */
int mf_reported_json(const struct mf_sql *q, int column, cJSON *o);
/* Converts the samples of a result (little-endian float32). */
cJSON *mf_samples_json(const void *blob, size_t len);
