/* seccomp filter of a runner: a table of denied system calls, compiled to a BPF program. */
#include "worker/sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/sched.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "common/base/cleanup.h"
#include "worker/sandbox/bpf.h"

#define NAMESPACES                                                                             \
    (CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | \
     CLONE_NEWCGROUP)

/* Calls that the headers of Debian 12 lack, with the first version of Linux that has them. Their numbers are
 * the same on all architectures. */
#define CALL_FCHMODAT2      452 /* 6.6 */
#define CALL_SETXATTRAT     463 /* 6.13 */
#define CALL_REMOVEXATTRAT  466 /* 6.13 */
#define CALL_OPEN_TREE_ATTR 467 /* 6.15 */
#define CALL_FILE_SETATTR   469 /* 6.17 */

/* Kinds of runners that may make the call although a row denies it. COMPILES: runners on GPUs and in Python
 * interpreters. */
enum { COMPILES = 1, SANITIZED = 2 };
/* Condition on the low 32 bits of an argument, after a bitwise and with the mask. */
enum test { ALWAYS, IS, IS_NOT };
#define EACH UINT32_MAX

#define NOTHING 0 /* error: the call returns 0 and does nothing */

struct row {
    int call, error;
    unsigned exempt;
    enum test test;
    int argument;
    uint32_t mask, value;
};

/* clang-format off */
static const struct row rows[] = {
    /* Network. GPU drivers and multiprocessing create AF_UNIX sockets and listen on them. No runner may
     * connect. */
    {SYS_socket,            EACCES, 0,             IS_NOT, 0, EACH, AF_UNIX},
    {SYS_socket,            EACCES, COMPILES,      ALWAYS, 0, 0, 0},
    {SYS_connect,           EACCES, 0,             ALWAYS, 0, 0, 0},
    /* A datagram socket can send descriptors to any path, and a filter cannot read the address of sendmsg.
     * The mask lets only SOCK_STREAM and SOCK_SEQPACKET pass. */
    {SYS_socket,            EACCES, 0,             IS_NOT, 1, 0xb, SOCK_STREAM},
    {SYS_socketpair,        EACCES, 0,             IS_NOT, 1, 0xb, SOCK_STREAM},
    /* denied if the call has an address */
    {SYS_sendto,            EACCES, 0,             IS_NOT, 5, EACH, 0},
    /* io_uring operations bypass seccomp filters */
    {SYS_io_uring_setup,    EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_io_uring_enter,    EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_io_uring_register, EPERM,  0,             ALWAYS, 0, 0, 0},
    /* Programs. Runners that compile start helpers, compilers and the interpreter. Landlock denies them all
     * other programs. */
    {SYS_execve,            EACCES, COMPILES,      ALWAYS, 0, 0, 0},
    {SYS_execveat,          EACCES, COMPILES,      ALWAYS, 0, 0, 0},
    /* Calls that affect other processes. */
    {SYS_ptrace,            EPERM,  SANITIZED,     ALWAYS, 0, 0, 0},
    {SYS_process_vm_readv,  EPERM,  SANITIZED,     ALWAYS, 0, 0, 0},
    {SYS_process_vm_writev, EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_kcmp,              EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_pidfd_getfd,       EPERM,  0,             ALWAYS, 0, 0, 0},
    /* injects terminal input */
    {SYS_ioctl,             EPERM,  0,             IS,     1, EACH, TIOCSTI},
    /* Calls that change the owner, mode, times or attributes of files, which Landlock does not cover. */
    {SYS_fchownat,          EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_fchown,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_setxattr,          EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_lsetxattr,         EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_fsetxattr,         EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_removexattr,       EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_lremovexattr,      EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_fremovexattr,      EPERM,  0,             ALWAYS, 0, 0, 0},
    {CALL_SETXATTRAT,       EPERM,  0,             ALWAYS, 0, 0, 0},
    {CALL_REMOVEXATTRAT,    EPERM,  0,             ALWAYS, 0, 0, 0},
    {CALL_FILE_SETATTR,     EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_ioctl,             EPERM,  0,             IS,     1, EACH, FS_IOC_SETFLAGS},
    {SYS_ioctl,             EPERM,  0,             IS,     1, EACH, FS_IOC_FSSETXATTR},
    {SYS_fcntl,             EPERM,  0,             IS,     1, EACH, F_SETLEASE},
    {SYS_fchmodat,          EPERM,  COMPILES,      ALWAYS, 0, 0, 0},
    {SYS_fchmod,            EPERM,  COMPILES,      ALWAYS, 0, 0, 0},
    {CALL_FCHMODAT2,        EPERM,  COMPILES,      ALWAYS, 0, 0, 0},
    {SYS_utimensat,         EPERM,  COMPILES,      ALWAYS, 0, 0, 0},
#ifdef SYS_chmod
    {SYS_chmod,             EPERM,  COMPILES,      ALWAYS, 0, 0, 0},
    {SYS_utime,             EPERM,  COMPILES,      ALWAYS, 0, 0, 0},
    {SYS_utimes,            EPERM,  COMPILES,      ALWAYS, 0, 0, 0},
    {SYS_futimesat,         EPERM,  COMPILES,      ALWAYS, 0, 0, 0},
    {SYS_chown,             EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_lchown,            EPERM,  0,             ALWAYS, 0, 0, 0},
#endif
    /* GPU runtimes and compilers change the mode and the times of files that they create, and some fail if
     * they cannot. For them, the calls succeed without an effect. */
    {SYS_fchmodat,          NOTHING, 0,            ALWAYS, 0, 0, 0},
    {SYS_fchmod,            NOTHING, 0,            ALWAYS, 0, 0, 0},
    {CALL_FCHMODAT2,        NOTHING, 0,            ALWAYS, 0, 0, 0},
    {SYS_utimensat,         NOTHING, 0,            ALWAYS, 0, 0, 0},
#ifdef SYS_chmod
    {SYS_chmod,             NOTHING, 0,            ALWAYS, 0, 0, 0},
    {SYS_utime,             NOTHING, 0,            ALWAYS, 0, 0, 0},
    {SYS_utimes,            NOTHING, 0,            ALWAYS, 0, 0, 0},
    {SYS_futimesat,         NOTHING, 0,            ALWAYS, 0, 0, 0},
#endif
    /* Objects that belong to no folder. */
    {SYS_shmget,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_shmat,             EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_shmctl,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_semget,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_semop,             EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_semtimedop,        EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_semctl,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_msgget,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_msgsnd,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_msgrcv,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_msgctl,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_mq_open,           EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_mq_unlink,         EPERM,  0,             ALWAYS, 0, 0, 0},
    /* Before version 3 (Linux 6.2), Landlock does not prevent truncation of readable files. */
    {SYS_truncate,          EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_openat,            EPERM,  0,             IS,     2, O_ACCMODE | O_TRUNC, O_RDONLY | O_TRUNC},
#ifdef SYS_open
    {SYS_open,              EPERM,  0,             IS,     1, O_ACCMODE | O_TRUNC, O_RDONLY | O_TRUNC},
#endif
    /* ENOSYS makes callers use openat, because a filter cannot read the flags of openat2 */
    {SYS_openat2,           ENOSYS, 0,             ALWAYS, 0, 0, 0},
    {SYS_open_by_handle_at, EPERM,  0,             ALWAYS, 0, 0, 0},
    /* Namespaces and mounts, which would bypass these rules. */
    {SYS_clone,             EPERM,  0,             IS_NOT, 0, NAMESPACES, 0},
    /* ENOSYS makes callers use clone, because a filter cannot read the flags of clone3 */
    {SYS_clone3,            ENOSYS, 0,             ALWAYS, 0, 0, 0},
    {SYS_unshare,           EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_setns,             EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_mount,             EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_umount2,           EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_pivot_root,        EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_chroot,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_open_tree,         EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_move_mount,        EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_fsopen,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_fsconfig,          EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_fsmount,           EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_fspick,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_mount_setattr,     EPERM,  0,             ALWAYS, 0, 0, 0},
    {CALL_OPEN_TREE_ATTR,   EPERM,  0,             ALWAYS, 0, 0, 0},
    /* Machine configuration and kernel interfaces with a large attack surface. */
    {SYS_bpf,               EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_perf_event_open,   EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_userfaultfd,       EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_keyctl,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_add_key,           EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_request_key,       EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_fanotify_init,     EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_quotactl,          EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_acct,              EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_swapon,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_swapoff,           EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_reboot,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_syslog,            EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_sethostname,       EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_setdomainname,     EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_settimeofday,      EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_clock_settime,     EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_adjtimex,          EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_init_module,       EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_finit_module,      EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_delete_module,     EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_kexec_load,        EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_kexec_file_load,   EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_quotactl_fd,       EPERM,  0,             ALWAYS, 0, 0, 0},
#ifdef SYS_iopl
    {SYS_iopl,              EPERM,  0,             ALWAYS, 0, 0, 0},
    {SYS_ioperm,            EPERM,  0,             ALWAYS, 0, 0, 0},
#endif
};
/* clang-format on */

/* Adds the instructions of a row. The accumulator holds the system call number before and after them. */
static void add_row(struct mf_bpf *p, const struct row *r)
{
    uint32_t no = SECCOMP_RET_ERRNO | (uint32_t)r->error;
    if (r->test == ALWAYS) {
        mf_bpf_add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, 1);
        mf_bpf_add(p, BPF_RET | BPF_K, no, 0, 0);
        return;
    }
    mf_bpf_add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, 5);
    mf_bpf_load_argument(p, r->argument);
    mf_bpf_add(p, BPF_ALU | BPF_AND | BPF_K, r->mask, 0, 0);
    mf_bpf_add(p, BPF_JMP | BPF_JEQ | BPF_K, r->value, r->test == IS_NOT, r->test != IS_NOT);
    mf_bpf_add(p, BPF_RET | BPF_K, no, 0, 0);
    mf_bpf_load_call(p);
}

static unsigned exempt_of(bool compiles)
{
    unsigned exempt = compiles ? COMPILES : 0;
/* allowed because LeakSanitizer inspects the threads of its own process with ptrace */
#ifdef __SANITIZE_ADDRESS__
    exempt |= SANITIZED;
#endif
    return exempt;
}

int mf_sandbox_calls(bool compiles)
{
    struct mf_bpf p;
    unsigned exempt = exempt_of(compiles);
    mf_bpf_begin(&p);
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        if (!(rows[i].exempt & exempt))
            add_row(&p, &rows[i]);
    }
    return mf_bpf_install(&p);
}
