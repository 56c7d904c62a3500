/* Loads the libraries of the GPU vendors at run time, so that moefarm needs none of them to build or start.
 *
 * Search order: first the folder that an environment variable names (ROCM_PATH; CUDA_PATH, CUDA_HOME), newest
 * version first. For NVRTC, then the folders of pip's packages in the Python environment that contains this
 * program, and in the active one (VIRTUAL_ENV). Then, for each version from the newest to the oldest, the
 * dynamic linker's search path and the folders in which the vendor's packages install. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum mf_vendor_library {
    MF_HIP_RUNTIME,
    MF_HIP_COMPILER,
    MF_CUDA_DRIVER,
    MF_CUDA_COMPILER,
};

/* Returns true if the library has the functions that the caller needs. */
typedef bool (*mf_library_accept_fn)(void *library, void *context);

/* Returns the handle of the first library that `accept` accepts; with NULL, of the first that loads. `flags`
 * are those of dlopen. Returns NULL if there is none, with a sentence in why that names the files and says
 * where to get them. Libraries are never unloaded, because they may have started threads. */
void *mf_vendor_library_open(enum mf_vendor_library which, int flags, mf_library_accept_fn accept,
                             void *context, char *why, size_t why_cap);
