/* The tests' runtimes of AMD (emulator/hip/runtime.h): a folder for each release. */
#pragma once

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define HIP_RELEASE_FOLDER MF_BINARY_DIR "/tests/hip%d"

/* For processes that are started. */
static inline void hip_release_use(int release)
{
    char folder[256];
    (void)snprintf(folder, sizeof(folder), HIP_RELEASE_FOLDER, release);
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", folder, 1), 0);
}

/* For this process, too: what is loaded is found by its soname. */
static inline void hip_release_load(int release)
{
    char path[256];
    hip_release_use(release);
    (void)snprintf(path, sizeof(path), HIP_RELEASE_FOLDER "/libamdhip64.so.%d", release, release);
    ck_assert_msg(dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL, "%s", dlerror());
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
