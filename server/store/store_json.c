#include "server/store/store_json.h"

#include "common/base/json.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static cJSON *column_json(const struct mf_sql *q, int column, char type)
{
    if (mf_sql_null(q, column))
        return cJSON_CreateNull();
    switch (type) {
    case 'b':
        return cJSON_CreateBool(mf_sql_i64(q, column) != 0);
    case 't':
        return cJSON_CreateString(mf_sql_text(q, column));
    case 'd':
        return cJSON_CreateNumber(mf_sql_double(q, column));
    case 'j': {
        const char *text = mf_sql_text(q, column);
        cJSON *json = mf_json_parse(text, strlen(text), strlen(text));
        return json ? json : cJSON_CreateNull();
    }
    default:
        return NULL;
    }
}

/* Adds a column as a member. Prints integers exactly, even above 2^53. */
static int add_column(cJSON *o, const struct mf_sql *q, int column, char type)
{
    const char *name = sqlite3_column_name(q->stmt, column);
    if (type == 'i' && !mf_sql_null(q, column))
        return mf_json_add_i64(o, name, mf_sql_i64(q, column)) ? 0 : -ENOMEM;
    cJSON *item = column_json(q, column, type);
    if (item && cJSON_AddItemToObject(o, name, item))
        return 0;
    cJSON_Delete(item);
    return -ENOMEM;
}

cJSON *mf_row_json(const struct mf_sql *q, const char *types)
{
    _cleanup_(cJSON_Deletep) cJSON *o = cJSON_CreateObject();
    for (int i = 0; o && types[i]; i++) {
        if (types[i] == '.')
            continue;
        if (add_column(o, q, i, types[i]) < 0)
            return NULL;
    }
    return MF_TAKE(o);
}

int mf_list_read(struct mf_sql *q, const struct mf_page *page, const struct mf_list_keys *keys,
                 mf_row_maker maker, void *data, struct mf_list *ret)
{
    _cleanup_(cJSON_Deletep) cJSON *items = cJSON_CreateArray();
    char next[MF_CURSOR_TEXT_MAX] = "", last[MF_CURSOR_TEXT_MAX] = "";
    int r = items ? 0 : -ENOMEM, n = 0;

    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        if (n++ == page->limit) {
            memcpy(next, last, sizeof(next));
            break;
        }
        mf_cursor_print(keys->group < 0 ? 0 : mf_sql_i64(q, keys->group),
                        keys->number < 0 ? 0 : mf_sql_double(q, keys->number), mf_sql_i64(q, keys->id), last);
        cJSON *item = NULL;
        r = maker(q, data, &item);
        if (r >= 0)
            cJSON_AddItemToArray(items, item);
    }
    if (r < 0)
        return r;
    ret->items = MF_TAKE(items);
    memcpy(ret->next, next, sizeof(next));
    return 0;
}

struct plain {
    const char *types;
};

static int make_plain(struct mf_sql *q, void *data, cJSON **ret)
{
    const struct plain *p = data;
    *ret = mf_row_json(q, p->types);
    return *ret ? 0 : -ENOMEM;
}

int mf_list_rows(struct mf_sql *q, const struct mf_page *page, const char *types, struct mf_list *ret)
{
    return mf_list_read(q, page, &(struct mf_list_keys){-1, -1, 0}, make_plain, &(struct plain){types}, ret);
}

cJSON *mf_race_json(const struct mf_sql *q)
{
    static const char *const members[] = {"winner", "us", "mad", "ties", "tries", "unstable"};
    const char *text = mf_sql_text(q, 0);
    cJSON *group, *race = mf_json_parse(text, strlen(text), strlen(text));
    int64_t winner;
    cJSON_ArrayForEach (group, mf_json_array(race, "groups")) {
        if (mf_sql_null(q, 1) || mf_json_i64(group, "winner", 1, INT64_MAX, &winner) < 0 ||
            winner != mf_sql_i64(q, 1))
            continue;
        for (size_t i = 0; i < MF_ARRAY_LEN(members); i++) {
            cJSON_DeleteItemFromObjectCaseSensitive(race, members[i]);
            cJSON *own = cJSON_GetObjectItemCaseSensitive(group, members[i]);
            if (own)
                cJSON_AddItemToObject(race, members[i], cJSON_Duplicate(own, true));
        }
    }
    return race;
}

int mf_reported_json(const struct mf_sql *q, int column, cJSON *o)
{
    static const char *const numbers[] = {"us", "mad"};
    for (int i = 0; i < 2; i++) {
        double value = mf_sql_double(q, column + i);
        if (!(isnan(value) ? cJSON_AddNullToObject(o, numbers[i])
                           : cJSON_AddNumberToObject(o, numbers[i], value)))
            return -ENOMEM;
    }
    return mf_json_add_i64(o, "n", mf_sql_i64(q, column + 2)) &&
                   mf_json_add_i64(o, "tries", mf_sql_i64(q, column + 3)) &&
                   cJSON_AddStringToObject(o, "unstable", mf_sql_text(q, column + 4))
               ? 0
               : -ENOMEM;
}

cJSON *mf_samples_json(const void *blob, size_t len)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; list && i + 4 <= len; i += 4) {
        const uint8_t *p = (const uint8_t *)blob + i;
        uint32_t bits = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        float value;
        memcpy(&value, &bits, sizeof(value));
        /* 7 digits are the precision of float32, so that 411.2 is not printed as 411.20001220703125 */
        char text[32];
        (void)snprintf(text, sizeof(text), "%.7g", (double)value);
        cJSON_AddItemToArray(list, isfinite(value) ? cJSON_CreateRaw(text) : cJSON_CreateNull());
    }
    return list;
}

int mf_rows_json(struct mf_sql *q, const char *types, cJSON *object, const char *name)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);
    int r = list ? 0 : -ENOMEM;
    while (r >= 0 && (r = mf_sql_next(q)) > 0) {
        cJSON *item = mf_row_json(q, types);
        if (!item)
            return -ENOMEM;
        cJSON_AddItemToArray(list, item);
    }
    return r;
}
