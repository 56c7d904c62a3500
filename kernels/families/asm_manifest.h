/* The manifests that list AITER's prebuilt kernels: which code object holds which function, and how it is launched.
 *
 * Two kinds of CSV (ROCm/aiter, hsa/<gfx>/…), told apart by their columns:
 *     fmoe/<activation>/…csv    knl_name,co_name,atm,vskip,smf,tg_num_perCU,ps,subGU_m,subGU_n[,flat]
 *     fmoe_2stages/…csv         tile_m,tile_n,knl_name,co_name
 * Comments are cut out: from //, # or ; to the end of the line, and between slash-star and star-slash. Columns are found
 * by their names in any order; one that is missing is 0. A kernel is known by (arch, knl_name), and its code by co_name,
 * which need not be the kernel's name. A bad row costs that row only, and is kept with its file, line and reason. */
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
    char co_name[MF_ASM_FILE_MAX]; /* a file beside the manifest */
    char file[MF_ASM_FILE_MAX];    /* the manifest, below the folder of the architecture */
    enum mf_asm_kind kind;
    int32_t atm, vskip, smf;
    int32_t tg_num_per_cu; /* groups a compute unit of a persistent kernel */
    int32_t ps;            /* persistent */
    int32_t sub_m, sub_n;  /* subGU_m, subGU_n; of stage 1 tile_m, tile_n. Both at least 1 */
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
/* Adds the rows of a text. -ENOMEM, -EFBIG (more kernels than a build of AITER has by far); whatever is wrong with the
 * text becomes problems. */
int mf_asm_manifest_add(struct mf_asm_manifest *m, const char *arch, const char *file, const char *text,
                        size_t len);
/* Adds every manifest of folder/arch/fmoe/<activation> and folder/arch/fmoe_2stages, by name; a folder that is not there
 * has none. A file that cannot be read is a problem. */
int mf_asm_manifest_load(struct mf_asm_manifest *m, const char *folder, const char *arch);
/* NULL: no such kernel. */
const struct mf_asm_kernel *mf_asm_manifest_find(const struct mf_asm_manifest *m, const char *arch,
                                                 const char *name);
