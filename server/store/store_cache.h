/* SQLite's page cache, spared a walk at every commit. Where an insert gives pages of the tree other places, SQLite lends one of
 * them for a moment a number that no page has, 1 GiB into the file; its cache keeps that for the highest one ever, and looks for
 * pages behind the file's end in all of the cache whenever a transaction ends. Here the highest number is known
 * without those that were lent and given back, and the cache is asked only when there is something to drop. */
#pragma once

/* For all connections; before the first one, and before there are threads. */
void mf_store_cache_init(void);
