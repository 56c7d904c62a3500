/* Page cache for SQLite that avoids a scan of all cached pages at the end of each transaction.
 *
 * When SQLite rebalances a B-tree, it briefly gives a page a number beyond the end of the file (the page at 1
 * GiB). The built-in cache remembers the highest number ever used, so at the end of each transaction it
 * searches all cached pages for pages beyond the end of the file. This wrapper around the built-in cache
 * ignores temporary numbers and calls it only if there are pages to drop. */
#pragma once

/* Installs the cache for all connections. Call before the first connection and before other threads exist. */
void mf_store_cache_init(void);
