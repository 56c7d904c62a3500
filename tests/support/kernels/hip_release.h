/* Selects a fake HIP runtime (emulator/hip/runtime.h) for a test. Each release of the runtime has its own
 * folder. */
#pragma once

#include "support/text_file.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HIP_RELEASE_FOLDER MF_BINARY_DIR "/tests/hip%d"

/* Selects the release for child processes. Its folder also has unloadable files with the names of the real
 * libraries, so that the dynamic linker never finds the host's own runtime. */
static inline void hip_release_use(int release)
{
    char folder[256];
    (void)snprintf(folder, sizeof(folder), HIP_RELEASE_FOLDER, release);
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", folder, 1), 0);
}

/* Selects the release for this process, too. Executes the program again, because the dynamic linker reads
 * LD_LIBRARY_PATH only at the start. */
static inline void hip_release_enter(int release, char **argv)
{
    char folder[256];
    const char *now = getenv("LD_LIBRARY_PATH");
    (void)snprintf(folder, sizeof(folder), HIP_RELEASE_FOLDER, release);
    if (now && strcmp(now, folder) == 0)
        return;
    if (setenv("LD_LIBRARY_PATH", folder, 1) == 0)
        (void)execv("/proc/self/exe", argv);
    abort();
}

/* Plans a fault "KIND NAME N" for one process. The fake runtime removes the file when the fault happens. */
static inline void hip_release_plan(const char *path, const char *fault)
{
    text_file_write(path, fault);
    ck_assert_int_eq(setenv("FAKE_HIP_FAULT", path, 1), 0);
}
