/* Rows as JSON, for the store_read*.c files: the SQL's column names are the members' names. */
#pragma once

#include "common/moe/shape_json.h"
#include "server/store/store_private.h"
#include "server/store/store_read.h"

/* types, one letter a column:  i integer  d number  t text  b bool  j JSON text  . passed over.
 * NULL is null. NULL when out of memory. */
cJSON *mf_row_json(const struct mf_sql *q, const char *types);

/* Makes one item of the current row; it may add members by further queries. */
typedef int (*mf_row_maker)(struct mf_sql *q, void *data, cJSON **ret);
/* How the cursor's keys come out of a row: columns, -1 for none. */
struct mf_list_keys {
    int group, number, id;
};
/* Steps q to its end, which the query limits to page->limit + 1 rows. */
int mf_list_take(struct mf_sql *q, const struct mf_page *page, const struct mf_list_keys *keys,
                 mf_row_maker maker, void *data, struct mf_list *ret);
/* The same of rows that are items as they stand, in the order of their first column. */
int mf_list_rows(struct mf_sql *q, const struct mf_page *page, const char *types, struct mf_list *ret);
/* Every row of q as an item of the array `name`, which the object gets. */
int mf_rows_json(struct mf_sql *q, const char *types, cJSON *object, const char *name);
/* The outcome of task ?1's race, for mf_race_json, and who won it of the layout that was chosen; NULL: that is not known. */
#define MF_RACE_OF_TASK                                                                                      \
    "SELECT json_extract(r.extra, '$.race'), (SELECT coalesce(x.new, f.pipeline) FROM config f LEFT JOIN "   \
    "promotion x ON x.task = f.task WHERE f.task = ?1) FROM result r WHERE r.task = ?1 AND r.step IS NULL "  \
    "AND "                                                                                                   \
    "r.pipeline IS NULL AND r.final = 1 AND json_extract(r.extra, '$.race') IS NOT NULL ORDER BY r.id DESC " \
    "LIMIT 1"
/* Of a race of several groups, the members say what the group of that winner gave. NULL: no JSON. */
cJSON *mf_race_json(const struct mf_sql *q);
/* The samples of a result: little-endian float32. */
cJSON *mf_samples_json(const void *blob, size_t len);
