/* Files that are there after a power cut: what write(2) and rename(2) leave to their caller. Thread-safe. */
#pragma once

#include <stddef.h>

/* All of it, whatever signals come. -EIO: the file takes nothing more and does not say why. */
int mf_write_all(int fd, const void *data, size_t len);
/* Makes the name of a file durable: syncs the folder that it lies in. -EINVAL: as some network file systems, it has no such
 * sync; the rename is all that it offers. */
int mf_sync_folder(const char *path);
