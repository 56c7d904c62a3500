/* Reads the metadata of a kernel from an AMD code object: the metadata note that compilers write (LLVM,
 * AMDGPUUsage, code object metadata V3 to V5: a map in MessagePack), and the matrix instructions in its code.
 */
#pragma once

#include <stdint.h>

enum amd_matrix { AMD_MFMA_BF16, AMD_MFMA_F16, AMD_MFMA_FP8, AMD_MFMA_INT8, N_AMD_MATRIX };
extern const char *const amd_matrix_names[N_AMD_MATRIX];

struct amd_kernel {
    char name[32];
    int vgprs, agprs, sgprs; /* agprs are included in vgprs on gfx90a and later */
    int vgpr_spills, sgpr_spills;
    int lds, scratch; /* bytes declared by the kernel */
    int threads, wave;
    int matrix[N_AMD_MATRIX]; /* in the code of the whole object */
};

/* Reads the named kernel of the code object at path. Returns 0; -ENOENT: no such kernel; -EINVAL: unreadable
 * file, or not a code object with metadata. */
int amd_object_read(const char *path, const char *name, struct amd_kernel *ret);
