/* A temporary directory for a child process, which gets its path in TMPDIR. The parent process creates the
 * directory and removes it when the child has exited or was killed. Meanwhile the parent holds a lock on the
 * directory. If the parent dies, the kernel releases the lock, and the next mf_tmpdir_make removes the
 * directory. Thread-safe. */
#pragma once

struct mf_tmpdir {
    char *text; /* "TMPDIR=…"; NULL if there is no directory */
    int lock;   /* descriptor that holds the lock; valid if text is set */
};

/* Creates a directory. If that fails, ret->text is NULL and the child uses the parent's TMPDIR. */
void mf_tmpdir_make(struct mf_tmpdir *ret);
void mf_tmpdir_remove(struct mf_tmpdir *t);
/* Returns a copy of the environment with TMPDIR set to this directory. The environment of the process is not
 * changed. The caller frees only the returned array, because its strings belong to the process and to t. NULL
 * if out of memory. */
char **mf_tmpdir_environment(const struct mf_tmpdir *t);
