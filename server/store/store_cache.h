/* Page cache for SQLite that avoids a scan of all cached pages at the end of each transaction.
 *
 * When SQLite rebalances a B-tree, it briefly gives a page a number beyond the end of the file: the number of
 * the page at 1 GiB. The built-in cache remembers the highest number ever used. So at the end of each
 * transaction it searches all cached pages for pages beyond the end of the file. The cache in this file wraps
 * the built-in cache and ignores temporary numbers. It lets the built-in cache search only if there are pages
 * to drop. */
#pragma once

/* Installs the cache for all connections. Call before the first connection and before other threads exist. */
void mf_store_cache_init(void);
