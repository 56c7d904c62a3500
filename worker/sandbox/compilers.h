/* Finds the compilers that Python packages start: those that PATH, CC, CXX and CUDA_HOME name. They may be in
 * folders of their own, such as /opt/gcc. */
#pragma once

#include <limits.h>
#include <stddef.h>

#define MF_COMPILERS_MAX 16

/* Writes absolute paths of programs; the target of a link follows the link. Returns their number. */
size_t mf_compilers_find(char ret[MF_COMPILERS_MAX][PATH_MAX]);
/* Writes the folder that has the program's folder `bin`. Returns -ENOENT if the program is in another folder
 * or in /bin. */
int mf_compiler_prefix(const char *program, char ret[PATH_MAX]);
