/* Files that belong to the executable, or to the library that this is linked into: modules and helper programs. */
#pragma once

#include <limits.h>

/* The path of `file` beside this process's executable, or where it is installed for it (libexec/moefarm), or, in a build
 * tree, in `folder` beside one of the executable's folders; else likewise from the library. -ENOENT. */
int mf_sibling_file(const char *file, const char *folder, char path[PATH_MAX]);
