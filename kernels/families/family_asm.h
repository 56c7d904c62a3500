/* Family asm: prebuilt kernels listed in manifests, launched by name with a packed argument block.
 *
 * The environment variable MOEFARM_ASM_DIR names the folder. The folder has the layout of AITER's hsa/: one
 * folder per architecture, holding fmoe/<activation>/ and fmoe_2stages/ with manifests and code objects. A
 * CPU reads the folder of its device class and the folder `cpu`; the code objects there are shared objects
 * (kernels/cpu/module_cpu.h). A GPU reads the folder of its architecture, such as sm_90 or gfx942;
 * scripts/build_asm.sh builds the code objects of that folder from kernels/gpu/src/asm_stage1.hip. Weights
 * are in row layout and stage 1 writes its rows in sorted order. AITER's own kernels have the same argument
 * block, but another layout and order; they are rejected by their names. */
#pragma once

#include <stdint.h>

#define MF_ASM_FOLDER_ENV "MOEFARM_ASM_DIR"

/* Returns a hash of all manifests below the folder and of the code that they name, so that a changed kernel
 * changes the revision. Returns 0 if there is no folder or no kernel. */
uint64_t mf_asm_hash(const char *folder);
