#include "common/shape_json.h"

#include "common/cleanup.h"
#include "common/text.h"

#include <errno.h>
#include <math.h>
#include <string.h>

int mf_json_value_text(const cJSON *value, char *buf, size_t cap)
{
    if (cJSON_IsString(value))
        return mf_copy(buf, cap, value->valuestring) < 0 ? -EINVAL : 0;
    if (cJSON_IsBool(value))
        return mf_copy(buf, cap, cJSON_IsTrue(value) ? "1" : "0");
    if (!cJSON_IsNumber(value))
        return -EINVAL;
    if (value->valuedouble == floor(value->valuedouble) && fabs(value->valuedouble) < 9007199254740992.0)
        mf_say(buf, cap, "%.0f", value->valuedouble);
    else
        mf_say(buf, cap, "%.17g", value->valuedouble);
    return 0;
}

/* What a reading has come to. */
struct reading {
    mf_shape_problem tell;
    void *context;
    int n_problems;
    unsigned seen; /* columns, by their number */
};

static int problem(struct reading *r, const char *member, const char *code, const char *why)
{
    r->n_problems++;
    return r->tell(r->context, member, code, why);
}

static int read_member(struct reading *r, const cJSON *member, struct mf_shape *shape)
{
    char text[128];
    const char *why = "a number, a text or a boolean is expected";
    int e = mf_json_value_text(member, text, sizeof(text));
    if (e == 0)
        e = mf_shape_set(shape, member->string, text, &why);
    for (unsigned i = 0; i < MF_SHAPE_N_COLUMNS; i++)
        if (strcmp(mf_shape_columns[i], member->string) == 0)
            r->seen |= 1u << i;
    if (e == -ENOENT)
        return problem(r, member->string, "unknown", "there is no such column in a shape");
    return e < 0 ? problem(r, member->string, "value", why) : 0;
}

static int check_missing(struct reading *r)
{
    for (unsigned i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        int e = r->seen & 1u << i ? 0 : problem(r, mf_shape_columns[i], "missing", "a value is expected");
        if (e < 0)
            return e;
    }
    return 0;
}

int mf_shape_from_json(const cJSON *item, struct mf_shape *ret, mf_shape_problem tell, void *context)
{
    struct reading reading = {.tell = tell, .context = context};
    const char *why = "", *column;
    const cJSON *member;
    int e = 0;
    *ret = (struct mf_shape){0};
    if (!cJSON_IsObject(item))
        return tell(context, "", "type", "an object with the twelve columns is expected");
    cJSON_ArrayForEach (member, item)
        if ((e = read_member(&reading, member, ret)) < 0)
            return e;
    if ((e = check_missing(&reading)) < 0)
        return e;
    if (reading.n_problems > 0)
        return 0;
    if (mf_shape_check(ret, &column, &why) < 0)
        return problem(&reading, column, "range", why);
    return 1;
}

cJSON *mf_shape_to_json(const struct mf_shape *shape)
{
    char text[MF_SHAPE_TEXT_MAX];
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; o && i < MF_SHAPE_N_COLUMNS; i++) {
        const char *column = mf_shape_columns[i];
        if (mf_shape_get(shape, column, text, sizeof(text)) < 0)
            continue;
        bool number = strspn(text, "0123456789") == strlen(text);
        cJSON_AddItemToObject(o, column, number ? cJSON_CreateRaw(text) : cJSON_CreateString(text));
    }
    if (o && mf_shape_get(shape, MF_SHAPE_FORM, text, sizeof(text)) == 0 && *text)
        cJSON_AddStringToObject(o, MF_SHAPE_FORM, text);
    return o;
}

int mf_shape_add(cJSON *object, const char *row)
{
    struct mf_shape shape;
    cJSON *json = mf_shape_parse(row, &shape) < 0 ? cJSON_CreateObject() : mf_shape_to_json(&shape);
    if (json && cJSON_AddItemToObject(object, "shape", json))
        return 0;
    cJSON_Delete(json);
    return -ENOMEM;
}
