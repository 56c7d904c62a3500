#include "server/store/store_cache.h"
#include "server/store/store_private.h"

#include "common/base/cleanup.h"

#include <stdlib.h>

/* SQLite's own, which it calls through ours. Set once. */
static sqlite3_pcache_methods2 real;

/* A connection's; SQLite sees a pointer only. */
struct cache {
    sqlite3_pcache *pages;
    unsigned highest; /* no page has a higher number, but for: */
    unsigned lent;    /* 0: none */
};

static struct cache *of(sqlite3_pcache *cache)
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
    real.xDestroy(of(cache)->pages);
    free(of(cache));
}

static void set_size(sqlite3_pcache *cache, int n_pages)
{
    real.xCachesize(of(cache)->pages, n_pages);
}

static int count(sqlite3_pcache *cache)
{
    return real.xPagecount(of(cache)->pages);
}

static void shrink(sqlite3_pcache *cache)
{
    real.xShrink(of(cache)->pages);
}

static sqlite3_pcache_page *fetch(sqlite3_pcache *cache, unsigned number, int make)
{
    struct cache *c = of(cache);
    if (make)
        c->highest = MF_MAX(c->highest, number);
    return real.xFetch(c->pages, number, make);
}

static void unpin(sqlite3_pcache *cache, sqlite3_pcache_page *page, int discard)
{
    real.xUnpin(of(cache)->pages, page, discard);
}

static void rename_page(sqlite3_pcache *cache, sqlite3_pcache_page *page, unsigned from, unsigned to)
{
    struct cache *c = of(cache);
    if (from == c->lent)
        c->lent = 0;
    if (to > c->highest && c->lent == 0)
        c->lent = to;
    else
        c->highest = MF_MAX(c->highest, to);
    real.xRekey(c->pages, page, from, to);
}

/* Drops the pages from that number on. */
static void truncate_at(sqlite3_pcache *cache, unsigned first)
{
    struct cache *c = of(cache);
    if (c->highest < first && c->lent < first)
        return;
    real.xTruncate(c->pages, first);
    c->highest = MF_MIN(c->highest, first - 1);
    c->lent = c->lent < first ? c->lent : 0;
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
    /* What is refused, SQLite being in use already, leaves it its own */
    if (sqlite3_config(SQLITE_CONFIG_GETPCACHE2, &real) == SQLITE_OK)
        (void)sqlite3_config(SQLITE_CONFIG_PCACHE2, &ours);
}
