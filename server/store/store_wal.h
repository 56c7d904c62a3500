/* SQLite VFS for the writing connection that buffers writes to the write-ahead log (WAL) and writes them in
 * one system call at sync.
 *
 * Without this VFS, SQLite writes the header and the page of each WAL frame separately, which takes 40 system
 * calls to commit eight results of eight workers.
 *
 * The buffering is invisible to other connections: they read a frame only after the WAL index lists it, which
 * happens after the commit's sync (synchronous=FULL). Reads on the writing connection flush the buffer first.
 * If a write fails, the sync reports the failure and the commit fails. All other files use the default VFS.
 */
#pragma once

#define MF_STORE_WAL "moefarm-wal"

/* Registers the VFS with SQLite; later calls do nothing. Returns -ENOMEM, or -ENODEV if SQLite has no default
 * VFS. */
int mf_store_wal_register(void);
