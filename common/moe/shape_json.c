#include "common/moe/shape_json.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/table_reader.h"

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
        mf_format(buf, cap, "%.0f", value->valuedouble);
    else
        mf_format(buf, cap, "%.17g", value->valuedouble);
    return 0;
}

/* Objects with more members are refused as a whole; up to here, each unknown member is named. */
#define MEMBERS_MAX 64

struct reading {
    mf_shape_problem report;
    void *context;
    int n_problems;
    unsigned seen; /* bit mask of column indices */
};

static int report_problem(struct reading *r, const char *member, const char *code, const char *why)
{
    r->n_problems++;
    return r->report(r->context, member, code, why);
}

static int report_value(struct reading *r, const char *column, const char *code, const char *text,
                        const char *expected)
{
    char why[MF_EXPECTED_MAX];
    return report_problem(r, column, code, mf_table_expected(column, text, expected, why));
}

static int report_unknown(struct reading *r, const char *member)
{
    char why[MF_EXPECTED_MAX] = "unknown column; a shape has ";
    for (size_t i = 0; i < MF_SHAPE_N_COLUMNS; i++)
        mf_format(why + strlen(why), sizeof(why) - strlen(why), "%s, ", mf_shape_columns[i]);
    mf_format(why + strlen(why), sizeof(why) - strlen(why), "and optionally %s", MF_SHAPE_FORM);
    return report_problem(r, member, "unknown", why);
}

static int read_member(struct reading *r, const cJSON *member, struct mf_shape *shape)
{
    char number[64], why[MF_EXPECTED_MAX];
    const char *expected = "", *text = cJSON_IsString(member) ? member->valuestring : number;
    bool is_value = cJSON_IsString(member) || mf_json_value_text(member, number, sizeof(number)) == 0;
    int e = mf_shape_set(shape, member->string, is_value ? text : "", &expected);
    for (unsigned i = 0; i < MF_SHAPE_N_COLUMNS; i++)
        if (strcmp(mf_shape_columns[i], member->string) == 0)
            r->seen |= 1u << i;
    if (e == -ENOENT)
        return report_unknown(r, member->string);
    if (!is_value) {
        mf_format(why, sizeof(why), "%s: expected a number, a string or a boolean", member->string);
        return report_problem(r, member->string, "type", why);
    }
    return e < 0 ? report_value(r, member->string, "value", text, expected) : 0;
}

static int check_missing(struct reading *r)
{
    for (unsigned i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        const char *column = mf_shape_columns[i], *expected = "";
        char why[MF_EXPECTED_MAX];
        struct mf_shape none;
        if (r->seen & 1u << i)
            continue;
        (void)mf_shape_set(&none, column, "",
                           &expected); /* every column rejects "" and then sets `expected` */
        mf_format(why, sizeof(why), "%s is missing; write %s", column, expected);
        int e = report_problem(r, column, "missing", why);
        if (e < 0)
            return e;
    }
    return 0;
}

/* Reports a shape that is invalid although each of its values is valid on its own. */
static int report_range(struct reading *r, const struct mf_shape *shape, const char *column,
                        const char *expected)
{
    char text[MF_SHAPE_FORM_MAX];
    (void)mf_shape_get(shape, column, text, sizeof(text));
    return report_value(r, column, "range", text, expected);
}

int mf_shape_from_json(const cJSON *item, struct mf_shape *ret, mf_shape_problem report, void *context)
{
    struct reading reading = {.report = report, .context = context};
    const char *why = "", *column;
    const cJSON *member;
    int e = 0;
    *ret = (struct mf_shape){0};
    if (!cJSON_IsObject(item))
        return report(context, "", "type", "expected an object with the twelve columns");
    int n = cJSON_GetArraySize(item);
    if (n > MEMBERS_MAX) {
        char why_many[96];
        mf_format(why_many, sizeof(why_many), "%d members; a shape has at most %d", n,
                  MF_SHAPE_N_COLUMNS + 1);
        return report(context, "", "too_many", why_many);
    }
    cJSON_ArrayForEach (member, item)
        if ((e = read_member(&reading, member, ret)) < 0)
            return e;
    if ((e = check_missing(&reading)) < 0)
        return e;
    if (reading.n_problems > 0)
        return 0;
    if (mf_shape_check(ret, &column, &why) < 0)
        return report_range(&reading, ret, column, why);
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

int mf_shape_add_to_json(cJSON *object, const char *row)
{
    struct mf_shape shape;
    cJSON *json = mf_shape_parse(row, &shape) < 0 ? cJSON_CreateObject() : mf_shape_to_json(&shape);
    if (json && cJSON_AddItemToObject(object, "shape", json))
        return 0;
    cJSON_Delete(json);
    return -ENOMEM;
}
