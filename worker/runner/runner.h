/* The runner: a disposable child process that owns the device. It handles the messages of docs/protocol.md
 * section 2. Units run in sessions or in the simulation. The runner may die at any time without losing
 * results. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MF_RUNNER_FOREIGN_MAX   8
#define MF_RUNNER_FAMILY_SO_MAX 8

struct mf_runner_options {
    const char *device;
    const char *families;                       /* comma-separated list; "" or NULL: all families */
    const char *foreign[MF_RUNNER_FOREIGN_MAX]; /* commands of foreign runners */
    int n_foreign;
    const char *family_so[MF_RUNNER_FAMILY_SO_MAX]; /* shared objects, each with one family */
    int n_family_so;
    const char *asm_folder;   /* folder of prebuilt kernels and manifests; "" or NULL: none */
    const char *aiter_folder; /* AITER tree whose kernel lists replace the built-in ones; "" or NULL: none */
    uint64_t keep_bytes;
    uint64_t memory_bytes; /* limit of the address space; 0: no limit */
    const char *scratch;   /* folder that the runner may write to; "": none */
    bool no_sandbox;       /* true: do not enter the sandbox (worker/sandbox/sandbox.h) */
    bool pid_namespace;    /* true: this process is in a PID namespace of its own */
};

/* Runs until the worker sends `stop` or exits. Returns the exit code. */
int mf_runner_main(const struct mf_runner_options *o);
