/* Reads and writes whole files. Both calls print their own error message and return the exit code, or 0. */
#pragma once

#include "common/base/buf.h"

/* Reads a file into buf, up to the buffer's ceiling. "-" is standard input. */
int mf_file_read(const char *path, struct mf_buf *buf);
/* Replaces the file atomically: writes a sibling file, syncs it and renames it. Follows a symbolic link.
 * Writes directly to a device or FIFO. "-" is standard output. */
int mf_file_write(const char *path, const char *data, size_t len);
