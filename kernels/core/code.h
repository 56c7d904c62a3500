/* Compiles GPU kernels at run time. Describes a kernel by source file, definitions and compiler, and caches
 * the compiled code objects. For the same compiler, equal mf_code values have the same file in the cache. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define MF_CODE_DEFINES_MAX  24
#define MF_CODE_WHY_MAX      512
#define MF_CODE_FALLBACK_ENV "MOEFARM_CODE_SPARE"

struct mf_code {
    /* name of a file in kernels/gpu/src, for example "tile.hip"; static text */
    const char *source;
    const char *function;                  /* name of the kernel function in that file; static text */
    char defines[MF_CODE_DEFINES_MAX][40]; /* for example "MF_BM=16" */
    size_t n_defines;
};

__attribute__((format(printf, 2, 3))) void mf_code_define(struct mf_code *c, const char *format, ...);

bool mf_code_equal(const struct mf_code *a, const struct mf_code *b);

/* A compiler and its target architecture. `vendor` is "amd", "nvidia" or "clang"; "clang" compiles AMD code
 * for checks only. Each run of the compiler produces one code object for one architecture. */
struct mf_compiler {
    const char *vendor;
    char arch[32];
    char version[64]; /* compiler version, which is part of a code object's file name; see mf_code_version */
};

/* Sets compiler->arch for `gfx`, the architecture of a device class. For sm_90 it sets sm_90a, which has more
 * instructions. */
void mf_code_arch(struct mf_compiler *compiler, const char *gfx);

/* Writes the name and version that the compiler reports when it runs in a child process. Returns -ENOENT,
 * with the reason in `why`, if there is no compiler. */
int mf_code_version(const char *vendor, char version[64], char *why, size_t why_cap);

/* Writes the path of c's code object, even if the file does not exist: <cache>/<source>-<hash of sources,
 * definitions, architecture, compiler>. The cache is $MOEFARM_CODE_CACHE, or moefarm/code in the user's cache
 * directory. Cached files stay valid if they are moved to another cache directory. Without a home directory
 * the cache is a directory in /tmp; the function returns -EPERM if another user owns the cache directory. */
int mf_code_path(const struct mf_compiler *compiler, const struct mf_code *c, char path[PATH_MAX]);

/* Writes the path of the cache directory, which it creates if necessary. */
void mf_code_folder(char path[PATH_MAX]);
/* Returns 0 if `folder` is writable, otherwise a negative errno (disk full, read-only file system). */
int mf_code_check_writable(const char *folder);
/* Sets `fallback` to the path for code that the cache cannot store: the same file name in
 * $MOEFARM_CODE_SPARE, a private directory of the user. Returns false if there is no such directory. With
 * this directory, a full cache slows a worker down but makes no step fail. */
bool mf_code_fallback_path(const char *path, char fallback[PATH_MAX]);
/* Returns a new path in the same folder, for a file that is renamed to `path` when it is complete. The name
 * is random, because processes in different PID namespaces may have the same pid. */
void mf_code_part_path(const char *path, char part[PATH_MAX]);

/* Compiles the code objects that the cache lacks, at most `processes` at once. Returns the number of the n
 * code objects that exist afterwards. A compiler that runs longer than a minute is killed. For a code object
 * that failed, paths[i] is empty and whys[i] has the reason; either array may be NULL. A code object that the
 * cache cannot store goes to the fallback path. If another process is compiling the same code, the call waits
 * a limited time for that process. The compiler's TMPDIR is removed when the compiler has ended or was
 * killed. */
int mf_code_make(const struct mf_compiler *compiler, const struct mf_code *codes, size_t n, int processes,
                 char (*paths)[PATH_MAX], char (*whys)[MF_CODE_WHY_MAX]);

/* mf_code_source returns the text of a file of kernels/gpu/src, or NULL if there is no such file.
 * mf_code_source_name returns the i-th file name, or NULL if i is the number of files or greater. */
const char *mf_code_source(const char *name);
const char *mf_code_source_name(size_t i);
/* Option that passes the caller's source digest to moefarm-compile, which fails if its own source digest
 * differs. */
#define MF_CODE_SOURCES_OPTION "--sources="
/* Digest of the names and texts of all source files. It is computed at build time, because the paths of all
 * code objects depend on it. */
extern const char mf_code_sources_digest[];
