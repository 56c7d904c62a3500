/* AITER's kernel lists: names and sizes of the kernels that AITER lists in files. The lists of one version of
 * AITER are built in (lists.txt). mf_aiter_tree_read makes the lists of another version from its source tree.
 *
 * The lists are text. A line is a comment, the start of a list, or a kernel of the list above it:
 *
 *    # comment
 *    version e4048607
 *    list fmoe/silu/fmoe_bf16_blockscaleBf16_g1u1_silu gfx950
 *    _ZN5aiter48fmoe_bf16_blockscaleBf16_g1u1_flat_vs_silu_1x128E 1 128 0 1
 *
 * A kernel is its name and up to four integers; missing integers are 0:
 *
 *    list                        name                integers
 *    fmoe/ACT/FILE GFX           symbol              rows and columns of the tile, smf, flat
 *    fmoe_2stages/FILE GFX       symbol              rows and columns of the tile
 *    FORMAT_gemmN_kernels_list   256x32x64x128_1x4   rows, columns and depth of the tile, pipeline version
 *    opus_stage1                 kernel name         rows and columns of the tile, waves that share K
 *    opus_stage2                 kernel name         rows of a sorted block, columns, smallest and largest
 *                                                    token count that the tuner tries (0: no limit)
 *
 * fmoe holds the manifests of one-stage kernels, fmoe_2stages those of stage 1, and …_kernels_list… the
 * instances of composable kernel.
 *
 * flat is 1 if the kernel reads the router's top-k directly and 2 for emsort kernels (ROCm/aiter,
 * asm_fmoe.cu); smf is not 0 for kernels with smooth quantisation. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/moe/status.h"
#include "common/moe/step.h"

struct mf_aiter_lists {
    const char *text; /* ends with a NUL */
    /* true: the tree of the user's own AITER, in which every kernel of that AITER is listed; false: the
     * built-in lists, which another version of AITER may exceed */
    bool own;
};

#define MF_AITER_VERSION_MAX 128
/* The built-in lists. The result is static. */
const struct mf_aiter_lists *mf_aiter_lists_builtin(void);
/* Writes the version of AITER that the lists are from: the start of a commit, the path of a tree, or
 * "unknown". */
void mf_aiter_lists_version(const struct mf_aiter_lists *l, char ret[MF_AITER_VERSION_MAX]);

#define MF_AITER_N_VALUES 4
struct mf_aiter_entry {
    char name[MF_STEP_NAME_MAX];
    int32_t value[MF_AITER_N_VALUES];
};

/* Position in a list. */
struct mf_aiter_cursor {
    const char *at; /* NULL: there is no such list */
};
/* Finds a list. gfx may be NULL for lists that all GPUs share. */
struct mf_aiter_cursor mf_aiter_list_find(const struct mf_aiter_lists *l, const char *name, const char *gfx);
/* Reads the next kernel of the list. False at the end of the list. */
bool mf_aiter_list_next(struct mf_aiter_cursor *c, struct mf_aiter_entry *ret);
/* True if any list has the kernel. */
bool mf_aiter_lists_have(const struct mf_aiter_lists *l, const char *kernel);
/* True if any list whose name contains `kind` has the instance `tile` with this pipeline version. */
bool mf_aiter_lists_have_instance(const struct mf_aiter_lists *l, const char *kind, const char *tile,
                                  int32_t version);

/* Makes the lists of the AITER source tree or installation at `path`, which has the folders hsa and csrc.
 * Appends the text to ret. -ENOENT: the folder is not an AITER tree; -EBADMSG: a file of the tree cannot be
 * understood; -EFBIG: a file or the result is too long. The reason is in why. */
int mf_aiter_tree_read(const char *path, struct mf_buf *ret, char why[MF_REASON_MAX]);

/* A process can name its AITER tree in this environment variable; moefarm-worker --aiter-dir sets it for its
 * runners. */
#define MF_AITER_FOLDER_ENV "MOEFARM_AITER_DIR"
#define MF_AITER_LISTS_MAX  ((size_t)4 << 20) /* bytes of the lists of a tree */
/* Returns a hash of the tree's lists. 0: path is NULL or empty, or the tree cannot be read. */
uint64_t mf_aiter_tree_hash(const char *path);
