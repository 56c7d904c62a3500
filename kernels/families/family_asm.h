/* Family asm: prebuilt kernels listed in manifests, launched by name with a packed argument block.
 *
 * The environment variable MOEFARM_ASM_DIR names the folder. Its layout is that of AITER's hsa/: one folder
 * per architecture, holding fmoe/<activation>/ and fmoe_2stages/ with manifests and code objects. A CPU
 * reads the folder of its device class and the folder `cpu`; its code objects are shared objects
 * (kernels/cpu/module_cpu.h). An NVIDIA GPU reads sm_90 and the like; scripts/build_asm.sh builds its code
 * objects from kernels/gpu/src/asm_stage1.hip. On both, weights are in row layout and stage 1 writes its
 * rows in sorted order. */
#pragma once

#include <stdint.h>

#define MF_ASM_FOLDER_ENV "MOEFARM_ASM_DIR"

/* Hash of all manifests below the folder and of the code they name; a changed kernel gives a new revision. 0
 * if there is no folder or no kernel. */
uint64_t mf_asm_hash(const char *folder);
