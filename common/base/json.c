#include "common/base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

#define EXACT_MAX (INT64_C(1) << 53) /* doubles represent every integer up to 2^53 */

static bool is_hex(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* True for a valid "\uXXXX" other than U+0000. Other escapes must be rejected, because cJSON ends the string
 * at U+0000 and at invalid digits. */
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

/* Returns the length of the prefix without control characters, invalid UTF-8 and \u0000. cJSON would accept
 * them, but this parser rejects them. */
static size_t valid_prefix(const unsigned char *p, size_t len)
{
    for (size_t i = 0; i < len;) {
        if (p[i] >= 0x20 && p[i] < 0x80 && p[i] != '\\') {
            i++;
            continue;
        }
        if (p[i] < 0x20 && p[i] != '\n' && p[i] != '\r' && p[i] != '\t')
            return i;
        if (p[i] == '\\') {
            if (i + 1 < len && p[i + 1] == 'u' && !is_unicode_escape(p + i, len - i))
                return i;
            i++;
            if (i == len)
                break;
        }
        size_t n = mf_utf8_length(p + i, len - i);
        if (n == 0)
            return i;
        i += n;
    }
    return len;
}

cJSON *mf_json_parse(const char *text, size_t len, size_t max)
{
    errno = EBADMSG;
    if (len == 0 || len > max || valid_prefix((const unsigned char *)text, len) < len)
        return NULL;
    const char *end = NULL;
    errno = 0; /* cJSON reports no cause of a failure, but malloc sets ENOMEM */
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    errno = errno == ENOMEM ? ENOMEM : EBADMSG;
    if (!json)
        return NULL;
    for (const char *p = end; p < text + len; p++) {
        if (!strchr(" \t\r\n", *p))
            return NULL;
    }
    return MF_TAKE(json);
}

size_t mf_json_count(const char *text, size_t len)
{
    bool in_string = false;
    size_t n = 1;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '"')
            in_string = !in_string;
        else if (in_string && c == '\\')
            i++;
        else if (!in_string && (c == ',' || c == '[' || c == '{'))
            n++;
    }
    return n;
}

/* Replaces non-finite numbers outside strings, each by a value of at most its length and spaces. */
static void replace_non_finite(char *text, size_t len)
{
    static const struct {
        const char *word, *value;
    } words[] = {{"-Infinity", "null     "}, {"Infinity", "null    "}, {"NaN", "\"\" "}};
    bool quoted = false;

    for (size_t i = 0; i < len; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        for (size_t j = 0; !quoted && i < len && j < sizeof(words) / sizeof(words[0]); j++) {
            size_t n = strlen(words[j].word);

            if (len - i < n || memcmp(text + i, words[j].word, n) != 0)
                continue;
            memcpy(text + i, words[j].value, n);
            i += n - 1;
            break;
        }
    }
}

cJSON *mf_json_parse_python(const char *text, size_t len, size_t max)
{
    errno = EBADMSG;
    if (len == 0 || len > max)
        return NULL;
    _cleanup_(mf_freep) char *copy = malloc(len + 1);
    if (!copy) {
        errno = ENOMEM;
        return NULL;
    }
    memcpy(copy, text, len);
    copy[len] = '\0';
    replace_non_finite(copy, len);
    return mf_json_parse(copy, len, max);
}

size_t mf_json_error_line(const char *text, size_t len)
{
    size_t line = 1, clean = valid_prefix((const unsigned char *)text, len);
    const char *end = text + clean;
    _cleanup_(cJSON_Deletep) cJSON *json = clean < len ? NULL : cJSON_ParseWithLengthOpts(text, len, &end, 0);

    while (json && end < text + len && strchr(" \t\r\n", *end))
        end++;
    for (const char *p = text; p < end && p < text + len; p++)
        line += *p == '\n';
    return line;
}

static const cJSON *member(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

int mf_json_value_i64(const cJSON *value, int64_t min, int64_t max, int64_t *ret)
{
    if (!value || cJSON_IsNull(value))
        return -ENOENT;
    int64_t whole;
    if (cJSON_IsRaw(value)) {
        /* mf_json_add_i64 adds large numbers as raw text */
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
    return mf_json_value_i64(cJSON_GetObjectItemCaseSensitive(object, key), min, max, ret);
}

int mf_json_double(const cJSON *object, const char *key, double *ret)
{
    return mf_json_value_double(cJSON_GetObjectItemCaseSensitive(object, key), ret);
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

cJSON *mf_json_add_i64(cJSON *object, const char *key, int64_t value)
{
    /* cJSON prints 15 digits if they parse to within one ulp of the value. Values that need more digits are
     * then not printed exactly. */
    if (value > -INT64_C(1000000000000000) && value < INT64_C(1000000000000000))
        return cJSON_AddNumberToObject(object, key, (double)value);
    char text[24];
    mf_format(text, sizeof(text), "%" PRId64, value);
    return cJSON_AddRawToObject(object, key, text);
}
