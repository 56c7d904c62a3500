#include "common/base/json.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/text.h"

#define PRINT_MAX      INT32_MAX /* cJSON's maximum length of a text */
#define SHORT_TEXT     64
#define EXACT_DIGITS   1e15 /* below this value, 15 digits represent every integer */
#define FRACTION       1000000
#define FRACTION_LEAST 1e-4 /* below this value, cJSON prints an exponent */
#define FRACTION_MOST  1e9  /* below this value, 15 digits leave six decimals */

/* Writes the value in decimal with at least n digits; the last digit goes to text[at - 1]. Returns the index
 * of the first digit. */
static size_t put_digits(char *text, size_t at, uint64_t value, size_t n)
{
    for (size_t end = at; value > 0 || end - at < n; value /= 10)
        text[--at] = (char)('0' + value % 10);
    return at;
}

void mf_json_put_u64(struct mf_buf *b, uint64_t value)
{
    char text[20];
    size_t at = put_digits(text, sizeof(text), value, 1);
    (void)mf_buf_add(b, text + at, sizeof(text) - at);
}

/* Writes a decimal point and the millionths without trailing zeros; the last digit goes to text[at - 1].
 * Returns the index of the point. */
static size_t put_fraction(char *text, size_t at, uint64_t millionths)
{
    size_t n = 6;
    for (; millionths % 10 == 0; millionths /= 10)
        n--;
    at = put_digits(text, at, millionths, n);
    text[--at] = '.';
    return at;
}

/* Prints an integer, or a number with at most six decimals, such as a time or a ratio. With up to 15 digits,
 * the text is the shortest that parses to the same double. Returns false for all other numbers. */
static bool add_short_number(struct mf_buf *b, double d)
{
    double size = fabs(d);
    char text[32];
    size_t at = sizeof(text);
    if (!(size < EXACT_DIGITS))
        return false;
    uint64_t whole = (uint64_t)size;
    if (size > (double)whole) {
        if (size < FRACTION_LEAST || size >= FRACTION_MOST)
            return false;
        uint64_t millionths = (uint64_t)(size * FRACTION + 0.5);
        double read = (double)millionths / FRACTION;
        if (read < size || read > size)
            return false;
        whole = millionths / FRACTION;
        if (millionths % FRACTION > 0)
            at = put_fraction(text, at, millionths % FRACTION);
    }
    at = put_digits(text, at, whole, 1);
    if (signbit(d))
        text[--at] = '-';
    (void)mf_buf_add(b, text + at, sizeof(text) - at);
    return true;
}

/* Calls cJSON only for numbers without a short text. cJSON needs 1 us per number, because it prints the
 * number with printf and parses the text to decide whether more digits are needed. */
void mf_json_put_number(struct mf_buf *b, double d)
{
    cJSON item = {.type = cJSON_Number, .valuedouble = d};
    if (add_short_number(b, d))
        return;
    _cleanup_(mf_freep) char *text = cJSON_PrintUnformatted(&item);
    if (text)
        (void)mf_buf_adds(b, text);
    else
        b->error = -ENOMEM;
}

static void add_escaped(struct mf_buf *b, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = c ? strchr(from, c) : NULL;
    if (at)
        (void)mf_buf_add(b, (char[]){'\\', to[at - from]}, 2);
    else
        (void)mf_buf_addf(b, "\\u%04x", c);
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

static size_t plain_prefix(const unsigned char *p, size_t left)
{
    size_t n = 0;
    while (n < left && is_plain(p[n]))
        n++;
    return n;
}

void mf_json_put_text(struct mf_buf *b, const char *text)
{
    const unsigned char *p = (const unsigned char *)(text ? text : "");
    size_t left = strlen((const char *)p);
    char quoted[SHORT_TEXT + 2];
    if (left <= SHORT_TEXT && plain_prefix(p, left) == left) { /* the common case, such as names and states */
        quoted[0] = '"';
        memcpy(quoted + 1, p, left);
        quoted[1 + left] = '"';
        (void)mf_buf_add(b, quoted, left + 2);
        return;
    }
    (void)mf_buf_add(b, "\"", 1);
    while (left > 0) {
        size_t n = plain_prefix(p, left);
        (void)mf_buf_add(b, p, n);
        p += n;
        left -= n;
        if (left == 0)
            break;
        n = mf_utf8_length(p, left);
        if (n > 1)
            (void)mf_buf_add(b, p, n);
        else if (n == 1)
            add_escaped(b, *p);
        else
            (void)mf_buf_add(b, "?", 1);
        n = n > 0 ? n : 1;
        p += n;
        left -= n;
    }
    (void)mf_buf_add(b, "\"", 1);
}

static void add_value(struct mf_buf *b, const cJSON *item);

static void add_members(struct mf_buf *b, const cJSON *item, const char brackets[2])
{
    bool named = cJSON_IsObject(item);
    (void)mf_buf_addc(b, brackets[0]);
    for (const cJSON *member = item->child; member; member = member->next) {
        if (named) {
            mf_json_put_text(b, member->string);
            (void)mf_buf_addc(b, ':');
        }
        add_value(b, member);
        if (member->next)
            (void)mf_buf_addc(b, ',');
    }
    (void)mf_buf_addc(b, brackets[1]);
}

static void add_value(struct mf_buf *b, const cJSON *item)
{
    if (cJSON_IsNumber(item))
        mf_json_put_number(b, item->valuedouble);
    else if (cJSON_IsString(item))
        mf_json_put_text(b, item->valuestring);
    else if (cJSON_IsObject(item))
        add_members(b, item, "{}");
    else if (cJSON_IsArray(item))
        add_members(b, item, "[]");
    else if (cJSON_IsBool(item))
        (void)mf_buf_adds(b, cJSON_IsTrue(item) ? "true" : "false");
    else if (cJSON_IsRaw(item) && item->valuestring)
        (void)mf_buf_adds(b, item->valuestring);
    else
        (void)mf_buf_adds(b, "null");
}

char *mf_json_print(const cJSON *json)
{
    struct mf_buf b;
    if (!json)
        return NULL;
    mf_buf_init(&b, PRINT_MAX);
    add_value(&b, json);
    char *text = mf_buf_take(&b);
    mf_buf_release(&b);
    return text;
}
