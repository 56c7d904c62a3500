/* Copies a database while another process may write to it, through SQLite's online backup API. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Copies the last committed state of the database at `path` into the new file `copy` (mode 0600). The writer
 * can continue meanwhile; its WAL grows until the copy is complete. The copy gets its final name only after
 * it was checked and synced. -EEXIST: the file `copy` exists; -ENOENT: there is no database of this program's
 * schema version at `path`. On failure, `why` holds an error message. */
int mf_store_backup(const char *path, const char *copy, int64_t *ret_bytes, char *why, size_t why_cap);
