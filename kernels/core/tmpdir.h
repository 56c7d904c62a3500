/* A folder for what a program writes on its way, which it finds by TMPDIR. Whoever starts the program makes it and removes it when
 * the program has ended, however it did. It is locked while whoever made it lives, and the kernel takes the lock from one that dies:
 * what nobody holds is left over from one that was killed, and goes when the next one is made. Thread-safe. */
#pragma once

struct mf_tmpdir {
    char *text; /* "TMPDIR=…"; NULL: there is none */
    int lock;   /* with a text */
};

/* Where none can be made there is none: the program, which may need none, has the TMPDIR that we have. */
void mf_tmpdir_make(struct mf_tmpdir *ret);
void mf_tmpdir_remove(struct mf_tmpdir *t);
/* Our environment with that in it, which whoever else is in this process does not see. Its texts are ours and the folder's, the array
 * the caller's. NULL: no memory. */
char **mf_tmpdir_environment(const struct mf_tmpdir *t);
