/* Reads a kernel's metadata from an AMD code object, and counts the matrix instructions in the object's code.
 * Compilers write the metadata as a note: a map in MessagePack (LLVM, AMDGPUUsage, code object metadata V3 to
 * V5). */
#pragma once

#include <stdint.h>

enum amd_matrix { AMD_MFMA_BF16, AMD_MFMA_F16, AMD_MFMA_FP8, AMD_MFMA_INT8, N_AMD_MATRIX };
extern const char *const amd_matrix_names[N_AMD_MATRIX];

struct amd_kernel {
    char name[32];
    int vgprs, agprs, sgprs; /* on gfx90a and later, vgprs includes agprs */
    int vgpr_spills, sgpr_spills;
    int lds, scratch; /* bytes that the kernel declares */
    int threads, wave;
    int matrix[N_AMD_MATRIX]; /* number of matrix instructions in the code of the whole object */
};

/* Reads the named kernel of the code object at `path`. Returns 0 on success, -ENOENT if there is no such
 * kernel, or -EINVAL if the file is unreadable or not a code object with metadata. */
int amd_object_read(const char *path, const char *name, struct amd_kernel *ret);
