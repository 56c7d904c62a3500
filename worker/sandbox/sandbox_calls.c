/* seccomp filter of a runner: a table of denied system calls, compiled to a BPF program. */
#include "worker/sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "common/base/cleanup.h"

#if defined(__x86_64__)
#    define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#    define ARCH AUDIT_ARCH_AARCH64
#else
#    define ARCH 0
#endif
#define X32_BIT 0x40000000u
#define NAMESPACES                                                                             \
    (CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | \
     CLONE_NEWCGROUP)

/* Kinds of runners that may make the call although a row denies it. */
enum { GPU = 1, FOREIGN = 2, SANITIZED = 4 };
/* Condition on the low 32 bits of an argument. */
enum test { ALWAYS, IS, HAS, IS_NOT, IS_READ_TRUNC };

struct row {
    int call, error;
    unsigned exempt;
    enum test test;
    int argument;
    uint32_t value;
};

/* clang-format off */
static const struct row rows[] = {
    /* Network. A GPU driver must create an AF_UNIX socket and listen on it. No runner may connect. */
    {SYS_socket,            EACCES, 0,             IS_NOT, 0, AF_UNIX},
    {SYS_socket,            EACCES, GPU,           ALWAYS, 0, 0},
    {SYS_connect,           EACCES, 0,             ALWAYS, 0, 0},
    {SYS_sendto,            EACCES, 0,             IS_NOT, 4, 0}, /* denied if the call has an address */
    /* io_uring operations bypass seccomp filters */
    {SYS_io_uring_setup,    EPERM,  0,             ALWAYS, 0, 0},
    {SYS_io_uring_enter,    EPERM,  0,             ALWAYS, 0, 0},
    {SYS_io_uring_register, EPERM,  0,             ALWAYS, 0, 0},
    /* Programs. A GPU runner must execute the compile helper. Landlock denies it all programs except the
     * helper. */
    {SYS_execve,            EACCES, GPU | FOREIGN, ALWAYS, 0, 0},
    {SYS_execveat,          EACCES, GPU | FOREIGN, ALWAYS, 0, 0},
    /* Calls that affect other processes. */
    {SYS_ptrace,            EPERM,  SANITIZED,     ALWAYS, 0, 0},
    {SYS_process_vm_readv,  EPERM,  SANITIZED,     ALWAYS, 0, 0},
    {SYS_process_vm_writev, EPERM,  0,             ALWAYS, 0, 0},
    {SYS_kcmp,              EPERM,  0,             ALWAYS, 0, 0},
    {SYS_pidfd_getfd,       EPERM,  0,             ALWAYS, 0, 0},
    {SYS_ioctl,             EPERM,  0,             IS,     1, TIOCSTI}, /* TIOCSTI injects terminal input */
    /* Calls that change the owner or permissions of files, which Landlock does not cover. */
    {SYS_fchownat,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fchown,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_setxattr,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_lsetxattr,         EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fsetxattr,         EPERM,  0,             ALWAYS, 0, 0},
    {SYS_removexattr,       EPERM,  0,             ALWAYS, 0, 0},
    {SYS_lremovexattr,      EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fremovexattr,      EPERM,  0,             ALWAYS, 0, 0},
    /* GPU and foreign runners may make these calls, because compilers change the mode of files that they
     * create. */
    {SYS_fchmodat,          EPERM,  GPU | FOREIGN, ALWAYS, 0, 0},
    {SYS_fchmod,            EPERM,  GPU | FOREIGN, ALWAYS, 0, 0},
#ifdef SYS_chmod
    {SYS_chmod,             EPERM,  GPU | FOREIGN, ALWAYS, 0, 0},
    {SYS_chown,             EPERM,  0,             ALWAYS, 0, 0},
    {SYS_lchown,            EPERM,  0,             ALWAYS, 0, 0},
#endif
    /* Before version 3 (Linux 6.2), Landlock does not prevent truncation of readable files. */
    {SYS_truncate,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_openat,            EPERM,  0,             IS_READ_TRUNC, 2, 0},
#ifdef SYS_open
    {SYS_open,              EPERM,  0,             IS_READ_TRUNC, 1, 0},
#endif
    /* ENOSYS makes callers use openat, because a filter cannot read the flags of openat2 */
    {SYS_openat2,           ENOSYS, 0,             ALWAYS, 0, 0},
    {SYS_open_by_handle_at, EPERM,  0,             ALWAYS, 0, 0},
    /* Namespaces and mounts, which would bypass these rules. */
    {SYS_clone,             EPERM,  0,             HAS,    0, NAMESPACES},
    /* ENOSYS makes callers use clone, because a filter cannot read the flags of clone3 */
    {SYS_clone3,            ENOSYS, 0,             ALWAYS, 0, 0},
    {SYS_unshare,           EPERM,  0,             ALWAYS, 0, 0},
    {SYS_setns,             EPERM,  0,             ALWAYS, 0, 0},
    {SYS_mount,             EPERM,  0,             ALWAYS, 0, 0},
    {SYS_umount2,           EPERM,  0,             ALWAYS, 0, 0},
    {SYS_pivot_root,        EPERM,  0,             ALWAYS, 0, 0},
    {SYS_chroot,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_open_tree,         EPERM,  0,             ALWAYS, 0, 0},
    {SYS_move_mount,        EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fsopen,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fsconfig,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fsmount,           EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fspick,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_mount_setattr,     EPERM,  0,             ALWAYS, 0, 0},
    /* Machine configuration and kernel interfaces with a large attack surface. */
    {SYS_bpf,               EPERM,  0,             ALWAYS, 0, 0},
    {SYS_perf_event_open,   EPERM,  0,             ALWAYS, 0, 0},
    {SYS_userfaultfd,       EPERM,  0,             ALWAYS, 0, 0},
    {SYS_keyctl,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_add_key,           EPERM,  0,             ALWAYS, 0, 0},
    {SYS_request_key,       EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fanotify_init,     EPERM,  0,             ALWAYS, 0, 0},
    {SYS_quotactl,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_acct,              EPERM,  0,             ALWAYS, 0, 0},
    {SYS_swapon,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_swapoff,           EPERM,  0,             ALWAYS, 0, 0},
    {SYS_reboot,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_syslog,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_sethostname,       EPERM,  0,             ALWAYS, 0, 0},
    {SYS_setdomainname,     EPERM,  0,             ALWAYS, 0, 0},
    {SYS_settimeofday,      EPERM,  0,             ALWAYS, 0, 0},
    {SYS_clock_settime,     EPERM,  0,             ALWAYS, 0, 0},
    {SYS_adjtimex,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_init_module,       EPERM,  0,             ALWAYS, 0, 0},
    {SYS_finit_module,      EPERM,  0,             ALWAYS, 0, 0},
    {SYS_delete_module,     EPERM,  0,             ALWAYS, 0, 0},
    {SYS_kexec_load,        EPERM,  0,             ALWAYS, 0, 0},
#ifdef SYS_iopl
    {SYS_iopl,              EPERM,  0,             ALWAYS, 0, 0},
    {SYS_ioperm,            EPERM,  0,             ALWAYS, 0, 0},
#endif
};
/* clang-format on */

#define ROW_MAX 6 /* maximum number of BPF instructions per row */
#define ALL_MAX (ROW_MAX * MF_ARRAY_LEN(rows) + 16)

struct program {
    struct sock_filter code[ALL_MAX];
    unsigned short n;
};

static void add(struct program *p, uint16_t code, uint32_t k, uint8_t jump_true, uint8_t jump_false)
{
    p->code[p->n++] = (struct sock_filter){.code = code, .k = k, .jt = jump_true, .jf = jump_false};
}

static void load(struct program *p, size_t at)
{
    add(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)at, 0, 0);
}

static void add_return(struct program *p, uint32_t action)
{
    add(p, BPF_RET | BPF_K, action, 0, 0);
}

/* Adds the instructions of a row. The accumulator holds the system call number before and after them. */
static void add_row(struct program *p, const struct row *r)
{
    uint32_t no = SECCOMP_RET_ERRNO | (uint32_t)r->error;
    if (r->test == ALWAYS) {
        add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, 1);
        add_return(p, no);
        return;
    }
    bool truncates = r->test == IS_READ_TRUNC;
    add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, truncates ? 5 : 4);
    /* low half of the argument on little-endian machines */
    load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)r->argument);
    if (truncates)
        add(p, BPF_ALU | BPF_AND | BPF_K, O_ACCMODE | O_TRUNC, 0, 0);
    uint16_t jump = BPF_JMP | BPF_K | (r->test == HAS ? BPF_JSET : BPF_JEQ);
    add(p, jump, truncates ? O_RDONLY | O_TRUNC : r->value, r->test == IS_NOT, r->test != IS_NOT);
    add_return(p, no);
    load(p, offsetof(struct seccomp_data, nr));
}

static unsigned exempt_of(bool gpu, bool foreign)
{
    unsigned exempt = (gpu ? GPU : 0) | (foreign ? FOREIGN : 0);
/* allowed because LeakSanitizer inspects the threads of its own process with ptrace */
#ifdef __SANITIZE_ADDRESS__
    exempt |= SANITIZED;
#endif
    return exempt;
}

int mf_sandbox_calls(bool gpu, bool foreign)
{
    struct program p = {.n = 0};
    unsigned exempt = exempt_of(gpu, foreign);
    if (ARCH == 0)
        return -ENOSYS;
    load(&p, offsetof(struct seccomp_data, arch));
    add(&p, BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    add_return(&p, SECCOMP_RET_KILL_PROCESS);
    load(&p, offsetof(struct seccomp_data, nr));
#ifdef __x86_64__
    add(&p, BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    add_return(&p, SECCOMP_RET_ERRNO | EPERM);
#endif
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        if (!(rows[i].exempt & exempt))
            add_row(&p, &rows[i]);
    }
    add_return(&p, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = {.len = p.n, .filter = p.code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        return errno == EINVAL || errno == ENOSYS ? -ENOSYS : -errno;
    return 0;
}
