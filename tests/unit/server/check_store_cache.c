#include "server/store/store.h"

#include "support/mf_check.h"

#include <sqlite3.h>

#define TEMPORARY 262145u /* the page that SQLite never uses (lock byte), with pages of 4 KiB */

static sqlite3_pcache_methods2 methods;
static sqlite3_pcache *cache;

static void setup(void)
{
    sqlite3_pcache_methods2 default_methods;
    ck_assert_int_eq(sqlite3_config(SQLITE_CONFIG_GETPCACHE2, &default_methods), SQLITE_OK);
    mf_store_init();
    ck_assert_int_eq(sqlite3_config(SQLITE_CONFIG_GETPCACHE2, &methods), SQLITE_OK);
    ck_assert(methods.xTruncate != default_methods.xTruncate);
    ck_assert_int_eq(sqlite3_initialize(), SQLITE_OK);
    cache = methods.xCreate(4096, 64, 1);
    ck_assert_ptr_nonnull(cache);
    methods.xCachesize(cache, 1000);
}

static void teardown(void)
{
    methods.xDestroy(cache);
}

static bool has(unsigned number)
{
    sqlite3_pcache_page *page = methods.xFetch(cache, number, 0);
    if (page)
        methods.xUnpin(cache, page, 0);
    return page != NULL;
}

static void make(unsigned number)
{
    sqlite3_pcache_page *page = methods.xFetch(cache, number, 2);
    ck_assert_ptr_nonnull(page);
    methods.xUnpin(cache, page, 0);
}

static void move(unsigned from, unsigned to)
{
    sqlite3_pcache_page *page = methods.xFetch(cache, from, 0);
    ck_assert_ptr_nonnull(page);
    methods.xRekey(cache, page, from, to);
    methods.xUnpin(cache, page, 0);
}

MF_TEST(pages_behind_the_end_are_dropped)
{
    for (unsigned i = 1; i <= 100; i++)
        make(i);
    methods.xTruncate(cache, 101);
    ck_assert_int_eq(methods.xPagecount(cache), 100);
    methods.xTruncate(cache, 31);
    ck_assert_int_eq(methods.xPagecount(cache), 30);
    ck_assert(has(30) && !has(31) && !has(100));
    make(40);
    methods.xTruncate(cache, 41);
    ck_assert(has(40));
    methods.xTruncate(cache, 40);
    ck_assert(!has(40));
}

/* SQLite swaps two pages by moving one to a temporary number after the end of the file. */
MF_TEST(temporary_number_is_returned)
{
    for (unsigned i = 1; i <= 9; i++)
        make(i);
    move(3, TEMPORARY);
    move(7, 3);
    move(TEMPORARY, 7);
    methods.xTruncate(cache, 10);
    ck_assert_int_eq(methods.xPagecount(cache), 9);
    methods.xTruncate(cache, 9);
    ck_assert_int_eq(methods.xPagecount(cache), 8);
    ck_assert(has(3) && has(7) && !has(9));
}

/* A moved page that keeps its new number is dropped like any other, and so is a second one. */
MF_TEST(moved_page_is_dropped)
{
    for (unsigned i = 1; i <= 9; i++)
        make(i);
    move(3, 20);
    move(4, TEMPORARY);
    methods.xTruncate(cache, 30);
    ck_assert(has(20) && !has(TEMPORARY));
    methods.xTruncate(cache, 10);
    ck_assert(!has(20));
    ck_assert_int_eq(methods.xPagecount(cache), 7);
    move(5, TEMPORARY);
    methods.xTruncate(cache, 10);
    ck_assert_int_eq(methods.xPagecount(cache), 6);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = setup, .teardown = teardown});
}
