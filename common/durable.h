/* Files that are there after a power cut: what write(2) and rename(2) leave to their caller. Thread-safe. */
#pragma once

#include <stddef.h>

/* All of it, whatever signals come. -EIO: the file takes nothing more and does not say why. */
int mf_write_all(int fd, const void *data, size_t len);
/* Makes the name of a file durable: syncs the folder that it lies in. -EINVAL: as some network file systems, it has no such
 * sync; the rename is all that it offers. */
int mf_sync_folder(const char *path);
/* Puts the file `next`, complete, in the place of `path`, which lies in the same folder: after a power cut there is what was
 * there before or the whole of it, never its name with half of it. What is not put there is removed. */
int mf_put_in_place(const char *next, const char *path);
