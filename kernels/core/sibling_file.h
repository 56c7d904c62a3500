/* Finds modules and helper programs that are installed with the executable or the library. */
#pragma once

#include <limits.h>

/* Writes the path of `file` to `path`. Searches next to the library that contains this code, then next to the
 * executable. For each of the two, also searches the install location (libexec/moefarm) and, in a build tree,
 * the subdirectory `folder` of up to three parent directories. Returns -ENOENT if the file is not found. */
int mf_sibling_file(const char *file, const char *folder, char path[PATH_MAX]);
