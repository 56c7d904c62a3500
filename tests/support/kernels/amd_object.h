/* What a code object for AMD says of its kernel: the metadata note that compilers leave (LLVM, AMDGPUUsage, code object
 * metadata V3 to V5: a map in MessagePack), and which matrix instructions lie in its code. */
#pragma once

#include <stdint.h>

enum amd_matrix { AMD_MFMA_BF16, AMD_MFMA_F16, AMD_MFMA_FP8, AMD_MFMA_INT8, N_AMD_MATRIX };
extern const char *const amd_matrix_names[N_AMD_MATRIX];

struct amd_kernel {
    char name[32];
    int vgprs, agprs, sgprs; /* agprs are among vgprs on gfx90a and later */
    int vgpr_spills, sgpr_spills;
    int lds, scratch; /* bytes that the kernel declares itself */
    int threads, wave;
    int matrix[N_AMD_MATRIX]; /* of the whole object's code */
};

/* The kernel of that name in the code object at path. 0; -ENOENT: it has none such; -EINVAL: no such file, or no code object
 * with metadata. */
int amd_object_read(const char *path, const char *name, struct amd_kernel *ret);
