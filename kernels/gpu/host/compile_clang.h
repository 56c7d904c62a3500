/* Compiles AMD kernels with a plain clang, without ROCm headers or device library
 * (kernels/gpu/src/amd_bare.h). clang supports architectures that a distribution's hipRTC may not support. A
 * compilation by clang shows that the kernels compile for these architectures. */
#pragma once

/* Prints name and version of clang as one line. Returns -ENOENT, with a message on stderr, if no recent clang
 * is installed. */
int mf_clang_version(void);

/* Compiles `source` to a code object in `out`, which afterwards is complete or does not exist. clang writes
 * to stderr. */
int mf_clang_compile(const char *arch, const char *source, const char *out, char **defines, int n_defines);
