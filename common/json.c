#include "common/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/text.h"

#define EXACT_MAX (INT64_C(1) << 53) /* beyond it not every integer is a double */

/* Bytes of the UTF-8 character at p, which has left bytes to the end; 0 when it is none. Refuses overlong
 * forms, surrogates and what lies beyond U+10FFFF. */
static size_t utf8_length(const unsigned char *p, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80             ? 1
               : (p[0] & 0xe0) == 0xc0 ? 2
               : (p[0] & 0xf0) == 0xe0 ? 3
               : (p[0] & 0xf8) == 0xf0 ? 4
                                       : 0;
    if (n <= 1 || n > left)
        return n > left ? 0 : n;
    uint32_t point = p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (p[i] & 0x3fu);
    }
    if (point < least[n] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff))
        return 0;
    return n;
}

static bool is_hex(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* "\uXXXX" of something else than U+0000: cJSON turns that, and digits that are none, into the end of the
 * text. */
static bool is_unicode_escape(const unsigned char *p, size_t left)
{
    if (left < 6)
        return false;
    for (int i = 2; i < 6; i++) {
        if (!is_hex(p[i]))
            return false;
    }
    return memcmp(p + 2, "0000", 4) != 0;
}

/* What cJSON lets through: control characters, text that is no UTF-8, escaped terminators. */
static bool is_clean(const unsigned char *p, size_t len)
{
    for (size_t i = 0; i < len;) {
        if (p[i] < 0x20 && p[i] != '\n' && p[i] != '\r' && p[i] != '\t')
            return false;
        if (p[i] == '\\') {
            if (i + 1 < len && p[i + 1] == 'u' && !is_unicode_escape(p + i, len - i))
                return false;
            i++;
            if (i == len)
                break;
        }
        size_t n = utf8_length(p + i, len - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

cJSON *mf_json_parse(const char *text, size_t len, size_t max)
{
    if (len == 0 || len > max || !is_clean((const unsigned char *)text, len))
        return NULL;
    const char *end = NULL;
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    if (!json)
        return NULL;
    for (const char *p = end; p < text + len; p++) {
        if (!strchr(" \t\r\n", *p))
            return NULL;
    }
    return MF_TAKE(json);
}

/* The member, or NULL when it is absent or null. */
static const cJSON *member(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

int mf_json_i64(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *ret)
{
    const cJSON *item = member(object, key);
    if (!item)
        return -ENOENT;
    int64_t value;
    if (cJSON_IsRaw(item)) {
        /* what mf_json_add_i64 makes of a large number */
        if (mf_parse_i64(item->valuestring, -EXACT_MAX, EXACT_MAX, &value) < 0)
            return -EINVAL;
    } else {
        double number = item->valuedouble;
        if (!cJSON_IsNumber(item) || !(fabs(number) <= (double)EXACT_MAX) || fabs(number - trunc(number)) > 0)
            return -EINVAL;
        value = (int64_t)number;
    }
    if (value < min || value > max)
        return -EINVAL;
    *ret = value;
    return 0;
}

int mf_json_double(const cJSON *object, const char *key, double *ret)
{
    const cJSON *item = member(object, key);
    if (!item)
        return -ENOENT;
    if (cJSON_IsRaw(item))
        return mf_parse_double(item->valuestring, ret) < 0 ? -EINVAL : 0;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return -EINVAL;
    *ret = item->valuedouble;
    return 0;
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
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsObject(item) ? item : NULL;
}

cJSON *mf_json_array(const cJSON *object, const char *key)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsArray(item) ? item : NULL;
}

char *mf_json_print(const cJSON *json)
{
    char *text = cJSON_PrintUnformatted(json);
    if (!text)
        return NULL;
    unsigned char *p = (unsigned char *)text;
    for (size_t left = strlen(text), n; left > 0; p += n, left -= n) {
        n = utf8_length(p, left);
        if (n > 0)
            continue;
        *p = '?';
        n = 1;
    }
    return text;
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
