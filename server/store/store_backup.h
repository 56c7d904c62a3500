/* A copy of a database that another process may be writing to: SQLite's online backup, of one snapshot. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Copies the database at path into a new file: whatever was committed when it is called, and nothing half. The writer goes
 * on meanwhile; its log grows until the copy is done. The copy is looked through, synced and only then has its name; mode
 * 0600. -EEXIST: there is such a file; -ENOENT: there is none of this program's version. why gets a sentence. */
int mf_store_backup(const char *path, const char *copy, int64_t *ret_bytes, char *why, size_t why_cap);
