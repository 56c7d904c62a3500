#include "server/api/cursor.h"
#include "support/mf_check.h"

#include <errno.h>
#include <math.h>

static const struct {
    int64_t group;
    double number;
    int64_t id;
} keys[] = {
    {0, 0, 0}, {1, 411.25, 12}, {-1, -0.5, INT64_MAX}, {INT64_MIN, 1e300, INT64_MIN}, {2, 5e-324, 1},
};

MF_TEST(test_round_trip, .rows = MF_ARRAY_LEN(keys))
{
    char text[MF_CURSOR_TEXT_MAX];
    struct mf_page page = {.limit = 7};
    mf_cursor_print(keys[_i].group, keys[_i].number, keys[_i].id, text);
    ck_assert_int_eq(mf_cursor_parse(text, &page), 0);
    ck_assert(page.from);
    ck_assert_int_eq(page.group, keys[_i].group);
    ck_assert(page.number == keys[_i].number);
    ck_assert_int_eq(page.id, keys[_i].id);
    ck_assert_int_eq(page.limit, 7);
}

static const char *const refused[] = {
    "",
    ".",
    "..",
    "1",
    "1.2",
    "1.2.",
    "1.2.3.4",
    "1..3",
    " 1.2.3",
    "1.2.3 ",
    "A.2.3",
    "g.0.0",
    "-1.0.0",
    "11111111111111111.0.0", /* an id of seventeen digits */
    "0.7ff0000000000000.0",  /* infinity */
    /* NaN, which must be rejected because every comparison with NaN is false and the page would be empty */
    "0.7ff8000000000000.0",
};

MF_TEST(test_refused, .rows = MF_ARRAY_LEN(refused))
{
    struct mf_page page = {.id = 5};
    ck_assert_int_eq(mf_cursor_parse(refused[_i], &page), -EINVAL);
    ck_assert_int_eq(page.id, 5);
    ck_assert(!page.from);
}

int main(void)
{
    return mf_check_main(NULL);
}
