/* The tests' runtimes of AMD (emulator/hip/runtime.h): a folder for each release. */
#pragma once

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HIP_RELEASE_FOLDER MF_BINARY_DIR "/tests/hip%d"

/* For processes that are started. A host's own runtime is not looked for: its names lie there as files that nobody can load. */
static inline void hip_release_use(int release)
{
    char folder[256];
    (void)snprintf(folder, sizeof(folder), HIP_RELEASE_FOLDER, release);
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", folder, 1), 0);
}

/* For this process, too: it begins anew, since the linker looks at its path only then. */
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

/* A fault that is to happen to one process, "KIND NAME N". The file goes when it has. */
static inline void hip_release_plan(const char *path, const char *fault)
{
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(fault, f), 0);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(setenv("FAKE_HIP_FAULT", path, 1), 0);
}
