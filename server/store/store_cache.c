#include "server/store/store_cache.h"

#include <sqlite3.h>

#include "common/base/cleanup.h"

#include <stdlib.h>

/* SQLite's built-in cache, to which this cache passes its calls. Set once. */
static sqlite3_pcache_methods2 real;

/* State of one connection's cache, which SQLite sees as an opaque pointer. */
struct cache {
    sqlite3_pcache *pages;
    unsigned highest;   /* highest page number in the cache, except `temporary` */
    unsigned temporary; /* temporary page number above `highest`; 0: none */
};

static struct cache *to_cache(sqlite3_pcache *cache)
{
    return (struct cache *)cache;
}

static int start(void *context)
{
    (void)context;
    return real.xInit ? real.xInit(real.pArg) : SQLITE_OK;
}

static void end(void *context)
{
    (void)context;
    if (real.xShutdown)
        real.xShutdown(real.pArg);
}

static sqlite3_pcache *create(int page_size, int extra_size, int purgeable)
{
    struct cache *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->pages = real.xCreate(page_size, extra_size, purgeable);
    if (!c->pages) {
        free(c);
        return NULL;
    }
    return (sqlite3_pcache *)c;
}

static void destroy(sqlite3_pcache *cache)
{
    real.xDestroy(to_cache(cache)->pages);
    free(to_cache(cache));
}

static void set_size(sqlite3_pcache *cache, int n_pages)
{
    real.xCachesize(to_cache(cache)->pages, n_pages);
}

static int count(sqlite3_pcache *cache)
{
    return real.xPagecount(to_cache(cache)->pages);
}

static void shrink(sqlite3_pcache *cache)
{
    real.xShrink(to_cache(cache)->pages);
}

static sqlite3_pcache_page *fetch(sqlite3_pcache *cache, unsigned number, int make)
{
    struct cache *c = to_cache(cache);
    if (make)
        c->highest = MF_MAX(c->highest, number);
    return real.xFetch(c->pages, number, make);
}

static void unpin(sqlite3_pcache *cache, sqlite3_pcache_page *page, int discard)
{
    real.xUnpin(to_cache(cache)->pages, page, discard);
}

static void rename_page(sqlite3_pcache *cache, sqlite3_pcache_page *page, unsigned from, unsigned to)
{
    struct cache *c = to_cache(cache);
    if (from == c->temporary)
        c->temporary = 0;
    if (to > c->highest && c->temporary == 0)
        c->temporary = to;
    else
        c->highest = MF_MAX(c->highest, to);
    real.xRekey(c->pages, page, from, to);
}

/* Drops all pages with number `first` or higher. */
static void truncate_at(sqlite3_pcache *cache, unsigned first)
{
    struct cache *c = to_cache(cache);
    if (c->highest < first && c->temporary < first)
        return;
    real.xTruncate(c->pages, first);
    c->highest = MF_MIN(c->highest, first - 1);
    c->temporary = c->temporary < first ? c->temporary : 0;
}

void mf_store_cache_init(void)
{
    const sqlite3_pcache_methods2 ours = {.iVersion = 1,
                                          .xInit = start,
                                          .xShutdown = end,
                                          .xCreate = create,
                                          .xCachesize = set_size,
                                          .xPagecount = count,
                                          .xFetch = fetch,
                                          .xUnpin = unpin,
                                          .xRekey = rename_page,
                                          .xTruncate = truncate_at,
                                          .xDestroy = destroy,
                                          .xShrink = shrink};
    /* sqlite3_config fails if SQLite is in use already; the built-in cache then stays in place */
    if (sqlite3_config(SQLITE_CONFIG_GETPCACHE2, &real) == SQLITE_OK)
        (void)sqlite3_config(SQLITE_CONFIG_PCACHE2, &ours);
}
