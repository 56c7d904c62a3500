#include "common/base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "support/mf_check.h"
#include "support/no_memory.h"

/* clang-format off */
static const char *const accepted[] = {
    "{}", "[]", "null", "1", "\"\"", " {\"a\": [1, 2, {\"b\": null}]} \r\n\t",
    "\"\\u00e4 \\ud83d\\ude00 \\\" \\\\ \\n\"",
    "\"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xed\x9f\xbf \xf4\x8f\xbf\xbf\"",
    "\"\\\\u0000\"",                    /* an escaped backslash followed by letters */
    "\xef\xbb\xbf[1]",                /* byte order mark */
};

static const char *const rejected[] = {
    /* a byte order mark that is not at the start of the text */
    "[\xef\xbb\xbf" "1]", "\xef\xbb\xbf\xef\xbb\xbf[1]",
    "", " ", "{", "}", "[1,]", "{\"a\"}", "{\"a\":}", "{'a':1}", "nul", "\"open", "\"\\", "\"\\u",
    "{} {}", "{}x",
    "1 2", "// text\n1",
    "\"\\u0000\"", "\"a\\u0000b\"",     /* a NUL would truncate the string without an error */
    "\"\\uZZZZ\"", "\"\\u12\"", "\"\\ud83d\"", "\"\\q\"",
    "\"a\x01\"", "\"a\x1f\"", "\x02{}", /* control characters */
    "\"\xff\"", "\"\x80\"", "\"\xc3\"", "\"\xc3(\"", "\"\xe2\x82\"",
    "\"\xc0\x80\"", "\"\xe0\x80\x80\"", "\"\xf0\x80\x80\x80\"",     /* overlong encodings */
    /* a surrogate; code points beyond Unicode */
    "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xf8\x88\x80\x80\x80\"",
};
/* clang-format on */

/* Parses a heap copy without a terminator, so that the address sanitizer detects reads past the end. */
static cJSON *parse_copy(const char *text, size_t len, size_t max)
{
    char *copy = malloc(len > 0 ? len : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, text, len);
    cJSON *json = mf_json_parse(copy, len, max);
    free(copy);
    return json;
}

MF_TEST(accepts_valid_json, .rows = MF_ARRAY_LEN(accepted))
{
    _cleanup_(cJSON_Deletep) cJSON *json = parse_copy(accepted[_i], strlen(accepted[_i]), 1000);
    ck_assert_ptr_nonnull(json);
}

MF_TEST(rejects_invalid_json, .rows = MF_ARRAY_LEN(rejected))
{
    ck_assert_ptr_null(parse_copy(rejected[_i], strlen(rejected[_i]), 1000));
}

static const struct {
    const char *text;
    size_t line;
} broken[] = {
    {"", 1},
    {"{\"a\":1,,}", 1},
    {"{\n\"a\": [1,\n2,\n,3]}", 4},
    {"{\n\"a\": 1\n\"b\": 2}", 3},
    {"{\n\n}\n\nx", 5},
    {"{\n\"a\": \"\xff\"}", 2},
    {"{\n\"a\":\n\"\\u0000\"}", 3},
    {"[1,\n2,\n3", 3},
};

MF_TEST(line_of_syntax_error, .rows = MF_ARRAY_LEN(broken))
{
    ck_assert_ptr_null(parse_copy(broken[_i].text, strlen(broken[_i].text), 1000));
    ck_assert_uint_eq(mf_json_error_line(broken[_i].text, strlen(broken[_i].text)), broken[_i].line);
}

/* Upper bounds of the number of values. */
static const struct {
    const char *text;
    size_t n;
} counted[] = {
    {"1", 1},          {"[]", 2},
    {"[1,2,3]", 4},    {"{\"a\":1,\"b\":[{}]}", 5},
    {"\"[,,{\"", 1},   {"[\"a\\\",,\",\"\\\\\",1]", 4},
    {"[\"open,,,", 2}, {"", 1},
};

MF_TEST(counts_values, .rows = MF_ARRAY_LEN(counted))
{
    ck_assert_uint_eq(mf_json_count(counted[_i].text, strlen(counted[_i].text)), counted[_i].n);
}

MF_TEST(rejects_nul_bytes)
{
    ck_assert_ptr_null(parse_copy("\"a\0b\"", 5, 1000));
    ck_assert_ptr_null(parse_copy("{}\0", 3, 1000));
}

MF_TEST(rejects_truncated_text)
{
    static const char text[] = "{\"steps\": [{\"name\": \"\\u00e4\xc3\xa4\", \"us\": 1.5}], \"last\": true}";
    for (size_t len = 0; len < strlen(text); len++)
        ck_assert_ptr_null(parse_copy(text, len, 1000));
}

/* errno distinguishes invalid JSON (EBADMSG) from an allocation failure (ENOMEM). */
MF_TEST(errno_of_parse_failures)
{
    ck_assert_ptr_null(mf_json_parse("[1,", 3, 10));
    ck_assert_int_eq(errno, EBADMSG);
    ck_assert_ptr_null(mf_json_parse("[1] 1e999", 9, 10));
    ck_assert_int_eq(errno, EBADMSG);
    ck_assert_ptr_null(mf_json_parse("[1]", 3, 2));
    ck_assert_int_eq(errno, EBADMSG);
    fail_allocation(0);
    cJSON *none = mf_json_parse("[1]", 3, 10);
    int why = errno;
    restore_allocation();
    ck_assert_ptr_null(none);
    ck_assert_int_eq(why, ENOMEM);
}

MF_TEST(size_limit_is_exact)
{
    static const char text[] = "[1,2,3]";
    ck_assert_ptr_null(mf_json_parse(text, strlen(text), strlen(text) - 1));
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text, strlen(text), strlen(text));
    ck_assert_int_eq(cJSON_GetArraySize(json), 3);
}

static const struct {
    int depth;
    bool fits;
} depths[] = {{1, true}, {1000, true}, {1001, false}, {500000, false}};

/* The nesting depth is limited, so that a megabyte of brackets is rejected instead of overflowing the stack.
 */
MF_TEST(nesting_limit, .rows = MF_ARRAY_LEN(depths))
{
    _cleanup_(mf_buf_release) struct mf_buf b;
    mf_buf_init(&b, 1 << 20);
    for (int i = 0; i < depths[_i].depth; i++)
        (void)mf_buf_add(&b, "[", 1);
    for (int i = 0; i < depths[_i].depth; i++)
        (void)mf_buf_add(&b, "]", 1);
    ck_assert_int_eq(mf_buf_error(&b), 0);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(b.data, b.len, 1 << 20);
    ck_assert((json != NULL) == depths[_i].fits);
}

/* clang-format off */
static const struct {
    const char *value;          /* value of member "a"; NULL if the object has no member "a" */
    int64_t min, max;
    int expect;
    int64_t number;
} integers[] = {
    {"5",                   0,         9,         0,       5},
    {"-5",                  -9,        9,         0,       -5},
    {"5.0",                 0,         9,         0,       5},
    {"5e2",                 0,         999,       0,       500},
    {"10",                  0,         9,         -EINVAL, 0},
    {"-1",                  0,         9,         -EINVAL, 0},
    {"9007199254740992",    INT64_MIN, INT64_MAX, 0,       INT64_C(9007199254740992)},
    {"-9007199254740992",   INT64_MIN, INT64_MAX, 0,       INT64_C(-9007199254740992)},
    {"9007199254740994",    INT64_MIN, INT64_MAX, -EINVAL, 0},
    {"1e300",               INT64_MIN, INT64_MAX, -EINVAL, 0},
    {"1e999",               INT64_MIN, INT64_MAX, -EINVAL, 0},
    {"5.5",                 0,         9,         -EINVAL, 0},
    {"\"5\"",               0,         9,         -EINVAL, 0},
    {"true",                0,         9,         -EINVAL, 0},
    {"[5]",                 0,         9,         -EINVAL, 0},
    {"null",                0,         9,         -ENOENT, 0},
    {NULL,                  0,         9,         -ENOENT, 0},
};
/* clang-format on */

static cJSON *object_with(const char *value)
{
    char text[100] = "{\"A\": 1}"; /* member names are case-sensitive */
    if (value)
        snprintf(text, sizeof(text), "{\"A\": 1, \"a\": %s}", value);
    cJSON *json = cJSON_Parse(text);
    ck_assert_ptr_nonnull(json);
    return json;
}

MF_TEST(integer_member, .rows = MF_ARRAY_LEN(integers))
{
    _cleanup_(cJSON_Deletep) cJSON *json = object_with(integers[_i].value);
    int64_t number = 4711;
    ck_assert_int_eq(mf_json_i64(json, "a", integers[_i].min, integers[_i].max, &number),
                     integers[_i].expect);
    ck_assert_int_eq(number, integers[_i].expect == 0 ? integers[_i].number : 4711);
}

static const struct {
    const char *value;
    int real, boolean, text;
    bool object, array;
} types[] = {
    {"1.5", 0, -EINVAL, -EINVAL, false, false},        {"1e999", -EINVAL, -EINVAL, -EINVAL, false, false},
    {"true", -EINVAL, 0, -EINVAL, false, false},       {"\"x\"", -EINVAL, -EINVAL, 0, false, false},
    {"{}", -EINVAL, -EINVAL, -EINVAL, true, false},    {"[]", -EINVAL, -EINVAL, -EINVAL, false, true},
    {"null", -ENOENT, -ENOENT, -ENOENT, false, false}, {NULL, -ENOENT, -ENOENT, -ENOENT, false, false},
};

MF_TEST(member_of_each_type, .rows = MF_ARRAY_LEN(types))
{
    _cleanup_(cJSON_Deletep) cJSON *json = object_with(types[_i].value);
    double real = 7;
    bool boolean = false;
    const char *text = "untouched";
    ck_assert_int_eq(mf_json_double(json, "a", &real), types[_i].real);
    ck_assert_double_eq(real, types[_i].real == 0 ? 1.5 : 7);
    ck_assert_int_eq(mf_json_bool(json, "a", &boolean), types[_i].boolean);
    ck_assert(boolean == (types[_i].boolean == 0));
    ck_assert_int_eq(mf_json_text(json, "a", &text), types[_i].text);
    ck_assert_str_eq(text, types[_i].text == 0 ? "x" : "untouched");
    ck_assert((mf_json_object(json, "a") != NULL) == types[_i].object);
    ck_assert((mf_json_array(json, "a") != NULL) == types[_i].array);
}

/* The accessors accept NULL and values that are not objects. */
MF_TEST(non_objects_have_no_members)
{
    _cleanup_(cJSON_Deletep) cJSON *array = cJSON_Parse("[1]");
    const cJSON *const objects[] = {NULL, array};
    int64_t number;
    for (size_t i = 0; i < MF_ARRAY_LEN(objects); i++) {
        ck_assert_int_eq(mf_json_i64(objects[i], "a", 0, 9, &number), -ENOENT);
        ck_assert_ptr_null(mf_json_object(objects[i], "a"));
        ck_assert_ptr_null(mf_json_array(objects[i], "a"));
    }
}

/* Adding, reading, printing and parsing an integer keeps its exact value. */
MF_TEST(integers_are_exact)
{
    static const int64_t values[] = {
        0,
        -1,
        INT32_MAX,
        INT64_C(2147483648),
        INT64_C(1790000000000),
        INT64_C(999999999999999),
        INT64_C(-999999999999999),
        INT64_C(1000000000000000),
        INT64_C(-1000000000000001),
        INT64_C(9007199254740991),
        INT64_C(9007199254740992),
        INT64_C(-9007199254740991),
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(values); i++) {
        _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
        int64_t number = 4711;
        double real = 4711;
        char expect[64];
        ck_assert_ptr_nonnull(mf_json_add_i64(json, "n", values[i]));
        ck_assert_int_eq(mf_json_i64(json, "n", INT64_MIN, INT64_MAX, &number), 0);
        ck_assert_int_eq(number, values[i]);
        ck_assert_int_eq(mf_json_double(json, "n", &real), 0);
        ck_assert_double_eq(real, (double)values[i]);

        _cleanup_(mf_freep) char *text = mf_json_print(json);
        snprintf(expect, sizeof(expect), "{\"n\":%lld}", (long long)values[i]);
        ck_assert_pstr_eq(text, expect);
        _cleanup_(cJSON_Deletep) cJSON *again = mf_json_parse(text, strlen(text), 100);
        ck_assert_int_eq(mf_json_i64(again, "n", INT64_MIN, INT64_MAX, &number), 0);
        ck_assert_int_eq(number, values[i]);
    }
}

/* Strings may contain invalid UTF-8, such as a truncated character or bytes from a peer. They are printed as
 * valid JSON in which each invalid byte is replaced with '?'. */
/* clang-format off */
static const struct {
    const char *text, *printed;
} unclean[] = {
    {"0.01\xc2\xb7|ref|",          "\"0.01\xc2\xb7|ref|\""},
    {"0.01\xc2",                   "\"0.01?\""},
    {"\xe2\x82",                   "\"??\""},
    {"\xff<b>\xfe",                "\"?<b>?\""},
    {"\xed\xa0\x80",               "\"???\""},
    {"\xf0\x9f\x98\x80\x80",       "\"\xf0\x9f\x98\x80?\""},
    {"a\x01\"\\\n",                "\"a\\u0001\\\"\\\\\\n\""},
};
/* clang-format on */

MF_TEST(invalid_utf8_is_replaced, .rows = MF_ARRAY_LEN(unclean))
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateString(unclean[_i].text);
    _cleanup_(mf_freep) char *text = mf_json_print(json);
    ck_assert_pstr_eq(text, unclean[_i].printed);
}

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = *state;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Returns a number of any magnitude: an integer, a decimal with up to 11 decimal places, the next double
 * above such a decimal, or an arbitrary bit pattern. */
static double random_number(uint64_t *state)
{
    uint64_t bits = next_random(state);
    double sign = next_random(state) % 2 ? 1 : -1;
    double whole = sign * (double)(bits >> (next_random(state) % 60));
    double number = whole / pow(10, (double)(next_random(state) % 12));
    switch (next_random(state) % 4) {
    case 0:
        return whole;
    case 1:
        return number;
    case 2:
        return nextafter(number, HUGE_VAL);
    default:
        memcpy(&number, &bits, sizeof(number));
        return number;
    }
}

static const double special_numbers[] = {
    0,        -0.0,          0.5,        -0.5,       0.1,         1e-4,         9.9999e-5,
    1e-5,     0.000001,      1e-7,       1e9 - 1e-6, 1e9,         1e9 + 0.5,    999999999.999999,
    1e15 - 1, 1e15,          1e15 - 0.5, 1e16,       2147483647,  2147483648.0, -2147483649.0,
    0x1p53,   1e300,         -1e-300,    5e-324,     (double)NAN, HUGE_VAL,     0.1 + 0.2,
    12.3456,  0.99999949999, 0.9999995,
};

/* mf_json_print prints every number as cJSON does. */
MF_TEST(numbers_are_printed_as_cjson_does)
{
    const uint64_t seed = 20240611;
    uint64_t state = seed;
    for (size_t i = 0; i < 50000; i++) {
        double number = i < MF_ARRAY_LEN(special_numbers) ? special_numbers[i] : random_number(&state);
        _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateNumber(number);
        _cleanup_(mf_freep) char *text = mf_json_print(json), *expect = cJSON_PrintUnformatted(json);
        ck_assert_msg(text && expect && strcmp(text, expect) == 0,
                      "%.17g: printed %s, cJSON prints %s (seed %llu, number %zu)", number, text, expect,
                      (unsigned long long)seed, i);
    }
}

/* The tree contains every type of value, empty and nested arrays and objects, and every ASCII character. */
MF_TEST(trees_are_printed_as_cjson_does)
{
    char all[128];
    for (int i = 0; i < 127; i++)
        all[i] = (char)(i + 1);
    all[127] = '\0';
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(
        "{\"a\":[],\"b\":{},\"\":[1,-2.5,null,true,false,\"\",[[\"\\u00e4\\ud83d\\ude00\"]]],\"c\":{"
        "\"d\":{\"e\":1e-9}}}");
    ck_assert_ptr_nonnull(cJSON_AddStringToObject(json, all, all));
    ck_assert_ptr_nonnull(cJSON_AddRawToObject(json, "raw", "[1, 2]"));
    _cleanup_(mf_freep) char *text = mf_json_print(json), *expect = cJSON_PrintUnformatted(json);
    ck_assert_pstr_eq(text, expect);
    ck_assert_ptr_null(mf_json_print(NULL));
}

/* clang-format off */
static const struct { const char *text, *printed; } python[] = {
    {"[NaN,Infinity]",                      "[\"\",null]"},
    {"[Infinity, -Infinity, 1]",            "[null,null,1]"},
    {"{\"a\":NaN}",                         "{\"a\":\"\"}"},
    {"{\"a\":\"Infinity \\\" NaN\",\"NaN\":2}", "{\"a\":\"Infinity \\\" NaN\",\"NaN\":2}"},
    {"[1",                                  NULL},
    {"Infinit",                             NULL},
    {"",                                    NULL},
};
/* clang-format on */

MF_TEST(python_numbers, .rows = MF_ARRAY_LEN(python))
{
    size_t len = strlen(python[_i].text);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse_python(python[_i].text, len, 100);

    if (!python[_i].printed) {
        ck_assert_ptr_null(json);
        return;
    }
    ck_assert_ptr_nonnull(json);
    _cleanup_(mf_freep) char *text = mf_json_print(json);
    ck_assert_str_eq(text, python[_i].printed);
    ck_assert_ptr_null(mf_json_parse_python(python[_i].text, len, len - 1));
}

int main(void)
{
    return mf_check_main(NULL);
}
