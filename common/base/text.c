#include "common/base/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

int mf_parse_i64(const char *text, int64_t min, int64_t max, int64_t *ret)
{
    /* Check the first digit here, because strtoll accepts a plus sign and leading spaces. */
    const char *digits = text && *text == '-' ? text + 1 : text;
    if (!digits || !is_digit(*digits))
        return -EINVAL;
    for (const char *p = digits; *p; p++) {
        if (!is_digit(*p))
            return -EINVAL;
    }

    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno == ERANGE || value < min || value > max)
        return -ERANGE;
    *ret = value;
    return 0;
}

static const char *skip_digits(const char *p)
{
    while (is_digit(*p))
        p++;
    return p;
}

/* True for a plain decimal number. strtod would also accept spaces, a plus sign, hexadecimal, "inf" and
 * "nan". */
static bool is_decimal(const char *p)
{
    if (*p == '-')
        p++;
    const char *whole = p;
    p = skip_digits(p);
    bool any = p > whole;
    if (*p == '.') {
        const char *fraction = ++p;
        p = skip_digits(p);
        any = any || p > fraction;
    }
    if (!any)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '-' || *p == '+')
            p++;
        const char *exponent = p;
        p = skip_digits(p);
        if (p == exponent)
            return false;
    }
    return *p == '\0';
}

int mf_parse_percent(const char *text, double *ret, bool *ret_sign)
{
    char number[32] = "";
    size_t len = strlen(text);
    *ret_sign = len > 0 && text[len - 1] == '%';
    if (mf_copy(number, sizeof(number), text) == 0 && *ret_sign)
        number[len - 1] = '\0';
    return mf_parse_double(number, ret);
}

int mf_parse_double(const char *text, double *ret)
{
    if (!text || !is_decimal(text))
        return -EINVAL;
    double value = strtod(text, NULL);
    if (!isfinite(value))
        return -ERANGE;
    *ret = value;
    return 0;
}

int mf_parse_bool(const char *text, bool *ret)
{
    static const char *const yes[] = {"1", "true", "True", "yes", "on"};
    static const char *const no[] = {"0", "false", "False", "no", "off"};
    for (size_t i = 0; text && i < MF_ARRAY_LEN(yes); i++) {
        bool is_yes = strcmp(text, yes[i]) == 0;
        if (is_yes || strcmp(text, no[i]) == 0) {
            *ret = is_yes;
            return 0;
        }
    }
    return -EINVAL;
}

int mf_copy(char *dst, size_t cap, const char *src)
{
    size_t len = strnlen(src, cap);
    if (len == cap) {
        if (cap > 0)
            dst[0] = '\0';
        return -ENAMETOOLONG;
    }
    memcpy(dst, src, len + 1);
    return 0;
}

void mf_format(char *dst, size_t cap, const char *format, ...)
{
    if (cap == 0)
        return;
    va_list args;
    va_start(args, format);
    if (vsnprintf(dst, cap, format, args) < 0)
        dst[0] = '\0';
    va_end(args);
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '.' ||
           c == '-';
}

char *mf_append(char *at, const char *end, const char *text)
{
    size_t n = strlen(text), room = (size_t)(end - at) - 1;
    n = MF_MIN(n, room);
    memcpy(at, text, n);
    at[n] = '\0';
    return at + n;
}

char *mf_append_i64(char *at, const char *end, int64_t value)
{
    char digits[21];
    size_t i = sizeof(digits) - 1;
    uint64_t left = value < 0 ? -(uint64_t)value : (uint64_t)value;
    digits[i] = '\0';
    do {
        digits[--i] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (value < 0)
        digits[--i] = '-';
    return mf_append(at, end, digits + i);
}

bool mf_is_name(const char *text, size_t max)
{
    size_t n = 0;
    if (!text)
        return false;
    while (text[n]) {
        if (n == max || !is_name_char(text[n]))
            return false;
        n++;
    }
    return n > 0;
}

bool mf_glob(const char *pattern, const char *text)
{
    /* Backtracking to the last star is sufficient, so the time is at most |pattern| * |text|. */
    const char *star = NULL, *star_text = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = pattern++;
            star_text = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++star_text;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

static char to_lower(char c)
{
    return (char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
}

size_t mf_edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t row[MF_EDIT_MAX + 1];
    a_len = MF_MIN(a_len, (size_t)MF_EDIT_MAX);
    b_len = MF_MIN(b_len, (size_t)MF_EDIT_MAX);
    for (size_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t replaced = diagonal + (to_lower(a[i - 1]) != to_lower(b[j - 1])),
                   dropped = MF_MIN(row[j], row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = MF_MIN(replaced, dropped);
        }
    }
    return row[b_len];
}

uint64_t mf_hash64(const void *data, size_t len, uint64_t seed)
{
    const unsigned char *bytes = data;
    uint64_t hash = seed;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

size_t mf_utf8_length(const void *text, size_t left)
{
    const unsigned char *p = text;
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
