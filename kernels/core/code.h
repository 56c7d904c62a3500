/* Kernels that are compiled when they are wanted: which source, under which definitions. A value: the same code twice is
 * the same file in the cache. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define MF_CODE_DEFINES_MAX 24
#define MF_CODE_WHY_MAX     512
#define MF_CODE_SPARE_ENV   "MOEFARM_CODE_SPARE"

struct mf_code {
    const char *source;                    /* a file of kernels/hip, static text: "tile.hip" */
    const char *function;                  /* of it, static text */
    char defines[MF_CODE_DEFINES_MAX][40]; /* "MF_BM=16" */
    size_t n_defines;
};

__attribute__((format(printf, 2, 3))) void mf_code_define(struct mf_code *c, const char *format, ...);

bool mf_code_equal(const struct mf_code *a, const struct mf_code *b);

/* The compiler of a vendor ("amd", "nvidia"; "clang" makes AMD's code, for checks) and what it is to make: one code object
 * for one architecture. */
struct mf_compiler {
    const char *vendor;
    char arch[32];
    char version[64]; /* of the compiler, part of what names a code object; mf_code_version */
};

/* Sets the architecture that code for a device class's gfx is compiled for: that of sm_90 has instructions that only
 * sm_90a names. */
void mf_code_arch(struct mf_compiler *compiler, const char *gfx);

/* Asks the compiler, in a process of its own, who it is. -ENOENT with the reason: there is none. */
int mf_code_version(const char *vendor, char version[64], char *why, size_t why_cap);

/* Where the code object of c is or will be: <cache>/<source>-<hash of sources, definitions, architecture, compiler>. The
 * cache is $MOEFARM_CODE_CACHE, or moefarm/code in the user's cache folder; nothing in it depends on where it is. A user who has
 * no home has one in /tmp; -EPERM: there it is somebody else's. */
int mf_code_path(const struct mf_compiler *compiler, const struct mf_code *c, char path[PATH_MAX]);

/* The cache's folder, made if need be. */
void mf_code_folder(char path[PATH_MAX]);
/* 0, or why that folder takes nothing now: its disk is full or read-only, say. */
int mf_code_room(const char *folder);
/* Where code goes that the cache cannot take: the same name in $MOEFARM_CODE_SPARE, a folder that is its user's alone. False:
 * there is none. A full cache makes a worker slower, and none of its steps a failure. */
bool mf_code_spare(const char *path, char spare[PATH_MAX]);

/* Makes those that the cache has not, `processes` at once; one that takes longer than a minute is killed. paths[i] is empty
 * for one that failed, whys[i] then says how; either may be NULL. -> how many there are now. One that the cache
 * cannot take lies in its spare, if there is one. One that somebody else is making, another worker of the host say,
 * is waited for a while. What a compiler leaves in its TMPDIR is removed when it has ended, or was killed. */
int mf_code_make(const struct mf_compiler *compiler, const struct mf_code *codes, size_t n, int processes,
                 char (*paths)[PATH_MAX], char (*whys)[MF_CODE_WHY_MAX]);

/* The text of a source of kernels/hip, by name, with its length; NULL: no such file. i-th name, NULL at the end. */
const char *mf_code_source(const char *name);
const char *mf_code_source_name(size_t i);
/* How moefarm-compile hears the digest of who asks: from another build's sources it makes nothing. */
#define MF_CODE_SOURCES_OPTION "--sources="
/* Of all names and texts, made when they were built in: a code object's name is asked for at every step. */
extern const char mf_code_sources_digest[];
