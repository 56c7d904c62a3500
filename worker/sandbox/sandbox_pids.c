/* seccomp filter for runners without a PID namespace: refuses calls that name another process. */
#include "worker/sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/sockios.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "worker/sandbox/bpf.h"

#define SCOPES         6 /* first version of Landlock that confines signals to the runner and its children */
#define IOPRIO_PROCESS 1 /* IOPRIO_WHO_PROCESS */

/* Refused calls. PID: unless the argument is 0, which names the caller, or its own pid. */
enum test { PID, IS, IS_NOT, ALWAYS };

/* clang-format off */
static const struct row {
    int call;
    enum test test;
    int argument;
    uint32_t value;
    bool signal; /* not needed if Landlock confines signals */
} rows[] = {
    {SYS_prlimit64,          PID,    0, 0, false},
    {SYS_sched_setaffinity,  PID,    0, 0, false},
    {SYS_sched_setscheduler, PID,    0, 0, false},
    {SYS_sched_setparam,     PID,    0, 0, false},
    {SYS_sched_setattr,      PID,    0, 0, false},
    {SYS_setpriority,        IS_NOT, 0, PRIO_PROCESS, false},
    {SYS_setpriority,        PID,    1, 0, false},
    {SYS_ioprio_set,         IS_NOT, 0, IOPRIO_PROCESS, false},
    {SYS_ioprio_set,         PID,    1, 0, false},
#ifndef __SANITIZE_ADDRESS__ /* LeakSanitizer reads the memory of its own process */
    {SYS_process_vm_readv,   PID,    0, 0, false},
#endif
    {SYS_process_vm_writev,  PID,    0, 0, false},
    {SYS_move_pages,         PID,    0, 0, false},
    {SYS_migrate_pages,      PID,    0, 0, false},
    /* choose the process that gets the signals of a descriptor */
    {SYS_fcntl,              IS,     1, F_SETOWN, false},
    {SYS_fcntl,              IS,     1, F_SETOWN_EX, false},
    {SYS_ioctl,              IS,     1, FIOSETOWN, false},
    {SYS_ioctl,              IS,     1, SIOCSPGRP, false},
    {SYS_kill,               PID,    0, 0, true},
    {SYS_tkill,              PID,    0, 0, true},
    {SYS_tgkill,             PID,    0, 0, true},
    {SYS_rt_sigqueueinfo,    PID,    0, 0, true},
    {SYS_rt_tgsigqueueinfo,  PID,    0, 0, true},
    {SYS_pidfd_send_signal,  ALWAYS, 0, 0, true},
};
/* clang-format on */

/* Adds the instructions of a row. The accumulator holds the system call number before and after them. */
static void add_row(struct mf_bpf *p, const struct row *r, const uint32_t *pids, uint8_t n_pids)
{
    const uint32_t *values = r->test == PID ? pids : &r->value;
    uint8_t n = r->test == PID ? n_pids : r->test == ALWAYS ? 0 : 1;
    mf_bpf_add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, (uint8_t)(n + 3));
    mf_bpf_load_argument(p, r->argument);
    for (uint8_t i = 0; i < n; i++) {
        /* A jump that is taken for an allowed value skips the other values and the refusal. */
        uint8_t skip = (uint8_t)(n - i);
        mf_bpf_add(p, BPF_JMP | BPF_JEQ | BPF_K, values[i], r->test == IS ? 0 : skip,
                   r->test == IS ? skip : 0);
    }
    mf_bpf_add(p, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM, 0, 0);
    mf_bpf_load_call(p);
}

int mf_sandbox_pids(const struct mf_sandbox *s)
{
    struct mf_bpf p;
    const uint32_t pids[] = {0, (uint32_t)getpid()};
    if (s->off || s->pid_namespace)
        return 0;
    bool scoped = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) >= SCOPES;
    mf_bpf_begin(&p);
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        if (!scoped || !rows[i].signal)
            add_row(&p, &rows[i], pids, MF_ARRAY_LEN(pids));
    }
    int r = mf_bpf_install(&p);
    return r == -ENOSYS ? 0 : r;
}
