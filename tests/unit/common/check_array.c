/* common/base/array.c: what stands in an array stays, however it grows and where it cannot. */
#include "common/base/array.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "support/mf_check.h"

static bool fails;

void *__real_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    return fails ? NULL : __real_reallocarray(p, n, size);
}

START_TEST(items_stay)
{
    int64_t *items = NULL;
    size_t n = 0, cap = 0, n_caps = 0;
    while (n < 1000) {
        size_t was = cap;
        ck_assert_int_eq(mf_array_grow(&items, n, &cap, sizeof(*items)), 0);
        ck_assert_uint_gt(cap, n);
        n_caps += cap != was;
        items[n] = (int64_t)n;
        n++;
    }
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(items[i], (int64_t)i);
    ck_assert_uint_eq(n_caps, 5); /* 64, 128, …, 1024: not at each item */
    free(items);
}
END_TEST

START_TEST(a_failure_leaves_it)
{
    char *items = NULL;
    size_t cap = 0;
    fails = true;
    ck_assert_int_eq(mf_array_grow(&items, 0, &cap, 1), -ENOMEM);
    ck_assert_ptr_null(items);
    ck_assert_uint_eq(cap, 0);
    fails = false;
    ck_assert_int_eq(mf_array_grow(&items, 0, &cap, 1), 0);
    char *was = items;
    size_t full = cap;
    items[full - 1] = 'x';
    fails = true;
    ck_assert_int_eq(mf_array_grow(&items, full, &cap, 1), -ENOMEM);
    ck_assert_ptr_eq(items, was);
    ck_assert_uint_eq(cap, full);
    ck_assert_int_eq(items[full - 1], 'x');
    free(items);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("array");
    TCase *c = tcase_create("array");
    tcase_add_test(c, items_stay);
    tcase_add_test(c, a_failure_leaves_it);
    suite_add_tcase(suite, c);
    return mf_check_main(suite);
}
