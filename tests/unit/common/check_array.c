/* common/base/array.c: growing an array keeps its items, and a failed allocation changes nothing. */
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

MF_TEST(growth_keeps_items)
{
    int64_t *items = NULL;
    size_t n = 0, cap = 0, n_caps = 0;
    while (n < 1000) {
        size_t before = cap;
        ck_assert_int_eq(mf_array_grow(&items, n, &cap, sizeof(*items)), 0);
        ck_assert_uint_gt(cap, n);
        n_caps += cap != before;
        items[n] = (int64_t)n;
        n++;
    }
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(items[i], (int64_t)i);
    ck_assert_uint_eq(n_caps, 5); /* the capacity doubles: 64, 128, …, 1024 */
    free(items);
}

MF_TEST(failed_growth_changes_nothing)
{
    char *items = NULL;
    size_t cap = 0;
    fails = true;
    ck_assert_int_eq(mf_array_grow(&items, 0, &cap, 1), -ENOMEM);
    ck_assert_ptr_null(items);
    ck_assert_uint_eq(cap, 0);
    fails = false;
    ck_assert_int_eq(mf_array_grow(&items, 0, &cap, 1), 0);
    char *before = items;
    size_t full = cap;
    items[full - 1] = 'x';
    fails = true;
    ck_assert_int_eq(mf_array_grow(&items, full, &cap, 1), -ENOMEM);
    ck_assert_ptr_eq(items, before);
    ck_assert_uint_eq(cap, full);
    ck_assert_int_eq(items[full - 1], 'x');
    free(items);
}

int main(void)
{
    return mf_check_main(NULL);
}
