#include "common/base/text.h"

#include <errno.h>
#include <float.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#define UNSET 4711

/* clang-format off */
static const struct {
    const char *text;
    int64_t min, max;
    int expect;
    int64_t value;
} integers[] = {
    {"0",                     0,         9,         0,       0},
    {"-0",                    0,         9,         0,       0},
    {"9",                     0,         9,         0,       9},
    {"10",                    0,         9,         -ERANGE, 0},
    {"-1",                    0,         9,         -ERANGE, 0},
    {"007",                   0,         9,         0,       7},
    {"9223372036854775807",   INT64_MIN, INT64_MAX, 0,       INT64_MAX},
    {"-9223372036854775808",  INT64_MIN, INT64_MAX, 0,       INT64_MIN},
    {"9223372036854775808",   INT64_MIN, INT64_MAX, -ERANGE, 0},
    {"-9223372036854775809",  INT64_MIN, INT64_MAX, -ERANGE, 0},
    {"1000000000000000000000000000000", INT64_MIN, INT64_MAX, -ERANGE, 0},
    {NULL,                    0,         9,         -EINVAL, 0},
    {"",                      0,         9,         -EINVAL, 0},
    {"-",                     0,         9,         -EINVAL, 0},
    {"--1",                   -9,        9,         -EINVAL, 0},
    {"+1",                    0,         9,         -EINVAL, 0},
    {" 1",                    0,         9,         -EINVAL, 0},
    {"1 ",                    0,         9,         -EINVAL, 0},
    {"1\n",                   0,         9,         -EINVAL, 0},
    {"0x1",                   0,         9,         -EINVAL, 0},
    {"1e3",                   0,         9999,      -EINVAL, 0},
    {"1.0",                   0,         9,         -EINVAL, 0},
    {"1_000",                 0,         9999,      -EINVAL, 0},
};

static const struct {
    const char *text;
    int expect;
    double value;
} doubles[] = {
    {"0",        0, 0},         {"-1.5",     0, -1.5},      {"1e3",   0, 1000},  {"1E-2",  0, 0.01},
    {"2.5e+1",   0, 25},        {".5",       0, 0.5},       {"5.",    0, 5},     {"007.5", 0, 7.5},
    {"1e-400",   0, 0},         {"1.7976931348623157e308", 0, DBL_MAX},
    {"1e309",    -ERANGE, 0},   {"-1e309",   -ERANGE, 0},
    {NULL,       -EINVAL, 0},   {"",         -EINVAL, 0},   {"-",     -EINVAL, 0}, {".",    -EINVAL, 0},
    {"e5",       -EINVAL, 0},   {"1e",       -EINVAL, 0},   {"1e+",   -EINVAL, 0}, {"1.2.3", -EINVAL, 0},
    {"+1",       -EINVAL, 0},   {" 1",       -EINVAL, 0},   {"1 ",    -EINVAL, 0}, {"0x1p3", -EINVAL, 0},
    {"nan",      -EINVAL, 0},   {"inf",      -EINVAL, 0},   {"-inf",  -EINVAL, 0}, {"1,5",   -EINVAL, 0},
};

static const struct {
    const char *text;
    int expect;
    bool value;
} bools[] = {
    {"1", 0, true}, {"true", 0, true}, {"True", 0, true}, {"yes", 0, true}, {"on", 0, true},
    {"0", 0, false}, {"false", 0, false}, {"False", 0, false}, {"no", 0, false}, {"off", 0, false},
    {NULL, -EINVAL, false}, {"", -EINVAL, false}, {"2", -EINVAL, false}, {"TRUE", -EINVAL, false},
    {" 1", -EINVAL, false}, {"10", -EINVAL, false},
};

static const struct {
    const char *text;
    size_t max;
    bool valid;
} names[] = {
    {"a", 1, true}, {"Az09_.-", 7, true}, {"", 5, false}, {NULL, 5, false}, {"toolong", 6, false},
    {"a b", 9, false}, {"a/b", 9, false}, {"a\n", 9, false}, {"\xc3\xa4", 9, false}, {"a", 0, false},
};

static const struct {
    const char *pattern, *text;
    bool matches;
} globs[] = {
    {"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "abc", true}, {"?", "", false}, {"?", "a", true},
    {"a?c", "abc", true}, {"a?c", "ac", false}, {"a*c", "ac", true}, {"a*c", "abcbc", true},
    {"a*c", "abcb", false}, {"*.csv", "tuned.csv", true}, {"*.csv", "tuned.csv.bak", false},
    {"tile_*_m64", "tile_s1_m32_m64", true}, {"**a**", "xay", true}, {"abc", "abcd", false},
    {"abcd", "abc", false}, {"[a]", "a", false}, {"a*b*c", "a-b-b-c-c", true},
    {"*a*a*a*b", "aaaaaaaaac", false},
};

/* Known answers of 64-bit FNV-1a (Landon Curt Noll's test vectors). */
static const struct {
    const char *text;
    uint64_t hash;
} hashes[] = {
    {"",       UINT64_C(0xcbf29ce484222325)},
    {"a",      UINT64_C(0xaf63dc4c8601ec8c)},
    {"foobar", UINT64_C(0x85944171f73967e8)},
};
/* clang-format on */

MF_TEST(integer, .rows = MF_ARRAY_LEN(integers))
{
    int64_t value = UNSET;
    ck_assert_int_eq(mf_parse_i64(integers[_i].text, integers[_i].min, integers[_i].max, &value),
                     integers[_i].expect);
    ck_assert_int_eq(value, integers[_i].expect == 0 ? integers[_i].value : UNSET);
}

MF_TEST(real, .rows = MF_ARRAY_LEN(doubles))
{
    double value = UNSET;
    ck_assert_int_eq(mf_parse_double(doubles[_i].text, &value), doubles[_i].expect);
    ck_assert_double_eq(value, doubles[_i].expect == 0 ? doubles[_i].value : UNSET);
}

MF_TEST(boolean, .rows = MF_ARRAY_LEN(bools))
{
    bool value = !bools[_i].value;
    ck_assert_int_eq(mf_parse_bool(bools[_i].text, &value), bools[_i].expect);
    ck_assert_int_eq(value, bools[_i].expect == 0 ? bools[_i].value : !bools[_i].value);
}

MF_TEST(name, .rows = MF_ARRAY_LEN(names))
{
    ck_assert(mf_is_name(names[_i].text, names[_i].max) == names[_i].valid);
}

MF_TEST(glob, .rows = MF_ARRAY_LEN(globs))
{
    ck_assert(mf_glob(globs[_i].pattern, globs[_i].text) == globs[_i].matches);
}

/* A matcher with exponential backtracking would not finish. */
MF_TEST(glob_of_many_stars_is_fast)
{
    char pattern[401], text[2001];
    for (int i = 0; i < 400; i += 2)
        memcpy(pattern + i, "a*", 2);
    memcpy(pattern + 398, "*b", 3);
    memset(text, 'a', 2000);
    text[2000] = '\0';
    ck_assert(!mf_glob(pattern, text));
}

MF_TEST(copy_rejects_long_text)
{
    char dst[4] = "old";
    ck_assert_int_eq(mf_copy(dst, sizeof(dst), "abc"), 0);
    ck_assert_str_eq(dst, "abc");
    ck_assert_int_eq(mf_copy(dst, sizeof(dst), "abcd"), -ENAMETOOLONG);
    ck_assert_str_eq(dst, "");
    ck_assert_int_eq(mf_copy(dst, sizeof(dst), ""), 0);
    ck_assert_str_eq(dst, "");
    dst[0] = 'x';
    ck_assert_int_eq(mf_copy(dst, 0, ""), -ENAMETOOLONG);
    ck_assert_int_eq(dst[0], 'x');
}

MF_TEST(format_always_terminates)
{
    char dst[6];
    memset(dst, 'x', sizeof(dst));
    mf_format(dst, 5, "%d", 1234567);
    ck_assert_str_eq(dst, "1234");
    ck_assert_int_eq(dst[5], 'x');
    mf_format(dst, 0, "%d", 9);
    ck_assert_str_eq(dst, "1234");
}

/* Appending several times continues at the end of the text. Text that does not fit is truncated, and nothing
 * is written at or after `end`. */
MF_TEST(append_truncates)
{
    char text[10] = "#########", *end = text + 8, *at = mf_append(text, end, "ab");
    ck_assert_ptr_eq(at, text + 2);
    at = mf_append_i64(at, end, -40);
    ck_assert_str_eq(text, "ab-40");
    at = mf_append(at, end, "");
    at = mf_append(at, end, "xyz");
    ck_assert_str_eq(text, "ab-40xy");
    ck_assert_ptr_eq(at, end - 1);
    ck_assert_ptr_eq(mf_append_i64(at, end, 7), at);
    ck_assert_str_eq(text, "ab-40xy");
    ck_assert_int_eq(text[8], '#');
}

MF_TEST(append_matches_printf)
{
    static const int64_t values[] = {0, 1, -1, 9, 10, -10, 1234567890123, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < MF_ARRAY_LEN(values); i++) {
        char text[32], expect[32];
        (void)mf_append_i64(text, text + sizeof(text), values[i]);
        (void)snprintf(expect, sizeof(expect), "%lld", (long long)values[i]);
        ck_assert_str_eq(text, expect);
    }
}

MF_TEST(hash, .rows = MF_ARRAY_LEN(hashes))
{
    ck_assert_uint_eq(mf_hash64(hashes[_i].text, strlen(hashes[_i].text), MF_HASH_SEED), hashes[_i].hash);
}

MF_TEST(hash_continues_from_seed)
{
    uint64_t first = mf_hash64("foo", 3, MF_HASH_SEED);
    ck_assert_uint_eq(mf_hash64("bar", 3, first), hashes[2].hash);
}

/* clang-format off */
static const struct {
    const char *a, *b;
    size_t distance;
} edits[] = {
    {"form", "form", 0}, {"FORM", "form", 0}, {"frm", "form", 1}, {"forms", "form", 1}, {"from", "form", 2},
    {"", "form", 4}, {"doweight_stage_1", "doweight_stage1", 1}, {"kitten", "sitting", 3},
    {"1234567890123456789012345678901234567890x", "1234567890123456789012345678901234567890yz", 0},
};
/* clang-format on */

MF_TEST(edit_distance, .rows = MF_ARRAY_LEN(edits))
{
    const char *a = edits[_i].a, *b = edits[_i].b;
    ck_assert_uint_eq(mf_edit_distance(a, strlen(a), b, strlen(b)), edits[_i].distance);
    ck_assert_uint_eq(mf_edit_distance(b, strlen(b), a, strlen(a)), edits[_i].distance);
}

int main(void)
{
    return mf_check_main(NULL);
}
