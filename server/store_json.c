#include "server/store_json.h"

#include "common/json.h"
#include "common/shape.h"

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
        return cJSON_CreateNumber((double)mf_sql_i64(q, column));
    }
}

cJSON *mf_row_json(const struct mf_sql *q, const char *types)
{
    _cleanup_(cJSON_Deletep) cJSON *o = cJSON_CreateObject();
    for (int i = 0; o && types[i]; i++) {
        if (types[i] == '.')
            continue;
        cJSON *item = column_json(q, i, types[i]);
        if (!item || !cJSON_AddItemToObject(o, sqlite3_column_name(q->stmt, i), item)) {
            cJSON_Delete(item);
            return NULL;
        }
    }
    return MF_TAKE(o);
}

int mf_list_take(struct mf_sql *q, const struct mf_page *page, const struct mf_list_keys *keys,
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
    return mf_list_take(q, page, &(struct mf_list_keys){-1, -1, 0}, make_plain, &(struct plain){types}, ret);
}

cJSON *mf_samples_json(const void *blob, size_t len)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; list && i + 4 <= len; i += 4) {
        const uint8_t *p = (const uint8_t *)blob + i;
        uint32_t bits = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        float value;
        memcpy(&value, &bits, sizeof(value));
        /* As many digits as a float32 has: 411.2, not 411.20001220703125. */
        char text[32];
        (void)snprintf(text, sizeof(text), "%.7g", (double)value);
        cJSON_AddItemToArray(list, isfinite(value) ? cJSON_CreateRaw(text) : cJSON_CreateNull());
    }
    return list;
}

static cJSON *shape_json(const char *row)
{
    struct mf_shape shape;
    cJSON *o = cJSON_CreateObject();
    if (!o || mf_shape_parse(row, &shape) < 0)
        return o;
    for (int i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        char text[64];
        if (mf_shape_get(&shape, mf_shape_columns[i], text, sizeof(text)) < 0)
            continue;
        bool number = strspn(text, "0123456789") == strlen(text);
        cJSON_AddItemToObject(o, mf_shape_columns[i],
                              number ? cJSON_CreateRaw(text) : cJSON_CreateString(text));
    }
    char form[MF_SHAPE_FORM_MAX];
    if (mf_shape_get(&shape, MF_SHAPE_FORM, form, sizeof(form)) == 0 && *form)
        cJSON_AddStringToObject(o, MF_SHAPE_FORM, form);
    return o;
}

int mf_shape_add(cJSON *object, const char *row)
{
    cJSON *shape = shape_json(row);
    if (shape && cJSON_AddItemToObject(object, "shape", shape))
        return 0;
    cJSON_Delete(shape);
    return -ENOMEM;
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
