#include "common/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/text.h"

#define EXACT_MAX (INT64_C(1) << 53) /* beyond it not every integer is a double */

/* As cJSON finds it. Most names differ in their first letter, which costs no call. */
static cJSON *find(const cJSON *object, const char *key)
{
    cJSON *item = object ? object->child : NULL;
    while (item && item->string && (*item->string != *key || strcmp(item->string, key) != 0))
        item = item->next;
    return item && item->string ? item : NULL;
}

/* The member, or NULL when it is absent or null. */
static const cJSON *member(const cJSON *object, const char *key)
{
    const cJSON *item = find(object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

int mf_json_value_i64(const cJSON *value, int64_t min, int64_t max, int64_t *ret)
{
    if (!value || cJSON_IsNull(value))
        return -ENOENT;
    int64_t whole;
    if (cJSON_IsRaw(value)) {
        /* what mf_json_add_i64 makes of a large number */
        if (mf_parse_i64(value->valuestring, -EXACT_MAX, EXACT_MAX, &whole) < 0)
            return -EINVAL;
    } else {
        double number = value->valuedouble;
        if (!cJSON_IsNumber(value) || !(fabs(number) <= (double)EXACT_MAX) ||
            fabs(number - trunc(number)) > 0)
            return -EINVAL;
        whole = (int64_t)number;
    }
    if (whole < min || whole > max)
        return -EINVAL;
    *ret = whole;
    return 0;
}

int mf_json_value_double(const cJSON *value, double *ret)
{
    if (!value || cJSON_IsNull(value))
        return -ENOENT;
    if (cJSON_IsRaw(value))
        return mf_parse_double(value->valuestring, ret) < 0 ? -EINVAL : 0;
    if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble))
        return -EINVAL;
    *ret = value->valuedouble;
    return 0;
}

int mf_json_i64(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *ret)
{
    return mf_json_value_i64(find(object, key), min, max, ret);
}

int mf_json_double(const cJSON *object, const char *key, double *ret)
{
    return mf_json_value_double(find(object, key), ret);
}

int mf_json_bool(const cJSON *object, const char *key, bool *ret)
{
    const cJSON *item = member(object, key);
    if (!item)
        return -ENOENT;
    if (!cJSON_IsBool(item))
        return -EINVAL;
    *ret = cJSON_IsTrue(item);
    return 0;
}

int mf_json_text(const cJSON *object, const char *key, const char **ret)
{
    const cJSON *item = member(object, key);
    if (!item)
        return -ENOENT;
    if (!cJSON_IsString(item))
        return -EINVAL;
    *ret = item->valuestring;
    return 0;
}

cJSON *mf_json_object(const cJSON *object, const char *key)
{
    cJSON *item = find(object, key);
    return cJSON_IsObject(item) ? item : NULL;
}

cJSON *mf_json_array(const cJSON *object, const char *key)
{
    cJSON *item = find(object, key);
    return cJSON_IsArray(item) ? item : NULL;
}

cJSON *mf_json_add_i64(cJSON *object, const char *key, int64_t value)
{
    /* cJSON prints 15 digits and takes them for exact when they differ by an ulp. */
    if (value > -INT64_C(1000000000000000) && value < INT64_C(1000000000000000))
        return cJSON_AddNumberToObject(object, key, (double)value);
    char text[24];
    mf_say(text, sizeof(text), "%" PRId64, value);
    return cJSON_AddRawToObject(object, key, text);
}
