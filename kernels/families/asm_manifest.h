/* Reader for the CSV manifests of AITER's prebuilt kernels: the code object of each function and its launch
 * data.
 *
 * There are two kinds of manifest (ROCm/aiter, hsa/<gfx>/…), distinguished by their columns:
 *     fmoe/<activation>/…csv    knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n[,flat]
 *     fmoe_2stages/…csv         tile_m,tile_n,knl_name,co_name
 * Comments run from //, # or ; to the end of the line, or from slash-star to star-slash. Columns are matched
 * by name, in any order; a missing column reads as 0. (arch, knl_name) identifies a kernel; co_name is the
 * file of its code and may differ from the kernel's name. An invalid row is skipped and recorded with its
 * file, line and reason. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/moe/device_class.h"
#include "common/moe/status.h"
#include "common/moe/step.h"

#define MF_ASM_FILE_MAX 160

enum mf_asm_kind { MF_ASM_ONE, MF_ASM_STAGE1 };

struct mf_asm_kernel {
    char arch[MF_GFX_MAX];
    char name[MF_STEP_NAME_MAX];
    char co_name[MF_ASM_FILE_MAX]; /* code object, in the manifest's folder */
    char file[MF_ASM_FILE_MAX];    /* path of the manifest below the architecture's folder */
    enum mf_asm_kind kind;
    int32_t atm, vskip, smf;
    int32_t tg_num_per_cu; /* persistent kernels: work groups per CU */
    int32_t ps;            /* 1: persistent */
    int32_t sub_m, sub_n;  /* subGU_m, subGU_n or, for stage 1, tile_m, tile_n; at least 1 */
    int32_t flat;
};

struct mf_asm_problem {
    char file[MF_ASM_FILE_MAX];
    int64_t line;
    char reason[MF_REASON_MAX];
};

struct mf_asm_manifest {
    struct mf_asm_kernel *kernels; /* in the order of files and lines */
    struct mf_asm_problem *problems;
    size_t n, n_problems, cap, problems_cap;
};
#define MF_ASM_MANIFEST_INIT \
    {                        \
        0                    \
    }

void mf_asm_manifest_release(struct mf_asm_manifest *m);
/* Adds the rows of a text. Records defects of the text as problems and does not return an error for them.
 * Returns -ENOMEM, or -EFBIG if there are too many kernels. */
int mf_asm_manifest_add(struct mf_asm_manifest *m, const char *arch, const char *file, const char *text,
                        size_t len);
/* Adds every manifest of folder/arch/fmoe/<activation> and folder/arch/fmoe_2stages, sorted by name. A
 * missing folder counts as empty; an unreadable file becomes a problem. */
int mf_asm_manifest_load(struct mf_asm_manifest *m, const char *folder, const char *arch);
/* Returns NULL if there is no such kernel. */
const struct mf_asm_kernel *mf_asm_manifest_find(const struct mf_asm_manifest *m, const char *arch,
                                                 const char *name);
