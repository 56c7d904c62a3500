/* Durable file writes: complete writes, fsync and atomic replacement. Thread-safe. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Resolved destination of a path that the user gave. Resolve such a path with mf_target_find() before
 * writing, because rename(2) would replace a device, a FIFO, a symbolic link, or the file that /dev/stdout is
 * redirected to. A process that has the replaced file open would not see the new data. */
struct mf_target {
    /* Path with symbolic links followed; the file need not exist. A new version of the file is renamed to
     * this path. */
    char file[PATH_MAX];
    /* true: the file is not regular, or is_open is true. Write to it with mf_stream_write or refuse to write;
     * never replace the file */
    bool is_stream;
    /* true: the path names an open file of some process, such as /dev/stdout; implies is_stream */
    bool is_open;
    /* descriptor of this process that refers to the file; -1 if this process does not have the file open */
    int descriptor;
};

/* -EISDIR: the path names a directory. Other negative errno values: the path could not be resolved. */
int mf_target_find(const char *path, struct mf_target *ret);
/* Writes to an existing stream. If this process has the file open, writes to target->descriptor at its
 * current position. Otherwise opens the file, and truncates it first if another process has it open. The
 * write is neither atomic nor synced. Opening a FIFO blocks until the FIFO has a reader. */
int mf_stream_write(const struct mf_target *target, const void *data, size_t len);

/* Writes all bytes; retries after signals. -EIO: write(2) returned 0. */
int mf_write_all(int fd, const void *data, size_t len);
/* Makes a file name durable by syncing its directory. -EINVAL: the file system cannot sync a directory, as is
 * the case for some network file systems; a rename may then be lost in a power failure. */
int mf_sync_folder(const char *path);
/* Syncs the complete file `next` and renames it to `path` in the same directory. After a power failure `path`
 * holds its complete old contents or its complete new contents. Deletes `next` on a failure before the
 * rename. */
int mf_replace_file(const char *next, const char *path);
