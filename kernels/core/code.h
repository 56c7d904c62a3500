/* GPU kernels that are compiled at run time: source, definitions, compiler, and the cache of code objects.
 * Equal mf_code values name the same file in the cache. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define MF_CODE_DEFINES_MAX  24
#define MF_CODE_WHY_MAX      512
#define MF_CODE_FALLBACK_ENV "MOEFARM_CODE_SPARE"

struct mf_code {
    const char *source;                    /* file of kernels/gpu/src, static text: "tile.hip" */
    const char *function;                  /* function in the source, static text */
    char defines[MF_CODE_DEFINES_MAX][40]; /* "MF_BM=16" */
    size_t n_defines;
};

__attribute__((format(printf, 2, 3))) void mf_code_define(struct mf_code *c, const char *format, ...);

bool mf_code_equal(const struct mf_code *a, const struct mf_code *b);

/* A compiler and its target architecture. `vendor` is "amd", "nvidia" or "clang"; "clang" compiles AMD code
 * for checks only. A run of the compiler produces one code object for one architecture. */
struct mf_compiler {
    const char *vendor;
    char arch[32];
    char version[64]; /* compiler version, part of the name of a code object; see mf_code_version */
};

/* Sets the target architecture for a device class's gfx. sm_90 compiles as sm_90a, which has more
 * instructions. */
void mf_code_arch(struct mf_compiler *compiler, const char *gfx);

/* Writes the compiler's name and version, as a child process reports them. -ENOENT, with the reason in `why`,
 * if there is no compiler. */
int mf_code_version(const char *vendor, char version[64], char *why, size_t why_cap);

/* Writes the path of c's code object, whether the file exists or not: <cache>/<source>-<hash of sources,
 * definitions, architecture, compiler>. The cache is $MOEFARM_CODE_CACHE, or moefarm/code in the user's cache
 * directory. Its files can be moved to another directory. Without a home directory the cache is in /tmp;
 * -EPERM if another user owns that directory. */
int mf_code_path(const struct mf_compiler *compiler, const struct mf_code *c, char path[PATH_MAX]);

/* Writes the path of the cache directory, which it creates if necessary. */
void mf_code_folder(char path[PATH_MAX]);
/* Returns 0 if `folder` is writable, otherwise a negative errno (disk full, read-only file system). */
int mf_code_check_writable(const char *folder);
/* Sets `fallback` to the path for code that the cache cannot store: the same file name in
 * $MOEFARM_CODE_SPARE, a private directory of the user. Returns false if there is no such directory. With a
 * fallback, a full cache slows a worker down but no step fails. */
bool mf_code_fallback_path(const char *path, char fallback[PATH_MAX]);

/* Compiles the code objects that the cache lacks, at most `processes` at once. Returns how many of the n code
 * objects exist now. A compiler that runs longer than a minute is killed. For a code object that failed,
 * paths[i] is empty and whys[i] has the reason; either array may be NULL. A code object that the cache cannot
 * store goes to the fallback path. If another process is compiling the same code, the call waits for that
 * process for a while. The compiler's TMPDIR is removed when the compiler has ended or was killed. */
int mf_code_make(const struct mf_compiler *compiler, const struct mf_code *codes, size_t n, int processes,
                 char (*paths)[PATH_MAX], char (*whys)[MF_CODE_WHY_MAX]);

/* Returns the text of a file of kernels/gpu/src, or NULL if there is no such file. mf_code_source_name
 * returns the i-th file name, or NULL at the end of the list. */
const char *mf_code_source(const char *name);
const char *mf_code_source_name(size_t i);
/* Passes the caller's source digest to moefarm-compile, which refuses a digest that differs from its own. */
#define MF_CODE_SOURCES_OPTION "--sources="
/* Digest of all source names and texts, computed at build time because every step's code path needs it. */
extern const char mf_code_sources_digest[];
