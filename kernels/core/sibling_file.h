/* Finds modules and helper programs that are installed with the executable or the library. */
#pragma once

#include <limits.h>

/* Writes the path of `file` to `path`. Searches next to the library that contains this code, then next to the
 * executable. For each of the two, also searches the install location (libexec/moefarm) and, in a build tree,
 * the subdirectory `folder` of up to three parent directories. Accepts only a file that belongs to root, to
 * this user or to the owner of the library or executable, and that is not world-writable. Returns -ENOENT
 * if no file is accepted. */
int mf_sibling_file(const char *file, const char *folder, char path[PATH_MAX]);
