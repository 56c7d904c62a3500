/* Durable file writes: complete writes, fsync and atomic replacement. Thread-safe. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Resolved destination of a path that the user gave. rename(2) would replace a device, a FIFO, a symbolic
 * link, or the file that /dev/stdout is redirected to, and processes that have it open would not see the new
 * data. Resolve such a path with mf_target_find() before writing. */
struct mf_target {
    /* Path with symbolic links followed; the file need not exist. A new version is renamed to it. */
    char file[PATH_MAX];
    bool is_stream; /* not a regular file, or is_open: write with mf_stream_write or refuse, never replace */
    bool is_open;   /* an open file of some process, such as /dev/stdout; implies is_stream */
    int descriptor; /* descriptor of this process that refers to the file; -1 if none: open the path */
};

/* -EISDIR: the path names a directory. Other negative errno values: the path could not be resolved. */
int mf_target_find(const char *path, struct mf_target *ret);
/* Writes to the existing stream: to a descriptor of this process at its current position, to a file opened by
 * another process after truncating it. The write is neither atomic nor synced. Blocks like open(2) until a
 * FIFO has a reader. */
int mf_stream_write(const struct mf_target *target, const void *data, size_t len);

/* Writes all bytes; retries after signals. -EIO: write(2) returned 0. */
int mf_write_all(int fd, const void *data, size_t len);
/* Makes a file name durable by syncing its directory. -EINVAL: the volume (some network file systems)
 * cannot sync a directory; the caller can rely on the rename only. */
int mf_sync_folder(const char *path);
/* Syncs the complete file `next` and renames it to `path` in the same directory. After a power failure `path`
 * holds either its old contents or all of the new ones. If the call fails before the rename, it deletes
 * `next`. */
int mf_replace_file(const char *next, const char *path);
