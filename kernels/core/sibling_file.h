/* Finds modules and helper programs that are installed with the executable or the library. */
#pragma once

#include <limits.h>

/* Returns the path of `file`. Searches next to the executable, in its install location (libexec/moefarm) and,
 * in a build tree, in `folder` next to a parent directory of the executable; the same locations relative to
 * the library come first. -ENOENT if not found. */
int mf_sibling_file(const char *file, const char *folder, char path[PATH_MAX]);
