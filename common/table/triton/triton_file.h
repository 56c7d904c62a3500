/* A configuration file of vLLM or SGLang in memory: token counts and their Triton configurations.
 *
 *   {
 *       "triton_version": "3.6.0",                                  optional in vLLM; SGLang cannot load it
 *       "16": {"BLOCK_SIZE_M": 16, …, "num_warps": 4, "num_stages": 3}
 *   }
 *
 * Both frameworks take the entry whose key is nearest to the token count of the call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/table/table.h"
#include "common/table/triton/triton_config.h"
#include "common/table/triton/triton_key.h"

#define MF_TRITON_FILE_MAX    (4u << 20) /* maximum size of a file in bytes */
#define MF_TRITON_ENTRIES_MAX 4096
#define MF_TRITON_TOKEN_MAX   (1 << 24) /* maximum token count of an entry */
#define MF_TRITON_VERSION_KEY "triton_version"

struct mf_triton_entry {
    int64_t token;
    struct mf_triton_config config;
    int64_t line; /* line in the file; 0: not read from a file */
};

struct mf_triton_file {
    char *path;
    enum mf_framework framework;
    bool has_key; /* false: the file's name is not one that a framework looks up */
    struct mf_triton_key key;
    char version[MF_TRITON_VERSION_MAX]; /* of Triton; "" if the file and its folder do not say it */
    struct mf_triton_entry *entries;     /* in the order of the file */
    size_t n_entries, cap;
};

struct mf_triton_file *mf_triton_file_free(struct mf_triton_file *f);
MF_DEFINE_CLEANUP(struct mf_triton_file *, mf_triton_file_free);

/* True if the text is a JSON object, and therefore not a CSV table. */
bool mf_triton_file_is(const char *text, size_t len);
/* Reads the text of a file. framework NULL: guessed from the path and the content. Invalid entries become
 * problems of `findings`, a table without rows, and are left out. -ENOMEM. */
int mf_triton_file_read(const char *path, const char *text, size_t len, const enum mf_framework *framework,
                        struct mf_table *findings, struct mf_triton_file **ret);
/* Adds the findings that need no model: a name that no call looks up, token counts that are missing or out of
 * order, fields that the kernel ignores. Sorts the problems of `findings`. */
int mf_triton_file_check(const struct mf_triton_file *f, struct mf_table *findings);
/* Checks a set of files: each file by mf_triton_file_check, and SGLang's files for the second GEMM (_down)
 * against those for the first one. findings[i] belongs to files[i]; a NULL file is skipped. */
int mf_triton_files_check(struct mf_triton_file *const *files, struct mf_table *const *findings, size_t n);

/* Returns the token counts that the tuners of both frameworks measure, in ascending order. */
const int64_t *mf_triton_ladder(size_t *ret_n);

/* Appends an entry, or replaces the one with the same token count. -ENOMEM. */
int mf_triton_file_add(struct mf_triton_file *f, const struct mf_triton_entry *entry);
/* Returns the entry with exactly this token count, or NULL. */
struct mf_triton_entry *mf_triton_file_find(const struct mf_triton_file *f, int64_t token);
/* Returns the entry that the frameworks use for a token count: the nearest one, the first of two equally near
 * ones. NULL: the file has no entry. */
const struct mf_triton_entry *mf_triton_file_nearest(const struct mf_triton_file *f, int64_t token);
/* Appends the content of a file in the framework's own format. version: Triton's version for vLLM's key
 * "triton_version"; "": unknown. -ENOMEM or -EFBIG. */
int mf_triton_file_write(enum mf_framework framework, const struct mf_triton_entry *entries, size_t n,
                         const char *version, struct mf_buf *out);
