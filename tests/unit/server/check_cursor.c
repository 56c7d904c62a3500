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

START_TEST(test_round_trip)
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
END_TEST

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
    "11111111111111111.0.0", /* seventeen digits */
    "0.7ff0000000000000.0",  /* infinity */
    "0.7ff8000000000000.0",  /* not a number: comparisons with it would give an empty page */
};

START_TEST(test_refused)
{
    struct mf_page page = {.id = 5};
    ck_assert_int_eq(mf_cursor_parse(refused[_i], &page), -EINVAL);
    ck_assert_int_eq(page.id, 5);
    ck_assert(!page.from);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cursor");
    TCase *t = tcase_create("cursor");
    tcase_add_loop_test(t, test_round_trip, 0, sizeof(keys) / sizeof(keys[0]));
    tcase_add_loop_test(t, test_refused, 0, sizeof(refused) / sizeof(refused[0]));
    suite_add_tcase(suite, t);
    return mf_check_main(suite);
}
