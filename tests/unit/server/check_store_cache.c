#include "server/store/store.h"

#include "support/mf_check.h"

#include <sqlite3.h>

#define LENT 262145u /* where pages of 4 KiB reach the byte that SQLite locks */

static sqlite3_pcache_methods2 ours;
static sqlite3_pcache *cache;

static void setup(void)
{
    sqlite3_pcache_methods2 theirs;
    ck_assert_int_eq(sqlite3_config(SQLITE_CONFIG_GETPCACHE2, &theirs), SQLITE_OK);
    mf_store_init();
    ck_assert_int_eq(sqlite3_config(SQLITE_CONFIG_GETPCACHE2, &ours), SQLITE_OK);
    ck_assert(ours.xTruncate != theirs.xTruncate);
    ck_assert_int_eq(sqlite3_initialize(), SQLITE_OK);
    cache = ours.xCreate(4096, 64, 1);
    ck_assert_ptr_nonnull(cache);
    ours.xCachesize(cache, 1000);
}

static void teardown(void)
{
    ours.xDestroy(cache);
}

static bool has(unsigned number)
{
    sqlite3_pcache_page *page = ours.xFetch(cache, number, 0);
    if (page)
        ours.xUnpin(cache, page, 0);
    return page != NULL;
}

static void make(unsigned number)
{
    sqlite3_pcache_page *page = ours.xFetch(cache, number, 2);
    ck_assert_ptr_nonnull(page);
    ours.xUnpin(cache, page, 0);
}

static void move(unsigned from, unsigned to)
{
    sqlite3_pcache_page *page = ours.xFetch(cache, from, 0);
    ck_assert_ptr_nonnull(page);
    ours.xRekey(cache, page, from, to);
    ours.xUnpin(cache, page, 0);
}

START_TEST(pages_behind_the_end_are_dropped)
{
    for (unsigned i = 1; i <= 100; i++)
        make(i);
    ours.xTruncate(cache, 101);
    ck_assert_int_eq(ours.xPagecount(cache), 100);
    ours.xTruncate(cache, 31);
    ck_assert_int_eq(ours.xPagecount(cache), 30);
    ck_assert(has(30) && !has(31) && !has(100));
    make(40);
    ours.xTruncate(cache, 41);
    ck_assert(has(40));
    ours.xTruncate(cache, 40);
    ck_assert(!has(40));
}
END_TEST

/* As SQLite has two pages change places: one is lent a number behind the file's end for a moment. */
START_TEST(a_lent_number_is_given_back)
{
    for (unsigned i = 1; i <= 9; i++)
        make(i);
    move(3, LENT);
    move(7, 3);
    move(LENT, 7);
    ours.xTruncate(cache, 10);
    ck_assert_int_eq(ours.xPagecount(cache), 9);
    ours.xTruncate(cache, 9);
    ck_assert_int_eq(ours.xPagecount(cache), 8);
    ck_assert(has(3) && has(7) && !has(9));
}
END_TEST

/* One that keeps its new number is dropped like any other, and so is a second one. */
START_TEST(a_page_that_moved_is_dropped)
{
    for (unsigned i = 1; i <= 9; i++)
        make(i);
    move(3, 20);
    move(4, LENT);
    ours.xTruncate(cache, 30);
    ck_assert(has(20) && !has(LENT));
    ours.xTruncate(cache, 10);
    ck_assert(!has(20));
    ck_assert_int_eq(ours.xPagecount(cache), 7);
    move(5, LENT);
    ours.xTruncate(cache, 10);
    ck_assert_int_eq(ours.xPagecount(cache), 6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_cache");
    TCase *tc = tcase_create("store_cache");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, pages_behind_the_end_are_dropped);
    tcase_add_test(tc, a_lent_number_is_given_back);
    tcase_add_test(tc, a_page_that_moved_is_dropped);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
