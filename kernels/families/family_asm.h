/* Prebuilt kernels: what the manifests of a folder list, launched by name with a packed argument block.
 *
 * The folder (the environment variable MOEFARM_ASM_DIR) is laid out as AITER's hsa/: a folder for each architecture, in it
 * fmoe/<activation>/ and fmoe_2stages/ with manifests and the code beside them. A CPU reads that of its class's name
 * and the one called cpu; its code is shared objects (kernels/cpu/module_cpu.h). An NVIDIA
 * GPU reads sm_90 and the like; its code is what scripts/build_asm.sh makes of kernels/gpu/src/asm_stage1.hip. On both weights are
 * in row layout and stage 1's rows in sorted order. */
#pragma once

#include <stdint.h>

#define MF_ASM_FOLDER_ENV "MOEFARM_ASM_DIR"

/* Of every manifest below the folder and the code that they name: a changed kernel is a new revision. 0 without a folder
 * or kernels. */
uint64_t mf_asm_hash(const char *folder);
