/* Selects a fake HIP runtime (emulator/hip/runtime.h) for a test. Each release of the runtime has its own
 * folder, laid out as ROCm. */
#pragma once

#include "support/text_file.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#define HIP_RELEASE_FOLDER MF_BINARY_DIR "/tests/hip%d"

/* Selects the release for this process and its children, unless they have already loaded another. */
static inline void hip_release_use(int release)
{
    char folder[256];
    (void)snprintf(folder, sizeof(folder), HIP_RELEASE_FOLDER, release);
    if (setenv("ROCM_PATH", folder, 1) != 0)
        abort();
}

/* Plans a fault "KIND NAME N" for one process. The fake runtime removes the file when the fault happens. */
static inline void hip_release_plan(const char *path, const char *fault)
{
    text_file_write(path, fault);
    ck_assert_int_eq(setenv("FAKE_HIP_FAULT", path, 1), 0);
}
