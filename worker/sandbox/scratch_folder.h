/* The folder that a runner may write to. Its contents are not trusted: a runner may have left symbolic links,
 * folders without permissions, and trees whose paths are longer than PATH_MAX. */
#pragma once

/* Creates the folder with mode 0700, or deletes the contents of an existing one. No process may change it at
 * the same time. Returns 0, -ENOTDIR if the path is a symbolic link or a file, or another negative errno. */
int mf_scratch_make(const char *path);
