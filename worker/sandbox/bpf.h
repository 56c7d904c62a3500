/* Builds a seccomp filter: a BPF program that tests the system call number and its arguments. */
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>

#define MF_BPF_MAX 1024 /* instructions */

struct mf_bpf {
    struct sock_filter code[MF_BPF_MAX];
    unsigned short n;
};

/* Begins with instructions that kill a process of another architecture, whose system calls have other
 * numbers. The accumulator then holds the system call number. */
void mf_bpf_begin(struct mf_bpf *p);
void mf_bpf_add(struct mf_bpf *p, uint16_t code, uint32_t k, uint8_t jump_true, uint8_t jump_false);
/* Load the low 32 bits of an argument, or the system call number, into the accumulator. */
void mf_bpf_load_argument(struct mf_bpf *p, int argument);
void mf_bpf_load_call(struct mf_bpf *p);
/* Allows all other calls and installs the filter. Returns 0, -errno, or -ENOSYS if the kernel or this
 * architecture has no seccomp filters. */
int mf_bpf_install(struct mf_bpf *p);
