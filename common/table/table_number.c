/* Parses the numbers of a row, and prints them like AITER's tuner. */
#include "common/base/text.h"
#include "common/table/table_internal.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

enum kind { NO_NUMBER, TIME, PERCENT, RATE };

#define AT(member) offsetof(struct mf_table_row, member)

/* clang-format off */
static const struct {
    enum kind kind;
    size_t offset;
} numbers[MF_RESULT_N_] = {
    [MF_RESULT_US1]    = {TIME,    AT(us1)},
    [MF_RESULT_ERR1]   = {PERCENT, AT(err1)},
    [MF_RESULT_US2]    = {TIME,    AT(us2)},
    [MF_RESULT_ERR2]   = {PERCENT, AT(err2)},
    [MF_RESULT_US]     = {TIME,    AT(us)},
    [MF_RESULT_TFLOPS] = {RATE,    AT(tflops)},
    [MF_RESULT_BW]     = {RATE,    AT(bw)},
};
/* clang-format on */

bool mf_result_is_number(enum mf_result column)
{
    return numbers[column].kind != NO_NUMBER;
}

double mf_result_number(const struct mf_table_row *row, enum mf_result column)
{
    double value;
    memcpy(&value, (const char *)row + numbers[column].offset, sizeof(value));
    return value;
}

void mf_result_set_number(struct mf_table_row *row, enum mf_result column, double value)
{
    memcpy((char *)row + numbers[column].offset, &value, sizeof(value));
}

/* Parses a fraction, or a percentage with '%': "0.9%" is 0.009. */
static int parse_percent(const char *text, double *ret)
{
    char number[MF_TABLE_NUMBER_MAX];
    size_t len = strlen(text);
    if (len == 0 || text[len - 1] != '%')
        return mf_parse_double(text, ret);
    if (len > sizeof(number))
        return -EINVAL;
    memcpy(number, text, len - 1);
    number[len - 1] = '\0';
    double percent;
    int r = mf_parse_double(number, &percent);
    if (r == 0)
        *ret = percent / 100;
    return r;
}

int mf_result_parse_number(enum mf_result column, const char *text, double *ret)
{
    return numbers[column].kind == PERCENT ? parse_percent(text, ret) : mf_parse_double(text, ret);
}

/* Prints Python's repr(round(value, places)): no trailing zeros, but at least one digit after the point. */
static void print_rounded(double value, int places, char buf[MF_TABLE_NUMBER_MAX])
{
    mf_format(buf, MF_TABLE_NUMBER_MAX, "%.*f", places, value == 0 ? 0.0 : value); /* never print -0 */
    const char *point = strchr(buf, '.');
    if (!point)
        return;
    size_t len = strlen(buf);
    while (buf + len > point + 2 && buf[len - 1] == '0')
        buf[--len] = '\0';
}

void mf_result_print_number(enum mf_result column, double value, char buf[MF_TABLE_NUMBER_MAX])
{
    switch (numbers[column].kind) {
    case TIME:
        print_rounded(value, 4, buf);
        break;
    case RATE:
        print_rounded(value, 2, buf);
        break;
    case PERCENT:
        mf_format(buf, MF_TABLE_NUMBER_MAX, "%.1f%%", value * 100);
        break;
    case NO_NUMBER:
        buf[0] = '\0';
        break;
    }
}
