/* Injects faults into files and the clock. Tests preload tests/support/farm/machine_shim.c into a program and
 * control it by settings in a file that the test and the program map (MOEFARM_MACHINE). The settings may
 * change at any time. */
#pragma once

#include <stdint.h>

struct machine {
    char folder[128]; /* the shim watches files that are opened for writing below this folder */
    /* number of writes, truncations and syncs of watched files so far, in all programs */
    volatile int64_t writes;
    volatile int64_t cut_at;  /* number of the write at which the power fails; 0: never */
    volatile int64_t has_cut; /* set once the power has failed and the files have the contents of the disk */
    uint64_t seed;            /* determines which pending writes reach the disk */
    volatile int64_t write_errno,
        /* write_errno: every write to a watched file fails with this error, for example ENOSPC. read_only:
         * writes and opens for writing fail with EROFS. */
        read_only;
    volatile int64_t wall_ms; /* added to the wall clock, but not to the monotonic clock */
};

#ifndef MACHINE_SHIM
#    include <check.h>
#    include <stdbool.h>
#    include <stdio.h>
#    include <stdlib.h>
#    include <string.h>
#    include <sys/mman.h>
#    include <unistd.h>

/* Creates settings without faults. They apply to programs that are started while machine_preload(true) is in
 * effect. */
static inline struct machine *machine_new(const char *folder)
{
    char path[] = "/tmp/moefarm-machine.XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, sizeof(struct machine)), 0);
    struct machine *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert(m != MAP_FAILED);
    (void)close(fd);
    (void)strncpy(m->folder, folder, sizeof(m->folder) - 1);
    (void)setenv("MOEFARM_MACHINE", path, 1);
    return m;
}

/* Returns true if programs can be started with the shim. Otherwise prints the reason and returns false. */
static inline bool machine_is_available(void)
{
#    ifdef __SANITIZE_ADDRESS__
    (void)printf("skipped: AddressSanitizer does not allow a preloaded library\n");
    return false;
#    else
    return true;
#    endif
}

static inline void machine_preload(bool in)
{
    if (in)
        (void)setenv("LD_PRELOAD", MF_BINARY_DIR "/tests/machine_shim.so", 1);
    else
        (void)unsetenv("LD_PRELOAD");
}

static inline void machine_free(struct machine *m)
{
    if (!m)
        return;
    machine_preload(false);
    (void)unlink(getenv("MOEFARM_MACHINE"));
    (void)munmap(m, sizeof(*m));
}
#endif
