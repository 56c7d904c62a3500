/* A plain clang as the compiler for AMD: no ROCm, neither its headers nor its device library (kernels/gpu/src/amd_bare.h). It
 * knows architectures that the run-time compiler of a distribution may not, so it shows that the kernels compile for them. */
#pragma once

/* Prints its name and version as one line. -ENOENT with a sentence on stderr: there is none that is new enough. */
int mf_clang_version(void);

/* `source` of kernels/hip as a code object into `out`, which is complete or not there; clang's words go to stderr. */
int mf_clang_compile(const char *arch, const char *source, const char *out, char **defines, int n_defines);
