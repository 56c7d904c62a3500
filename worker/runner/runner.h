/* The runner: disposable child process that owns the device. It handles the messages of docs/protocol.md
 * section 2 with sessions or the simulation. It may die at any time without losing results. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MF_RUNNER_FOREIGN_MAX   8
#define MF_RUNNER_FAMILY_SO_MAX 8

struct mf_runner_options {
    const char *device;
    const char *families;                       /* comma-separated; "" or NULL: all */
    const char *foreign[MF_RUNNER_FOREIGN_MAX]; /* commands of foreign runners */
    int n_foreign;
    const char *family_so[MF_RUNNER_FAMILY_SO_MAX]; /* shared objects, one family each */
    int n_family_so;
    const char *asm_folder; /* prebuilt kernels and manifests; "" or NULL: none */
    uint64_t keep_bytes;
    uint64_t memory_bytes; /* limit of the address space; 0: none */
    const char *scratch;   /* folder the runner may write to; "": none */
    bool no_sandbox;       /* skip worker/sandbox/sandbox.h */
    int64_t parent;        /* pid of the worker; the runner exits if it is not the child of this process */
};

/* Runs until the worker sends `stop` or exits. Returns the exit code. */
int mf_runner_main(const struct mf_runner_options *o);
