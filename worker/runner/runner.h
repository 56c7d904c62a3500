/* The runner: the child that touches the device. A loop over messages of docs/protocol.md section 2 that calls
 * sessions, or the simulation; it dies without loss. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MF_RUNNER_FOREIGN_MAX   8
#define MF_RUNNER_FAMILY_SO_MAX 8

struct mf_runner_options {
    const char *device;
    const char *families;                       /* comma list; "" or NULL: all */
    const char *foreign[MF_RUNNER_FOREIGN_MAX]; /* commands of foreign runners */
    int n_foreign;
    const char *family_so[MF_RUNNER_FAMILY_SO_MAX]; /* shared objects with a family each */
    int n_family_so;
    const char *asm_folder; /* of prebuilt kernels and their manifests; "" or NULL: none */
    uint64_t keep_bytes;
    uint64_t memory_bytes; /* limit of its address space; 0: none */
    const char *scratch;   /* folder of its own; "": none */
    bool no_sandbox;       /* without worker/sandbox/sandbox.h */
    int64_t parent;        /* pid of the worker: without it there is nothing to do */
};

/* Until the worker says stop or is gone. The exit code. */
int mf_runner_main(const struct mf_runner_options *o);
