/* A machine that misbehaves: what tests/support/farm/machine_shim.c, preloaded into a program, does to its files and its clock. The
 * orders lie in a file that the test and the programs map (MOEFARM_MACHINE); they may change at any time. */
#pragma once

#include <stdint.h>

struct machine {
    char folder[128]; /* whose files are watched: what is opened for writing below it */
    volatile int64_t
        writes; /* of watched files so far, over all programs; a truncation and a sync count too */
    volatile int64_t cut_at;  /* power fails at that one; 0: never */
    volatile int64_t has_cut; /* it has, and the files are what is left */
    uint64_t seed;            /* of what was on its way to the disk and arrived */
    volatile int64_t write_errno,
        read_only; /* ENOSPC, say: every watched write fails with it; read_only: EROFS, opening too */
    volatile int64_t wall_ms; /* added to the clock on the wall; no other clock moves */
};

#ifndef MACHINE_SHIM
#    include <check.h>
#    include <stdbool.h>
#    include <stdlib.h>
#    include <string.h>
#    include <sys/mman.h>
#    include <unistd.h>

/* Orders of a machine that behaves, for programs that are started while it is plugged in. */
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

static inline void machine_plug(bool in)
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
    machine_plug(false);
    (void)unlink(getenv("MOEFARM_MACHINE"));
    (void)munmap(m, sizeof(*m));
}
#endif
