/* A temporary directory for a child process, passed in TMPDIR. The parent process creates it and removes it
 * after the child has ended for any reason. The parent holds a lock on it; if the parent dies, the kernel
 * releases the lock, and the next mf_tmpdir_make removes the directory. Thread-safe. */
#pragma once

struct mf_tmpdir {
    char *text; /* "TMPDIR=…"; NULL: no directory */
    int lock;   /* valid if text is set */
};

/* Creates a directory. If that fails, ret->text is NULL and the child uses the parent's TMPDIR. */
void mf_tmpdir_make(struct mf_tmpdir *ret);
void mf_tmpdir_remove(struct mf_tmpdir *t);
/* Returns a copy of the environment with this TMPDIR; the environment of the process is not changed. The
 * caller frees the array only: the strings belong to the process and to t. NULL if out of memory. */
char **mf_tmpdir_environment(const struct mf_tmpdir *t);
