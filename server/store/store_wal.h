/* A VFS of SQLite's for the writing connection that gathers what is written to the write-ahead log and writes it in one
 * call when it is synced. SQLite writes each frame's header and page by themselves: 40 calls for the commit of eight results,
 * each from a worker of its own, where one does.
 *
 * Nobody sees the difference: other connections read no frame before the index of the log names it, which is after the sync
 * of its commit (synchronous = FULL), and this one's own reads write first what is gathered. A write that fails is
 * reported by that sync, and the commit fails. Every other file goes to the default VFS untouched. */
#pragma once

#define MF_STORE_WAL "moefarm-wal"

/* Makes the VFS known to SQLite, once; -ENOMEM, -ENODEV. */
int mf_store_wal_register(void);
