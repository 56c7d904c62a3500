/* Files that are there after a power cut: what write(2) and rename(2) leave to their caller. Thread-safe. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Where what is written to a path goes. rename(2) would put a file in the place of a device or a FIFO, and in that of a link;
 * and in that of the file that /dev/stdout is redirected to, of which whoever opened it would see nothing: whoever writes a
 * path that a person gave asks here first. */
struct mf_target {
    /* What the path names, links followed, whether it is there or not: a new version is renamed to it */
    char file[PATH_MAX];
    bool is_stream; /* a device, a FIFO or the like: never replaced; mf_stream_write, or a refusal */
    bool is_open;   /* a stream: a process's open file, as /dev/stdout may be, whatever name it had */
    int descriptor; /* of this process, by which it is open; -1: none, the path is opened */
};

/* -EISDIR: a folder. -ELOOP, -EACCES, …: nobody can say. */
int mf_target_find(const char *path, struct mf_target *ret);
/* Writes into what is there: a descriptor of this process from where it stands, an open file of another's from its beginning, and
 * nothing else is in it then. Neither whole or not at all nor synced: a stream has nothing of either. Waits, as open(2) does,
 * for a FIFO's reader. */
int mf_stream_write(const struct mf_target *target, const void *data, size_t len);

/* All of it, whatever signals come. -EIO: the file takes nothing more and does not say why. */
int mf_write_all(int fd, const void *data, size_t len);
/* Makes the name of a file durable: syncs the folder that it lies in. -EINVAL: as some network file systems, it has no such
 * sync; the rename is all that it offers. */
int mf_sync_folder(const char *path);
/* Puts the file `next`, complete, in the place of `path`, which lies in the same folder: after a power cut there is what was
 * there before or the whole of it, never its name with half of it. What is not put there is removed. */
int mf_put_in_place(const char *next, const char *path);
