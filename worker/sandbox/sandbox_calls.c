/* The calls that a runner has no use for, as a table, and the filter that comes of it. */
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

/* Who may make a call in spite of its row. */
enum { GPU = 1, FOREIGN = 2, SANITIZED = 4 };
/* When a row applies, by the low half of an argument. */
enum test { ALWAYS, IS, HAS, IS_NOT, READS_AND_CUTS };

struct row {
    int call, error;
    unsigned spared;
    enum test test;
    int argument;
    uint32_t value;
};

/* clang-format off */
static const struct row rows[] = {
    /* the network: AF_UNIX for a GPU's driver, which listens for itself; it reaches nobody by it */
    {SYS_socket,            EACCES, 0,             IS_NOT, 0, AF_UNIX},
    {SYS_socket,            EACCES, GPU,           ALWAYS, 0, 0},
    {SYS_connect,           EACCES, 0,             ALWAYS, 0, 0},
    {SYS_sendto,            EACCES, 0,             IS_NOT, 4, 0}, /* to an address */
    {SYS_io_uring_setup,    EPERM,  0,             ALWAYS, 0, 0}, /* its calls pass by every filter */
    {SYS_io_uring_enter,    EPERM,  0,             ALWAYS, 0, 0},
    {SYS_io_uring_register, EPERM,  0,             ALWAYS, 0, 0},
    /* programs: a GPU's runner starts the compile helper, which Landlock picks out */
    {SYS_execve,            EACCES, GPU | FOREIGN, ALWAYS, 0, 0},
    {SYS_execveat,          EACCES, GPU | FOREIGN, ALWAYS, 0, 0},
    /* other processes */
    {SYS_ptrace,            EPERM,  SANITIZED,     ALWAYS, 0, 0},
    {SYS_process_vm_readv,  EPERM,  SANITIZED,     ALWAYS, 0, 0},
    {SYS_process_vm_writev, EPERM,  0,             ALWAYS, 0, 0},
    {SYS_kcmp,              EPERM,  0,             ALWAYS, 0, 0},
    {SYS_pidfd_getfd,       EPERM,  0,             ALWAYS, 0, 0},
    {SYS_ioctl,             EPERM,  0,             IS,     1, TIOCSTI}, /* words into a terminal's mouth */
    /* files that Landlock does not look at: whose they are and who may */
    {SYS_fchownat,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fchown,            EPERM,  0,             ALWAYS, 0, 0},
    {SYS_setxattr,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_lsetxattr,         EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fsetxattr,         EPERM,  0,             ALWAYS, 0, 0},
    {SYS_removexattr,       EPERM,  0,             ALWAYS, 0, 0},
    {SYS_lremovexattr,      EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fremovexattr,      EPERM,  0,             ALWAYS, 0, 0},
    {SYS_fchmodat,          EPERM,  GPU | FOREIGN, ALWAYS, 0, 0}, /* compilers make their files so */
    {SYS_fchmod,            EPERM,  GPU | FOREIGN, ALWAYS, 0, 0},
#ifdef SYS_chmod
    {SYS_chmod,             EPERM,  GPU | FOREIGN, ALWAYS, 0, 0},
    {SYS_chown,             EPERM,  0,             ALWAYS, 0, 0},
    {SYS_lchown,            EPERM,  0,             ALWAYS, 0, 0},
#endif
    /* and what it did not look at before Linux 6.2: cutting a file short that it lets be read */
    {SYS_truncate,          EPERM,  0,             ALWAYS, 0, 0},
    {SYS_openat,            EPERM,  0,             READS_AND_CUTS, 2, 0},
#ifdef SYS_open
    {SYS_open,              EPERM,  0,             READS_AND_CUTS, 1, 0},
#endif
    {SYS_openat2,           ENOSYS, 0,             ALWAYS, 0, 0}, /* its flags cannot be seen; libc takes openat then */
    {SYS_open_by_handle_at, EPERM,  0,             ALWAYS, 0, 0},
    /* namespaces and mounts: a world without these rules */
    {SYS_clone,             EPERM,  0,             HAS,    0, NAMESPACES},
    {SYS_clone3,            ENOSYS, 0,             ALWAYS, 0, 0}, /* its flags cannot be seen; libc takes clone then */
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
    /* the machine, and wide doors of the kernel's */
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

#define ROW_MAX 6 /* instructions of a row */
#define ALL_MAX (ROW_MAX * MF_ARRAY_LEN(rows) + 16)

struct program {
    struct sock_filter code[ALL_MAX];
    unsigned short n;
};

static void add(struct program *p, uint16_t code, uint32_t k, uint8_t if_so, uint8_t else_so)
{
    p->code[p->n++] = (struct sock_filter){.code = code, .k = k, .jt = if_so, .jf = else_so};
}

static void load(struct program *p, size_t at)
{
    add(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)at, 0, 0);
}

static void answer(struct program *p, uint32_t what)
{
    add(p, BPF_RET | BPF_K, what, 0, 0);
}

/* With the call's number loaded before and behind it. */
static void add_row(struct program *p, const struct row *r)
{
    uint32_t no = SECCOMP_RET_ERRNO | (uint32_t)r->error;
    if (r->test == ALWAYS) {
        add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, 1);
        answer(p, no);
        return;
    }
    bool cuts = r->test == READS_AND_CUTS;
    add(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, cuts ? 5 : 4);
    load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)r->argument); /* little-endian: the low half */
    if (cuts)
        add(p, BPF_ALU | BPF_AND | BPF_K, O_ACCMODE | O_TRUNC, 0, 0);
    uint16_t jump = BPF_JMP | BPF_K | (r->test == HAS ? BPF_JSET : BPF_JEQ);
    add(p, jump, cuts ? O_RDONLY | O_TRUNC : r->value, r->test == IS_NOT, r->test != IS_NOT);
    answer(p, no);
    load(p, offsetof(struct seccomp_data, nr));
}

static unsigned spared_of(bool gpu, bool foreign)
{
    unsigned spared = (gpu ? GPU : 0) | (foreign ? FOREIGN : 0);
#ifdef __SANITIZE_ADDRESS__ /* its search for leaks looks at its own threads from outside */
    spared |= SANITIZED;
#endif
    return spared;
}

int mf_sandbox_calls(bool gpu, bool foreign)
{
    struct program p = {.n = 0};
    unsigned spared = spared_of(gpu, foreign);
    if (ARCH == 0)
        return -ENOSYS;
    load(&p, offsetof(struct seccomp_data, arch));
    add(&p, BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    answer(&p, SECCOMP_RET_KILL_PROCESS);
    load(&p, offsetof(struct seccomp_data, nr));
#ifdef __x86_64__
    add(&p, BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    answer(&p, SECCOMP_RET_ERRNO | EPERM);
#endif
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        if (!(rows[i].spared & spared))
            add_row(&p, &rows[i]);
    }
    answer(&p, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = {.len = p.n, .filter = p.code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        return errno == EINVAL || errno == ENOSYS ? -ENOSYS : -errno;
    return 0;
}
