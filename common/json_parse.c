/* Text to cJSON's tree, in one pass. cJSON reads a number by strtod and each text twice, behind a pass of ours for what it lets
 * through: a result of twenty samples took three times as long. Only what is rare is left to it: texts with escapes or beyond
 * ASCII, numbers with exponents or of more than 15 digits. */
#include "common/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"

#define EXACT_DIGITS \
    15 /* of which every number is a double, and a quotient by a power of ten is rounded once */
#define BYTE_ORDER_MARK "\xef\xbb\xbf"

struct reader {
    const char *at, *end;
};

/* ---- what is left to cJSON ---- */

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

/* The length of one character or escape; 0: cJSON would let it through and should not, as control characters, what is no
 * UTF-8, and escaped terminators. */
static size_t clean_length(const unsigned char *p, size_t left)
{
    if (*p < 0x20 && *p != '\n' && *p != '\r' && *p != '\t')
        return 0;
    if (*p != '\\')
        return mf_utf8_length(p, left);
    if (left < 2 || (p[1] == 'u' && !is_unicode_escape(p, left)))
        return 0;
    size_t n = mf_utf8_length(p + 1, left - 1);
    return n > 0 ? 1 + n : 0;
}

/* Of a text with its quotes; 0: it does not end, or holds what is refused. */
static size_t text_length(const struct reader *r)
{
    const char *p = r->at + 1;
    while (p < r->end && *p != '"') {
        size_t n = clean_length((const unsigned char *)p, (size_t)(r->end - p));
        if (n == 0)
            return 0;
        p += n;
    }
    return p < r->end ? (size_t)(p + 1 - r->at) : 0;
}

static cJSON *read_by_cjson(struct reader *r, size_t len)
{
    const char *end = NULL;
    cJSON *item = cJSON_ParseWithLengthOpts(r->at, len, &end, 0);
    if (item)
        r->at = end;
    return item;
}

/* ---- the rest ---- */

static void skip_space(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

static bool take_word(struct reader *r, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(r->end - r->at) < len || memcmp(r->at, word, len) != 0)
        return false;
    r->at += len;
    return true;
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* On the heap; NULL: there is none. */
static char *read_text(struct reader *r)
{
    if (r->at == r->end || *r->at != '"')
        return NULL;
    const char *from = r->at + 1, *to = from;
    while (to < r->end && is_plain((unsigned char)*to))
        to++;
    if (to == r->end || *to != '"') {
        size_t len = text_length(r);
        _cleanup_(cJSON_Deletep) cJSON *item = len > 0 ? read_by_cjson(r, len) : NULL;
        return item ? MF_TAKE(item->valuestring) : NULL;
    }
    size_t len = (size_t)(to - from);
    char *text = malloc(len + 1);
    if (!text)
        return NULL;
    memcpy(text, from, len);
    text[len] = '\0';
    r->at = to + 1;
    return text;
}

static cJSON *read_string(struct reader *r)
{
    _cleanup_(mf_freep) char *text = read_text(r);
    cJSON *item = text ? cJSON_CreateNull() : NULL;
    if (!item)
        return NULL;
    item->type = cJSON_String;
    item->valuestring = MF_TAKE(text);
    return item;
}

static cJSON *read_number(struct reader *r)
{
    static const double ten_to[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    bool minus = *r->at == '-', point = false;
    const char *p = r->at + minus;
    uint64_t value = 0;
    int n = 0, n_behind = 0;
    for (; p < r->end && n <= EXACT_DIGITS; p++) {
        if (*p >= '0' && *p <= '9') {
            value = value * 10 + (uint64_t)(*p - '0');
            n++;
            n_behind += point;
        } else if (*p == '.' && !point) {
            point = true;
        } else {
            break;
        }
    }
    if (n == 0 || n > EXACT_DIGITS || (p < r->end && strchr("+-.eE", *p)))
        return read_by_cjson(r, (size_t)(r->end - r->at));
    r->at = p;
    double size = (double)value / ten_to[n_behind];
    return cJSON_CreateNumber(minus ? -size : size);
}

static cJSON *read_value(struct reader *r, int depth);

static bool read_member(struct reader *r, cJSON *to, int depth)
{
    _cleanup_(mf_freep) char *key = NULL;
    skip_space(r);
    if (cJSON_IsObject(to)) {
        key = read_text(r);
        if (!key || !take(r, ':'))
            return false;
    }
    cJSON *item = read_value(r, depth);
    if (!cJSON_AddItemToArray(to, item)) /* an object's list of members is an array's */
        return false;
    item->string = MF_TAKE(key);
    return true;
}

static cJSON *read_members(struct reader *r, cJSON *empty, char close, int depth)
{
    _cleanup_(cJSON_Deletep) cJSON *list = empty;
    r->at++;
    if (!list || depth > CJSON_NESTING_LIMIT)
        return NULL;
    if (take(r, close))
        return MF_TAKE(list);
    do {
        if (!read_member(r, list, depth))
            return NULL;
    } while (take(r, ','));
    return take(r, close) ? MF_TAKE(list) : NULL;
}

/* depth: of the lists that it lies in. */
static cJSON *read_value(struct reader *r, int depth)
{
    skip_space(r);
    if (r->at == r->end)
        return NULL;
    char c = *r->at;
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(r);
    if (c == '"')
        return read_string(r);
    if (c == '{')
        return read_members(r, cJSON_CreateObject(), '}', depth + 1);
    if (c == '[')
        return read_members(r, cJSON_CreateArray(), ']', depth + 1);
    if (take_word(r, "true"))
        return cJSON_CreateTrue();
    if (take_word(r, "false"))
        return cJSON_CreateFalse();
    return take_word(r, "null") ? cJSON_CreateNull() : NULL;
}

cJSON *mf_json_parse(const char *text, size_t len, size_t max)
{
    if (len == 0 || len > max)
        return NULL;
    struct reader r = {text, text + len};
    (void)take_word(&r, BYTE_ORDER_MARK);
    _cleanup_(cJSON_Deletep) cJSON *json = read_value(&r, 0);
    skip_space(&r);
    return r.at == r.end ? MF_TAKE(json) : NULL;
}
