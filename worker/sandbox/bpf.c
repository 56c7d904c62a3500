#include "worker/sandbox/bpf.h"

#include <assert.h>
#include <errno.h>
#include <linux/audit.h>
#include <stddef.h>
#include <sys/prctl.h>

#if defined(__x86_64__)
#    define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#    define ARCH AUDIT_ARCH_AARCH64
#else
#    define ARCH 0
#endif
#define X32_BIT 0x40000000u

void mf_bpf_add(struct mf_bpf *p, uint16_t code, uint32_t k, uint8_t jump_true, uint8_t jump_false)
{
    assert(p->n < MF_BPF_MAX);
    p->code[p->n++] = (struct sock_filter){.code = code, .k = k, .jt = jump_true, .jf = jump_false};
}

static void load(struct mf_bpf *p, size_t at)
{
    mf_bpf_add(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)at, 0, 0);
}

void mf_bpf_load_argument(struct mf_bpf *p, int argument)
{
    /* low half of the argument on little-endian machines */
    load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)argument);
}

void mf_bpf_load_call(struct mf_bpf *p)
{
    load(p, offsetof(struct seccomp_data, nr));
}

void mf_bpf_begin(struct mf_bpf *p)
{
    p->n = 0;
    load(p, offsetof(struct seccomp_data, arch));
    mf_bpf_add(p, BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    mf_bpf_add(p, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    mf_bpf_load_call(p);
#ifdef __x86_64__
    mf_bpf_add(p, BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    mf_bpf_add(p, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM, 0, 0);
#endif
}

int mf_bpf_install(struct mf_bpf *p)
{
    if (ARCH == 0)
        return -ENOSYS;
    mf_bpf_add(p, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    const struct sock_fprog program = {.len = p->n, .filter = p->code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        return errno == EINVAL || errno == ENOSYS ? -ENOSYS : -errno;
    return 0;
}
