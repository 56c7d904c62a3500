#include "common/table/csv.h"

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Input texts and the expected result. In the result, an accepted row is written "line:cell|cell;" and a
 * rejected row "line!code;". */
/* clang-format off */
static const struct reading {
    const char *text;
    size_t len;         /* length of the text; 0: use strlen(text) */
    const char *expected;
} readings[] = {
    {"a,b\nc,d\n", 0, "1:a|b;2:c|d;"},
    {"a,b\r\nc,d\r\n", 0, "1:a|b;2:c|d;"},
    {"a,b\nc,d", 0, "1:a|b;2:c|d;"},
    {"a,b\nc,d\r", 0, "1:a|b;2:c|d;"},              /* incomplete CRLF at the end */
    {"\xef\xbb\xbf" "a,b\n", 0, "1:a|b;"},
    {"", 0, ""},
    {"\xef\xbb\xbf", 0, ""},
    {"\n\n \t\na\n\n", 0, "4:a;"},
    {",,\n , \na,\n", 0, "3:a|;"},                  /* rows that have only empty cells are skipped */
    {" a ,\tb\t, c d \n", 0, "1:a|b|c d;"},
    {"a,\n,b\n", 0, "1:a|;2:|b;"},
    {"\"a,b\",\"c\"\"d\"\n", 0, "1:a,b|c\"d;"},
    {"\" a \"  , b\n", 0, "1: a |b;"},              /* quoted cells keep their spaces */
    {"\"a\nb\",c\nd\n", 0, "1:a\nb|c;3:d;"},
    {"\"a\r\nb\"\r\nc\r\n", 0, "1:a\r\nb;3:c;"},
    {"\"\",x\n", 0, "1:|x;"},
    {"a\"b,c\nd\n", 0, "1!EBADMSG;2:d;"},
    {"\"a\"b,c\nd\n", 0, "1!EBADMSG;2:d;"},
    {"\"a\nb\nc\n", 0, "1!EBADMSG;2:b;3:c;"},       /* an unclosed quote invalidates only its own line */
    {"a\0b\nc\n", 6, "1!EBADMSG;2:c;"},
    {"\"a\0b\"\nc\n", 8, "1!EBADMSG;2:c;"},
    {"a\x01\nb\rc\nd\x7f\ne\n", 0, "1!EBADMSG;2!EBADMSG;3!EBADMSG;4:e;"},
    {"1,2,3,4,5\na\n", 0, "1!E2BIG;2:a;"},
    {"1,2,3,4\na\n", 0, "1:1|2|3|4;2:a;"},
    /* the row is longer than the limit `row_bytes`, which is 20 */
    {"abcdefghijklmnopqrst\na\n", 0, "1:abcdefghijklmnopqrst;2:a;"},
    {"abcdefghijklmnopqrstu\na\n", 0, "1!E2BIG;2:a;"},
    {"abcdefghij,klmnopqrst\na\n", 0, "1:abcdefghij|klmnopqrst;2:a;"},
    {"abcdefghij,klmnopqrst,u\na\n", 0, "1!E2BIG;2:a;"},
    {"\"abcdefghijklmnopqrstuvw\"\na\n", 0, "1!E2BIG;2:a;"},
    {"\"abcdefghijklmnopqrstuvw\na\n", 0, "1!E2BIG;2:a;"},
    /* the limit is 5 rows; reading stops at the sixth row */
    {"1\n2\n3\n4\n5\n6\n7\n", 0, "1:1;2:2;3:3;4:4;5:5;6!EFBIG;"},
    {"1\n\n\n\n\n\n\n2\n", 0, "1:1;8:2;"},          /* empty lines do not count as rows */
};
/* clang-format on */

static const char *code_name(int r)
{
    return r == -EBADMSG ? "EBADMSG" : r == -E2BIG ? "E2BIG" : r == -EFBIG ? "EFBIG" : "?";
}

static void transcribe(const struct reading *reading, struct mf_buf *out)
{
    const struct mf_csv_limits limits = {.row_bytes = 20, .columns = 4, .rows = 5};
    /* Copy the text to an allocation of its exact size, so that the address sanitizer detects reads past the
     * end. */
    size_t len = reading->len ? reading->len : strlen(reading->text);
    char *text = malloc(len > 0 ? len : 1);
    ck_assert_ptr_nonnull(text);
    memcpy(text, reading->text, len);
    struct mf_csv csv;
    mf_csv_init(&csv, text, len, &limits);
    for (int r; (r = mf_csv_next(&csv)) != 0;) {
        if (r < 0) {
            ck_assert_ptr_nonnull(csv.why);
            ck_assert_uint_eq(csv.n_cells, 0);
            mf_buf_addf(out, "%d!%s;", (int)csv.line, code_name(r));
            continue;
        }
        mf_buf_addf(out, "%d:", (int)csv.line);
        for (size_t i = 0; i < csv.n_cells; i++)
            mf_buf_addf(out, "%s%s", i > 0 ? "|" : "", csv.cells[i]);
        mf_buf_adds(out, ";");
    }
    ck_assert_int_eq(mf_csv_next(&csv), 0); /* after the end of the text, every call returns 0 */
    mf_csv_release(&csv);
    free(text);
}

MF_TEST(test_read, .rows = MF_ARRAY_LEN(readings))
{
    const struct reading *reading = &readings[_i];
    struct mf_buf out;
    mf_buf_init(&out, 4096);
    transcribe(reading, &out);
    ck_assert_str_eq(out.data, reading->expected);
    mf_buf_release(&out);
}

/* A row with many cells grows the cell array. */
MF_TEST(test_many_cells)
{
    struct mf_buf text;
    mf_buf_init(&text, 65536);
    for (int i = 0; i < 200; i++)
        mf_buf_addf(&text, "%s%d", i > 0 ? "," : "", i);
    struct mf_csv csv;
    mf_csv_init(&csv, text.data, text.len, &MF_CSV_LIMITS_DEFAULT);
    ck_assert_int_eq(mf_csv_next(&csv), 1);
    ck_assert_uint_eq(csv.n_cells, 200);
    for (int i = 0; i < 200; i++) {
        char expected[16];
        snprintf(expected, sizeof(expected), "%d", i);
        ck_assert_str_eq(csv.cells[i], expected);
    }
    mf_csv_release(&csv);
    mf_buf_release(&text);
}

MF_TEST(test_column)
{
    static char token[] = "token", topk[] = "topk", us[] = "us";
    char *const header[] = {token, topk, us};
    ck_assert_int_eq(mf_csv_column(header, 3, "topk"), 1);
    ck_assert_int_eq(mf_csv_column(header, 3, "Topk"), -1);
    ck_assert_int_eq(mf_csv_column(header, 2, "us"), -1);
}

static const struct {
    const char *cell;
    bool plain;
} cells[] = {
    {"", true},      {"a b", true},   {"\xc2\xb5s", true}, {"a,b", false}, {"a\nb", false}, {"a\rb", false},
    {"a\"b", false}, {"a\tb", false}, {"\x7f", false},     {" a", false},  {"a ", false},   {" ", false},
};

MF_TEST(test_plain, .rows = MF_ARRAY_LEN(cells))
{
    ck_assert(mf_csv_is_plain(cells[_i].cell) == cells[_i].plain);
    struct mf_buf out;
    mf_buf_init(&out, 100);
    const char *const row[] = {"x", cells[_i].cell};
    ck_assert_int_eq(mf_csv_add_row(&out, row, 2), cells[_i].plain ? 0 : -EINVAL);
    if (!cells[_i].plain)
        ck_assert_uint_eq(out.len, 0);
    mf_buf_release(&out);
}

MF_TEST(test_write)
{
    struct mf_buf out;
    mf_buf_init(&out, 16);
    const char *const row[] = {"a", NULL, "b c", ""};
    ck_assert_int_eq(mf_csv_add_row(&out, row, 4), 0);
    ck_assert_str_eq(out.data, "a,,b c,\n");
    ck_assert_int_eq(mf_csv_add_row(&out, row, 4), 0);
    ck_assert_int_eq(mf_csv_add_row(&out, row, 4), -EFBIG);
    mf_buf_release(&out);
}

int main(void)
{
    return mf_check_main(NULL);
}
