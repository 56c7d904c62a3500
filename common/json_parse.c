#include "common/json.h"

#include <string.h>

#include "common/text.h"

#define NESTING_MAX 1000 /* cJSON's own */
#define DIGITS_MAX  15   /* that a double holds exactly, as it holds ten to that power */

/* Reads what messages are full of by itself: objects, arrays, texts without escapes, numbers of few digits. Any other value is
 * cJSON's, which also makes every node and frees it. */
struct reader {
    const char *at, *end;
    int depth;
};

/* ---- is it text at all ---- */

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
        if (p[i] >= 0x20 && p[i] < 0x80 && p[i] != '\\') {
            i++;
            continue;
        }
        if (p[i] < 0x20 && p[i] != '\n' && p[i] != '\r' && p[i] != '\t')
            return false;
        if (p[i] == '\\') {
            if (i + 1 < len && p[i + 1] == 'u' && !is_unicode_escape(p + i, len - i))
                return false;
            i++;
            if (i == len)
                break;
        }
        size_t n = mf_utf8_length(p + i, len - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

/* ---- one value ---- */

static void skip_space(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
        r->at++;
}

/* Takes the character, where it is the next one. */
static bool take(struct reader *r, char c)
{
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

static cJSON *read_by_cjson(struct reader *r)
{
    const char *end = r->at;
    cJSON *item = cJSON_ParseWithLengthOpts(r->at, (size_t)(r->end - r->at), &end, 0);
    r->at = end;
    return item;
}

/* The text up to the next quote, which is taken as well, on cJSON's heap; NULL: it has escapes, no end, or no memory. */
static char *plain_text(struct reader *r)
{
    const char *from = r->at + 1, *p = from;
    while (p < r->end && *p != '"' && *p != '\\')
        p++;
    if (p == r->end || *p == '\\')
        return NULL;
    size_t len = (size_t)(p - from);
    char *text = cJSON_malloc(len + 1);
    if (!text)
        return NULL;
    memcpy(text, from, len);
    text[len] = '\0';
    r->at = p + 1;
    return text;
}

static cJSON *read_text(struct reader *r)
{
    char *text = plain_text(r);
    if (!text)
        return read_by_cjson(r);
    cJSON *item = cJSON_CreateNull();
    if (!item) {
        cJSON_free(text);
        return NULL;
    }
    item->type = cJSON_String;
    item->valuestring = text;
    return item;
}

/* -12.345: an integer over a power of ten, both exact, so that their quotient is the nearest double, as strtod finds it. */
static cJSON *read_number(struct reader *r)
{
    static const double tens[DIGITS_MAX + 1] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    const char *p = r->at + (*r->at == '-'), *first = p, *point = NULL;
    int64_t digits = 0;
    for (; p < r->end && p - first <= DIGITS_MAX; p++) {
        if (*p >= '0' && *p <= '9')
            digits = digits * 10 + (*p - '0');
        else if (*p == '.' && !point && p > first)
            point = p;
        else
            break;
    }
    bool ended = p == r->end || *p == ',' || *p == ']' || *p == '}' || *p == ' ' || *p == '\n';
    if (!ended || p == first || p - first - (point != NULL) > DIGITS_MAX)
        return read_by_cjson(r);
    double value = (double)digits / tens[point ? p - point - 1 : 0];
    if (*r->at == '-')
        value = -value;
    r->at = p;
    return cJSON_CreateNumber(value);
}

static cJSON *read_value(struct reader *r);

/* A member's name and its colon; the name is cJSON's to free. */
static char *read_name(struct reader *r)
{
    if (r->at == r->end || *r->at != '"')
        return NULL;
    char *name = plain_text(r);
    if (!name) {
        _cleanup_(cJSON_Deletep) cJSON *text = read_by_cjson(r);
        if (!text)
            return NULL;
        name = text->valuestring;
        text->valuestring = NULL;
    }
    skip_space(r);
    if (take(r, ':'))
        return name;
    cJSON_free(name);
    return NULL;
}

static bool read_member(struct reader *r, cJSON *list)
{
    char *name = NULL;
    if (cJSON_IsObject(list)) {
        skip_space(r);
        name = read_name(r);
        if (!name)
            return false;
    }
    cJSON *value = read_value(r);
    if (!value) {
        cJSON_free(name);
        return false;
    }
    value->string = name;
    (void)cJSON_AddItemToArray(list, value);
    return true;
}

/* The members of a new list, whose first bracket is taken. */
static cJSON *read_members(struct reader *r, cJSON *new, char bracket)
{
    _cleanup_(cJSON_Deletep) cJSON *list = new;
    if (!list || r->depth == NESTING_MAX)
        return NULL;
    r->depth++;
    skip_space(r);
    while (!take(r, bracket)) {
        if (list->child && !take(r, ','))
            return NULL;
        if (!read_member(r, list))
            return NULL;
        skip_space(r);
    }
    r->depth--;
    return MF_TAKE(list);
}

static cJSON *read_value(struct reader *r)
{
    skip_space(r);
    if (take(r, '{'))
        return read_members(r, cJSON_CreateObject(), '}');
    if (take(r, '['))
        return read_members(r, cJSON_CreateArray(), ']');
    if (r->at == r->end)
        return NULL;
    if (*r->at == '"')
        return read_text(r);
    if (*r->at == '-' || (*r->at >= '0' && *r->at <= '9'))
        return read_number(r);
    /* cJSON would pass over a mark of byte order here, and read lists behind it past this reader's nesting */
    return *r->at == 't' || *r->at == 'f' || *r->at == 'n' ? read_by_cjson(r) : NULL;
}

cJSON *mf_json_parse(const char *text, size_t len, size_t max)
{
    if (len == 0 || len > max || !is_clean((const unsigned char *)text, len))
        return NULL;
    struct reader r = {.at = text, .end = text + len};
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) /* what some editors put first */
        r.at += 3;
    _cleanup_(cJSON_Deletep) cJSON *json = read_value(&r);
    if (json)
        skip_space(&r);
    return json && r.at == r.end ? MF_TAKE(json) : NULL;
}
