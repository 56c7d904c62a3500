/* The runner: a disposable child process that owns the device. It handles the messages of docs/protocol.md
 * section 2. Units run in sessions or in the simulation. The runner may die at any time without losing
 * results. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MF_RUNNER_FAMILY_SO_MAX 8
#define MF_RUNNER_PYTHON_MAX    16   /* maximum number of Python families */
#define MF_RUNNER_KEEP_MIB      8192 /* default of keep_bytes */

/* Further paths that a runner inside a Python interpreter may read. Empty in other runners. */
struct mf_runner_python {
    const char *const *prefixes; /* folders of the interpreter */
    size_t n_prefixes;
    const char *const *readable;
    size_t n_readable;
};

struct mf_runner_options {
    const char *device;
    const char *families;                           /* comma-separated list; "" or NULL: all families */
    const char *family_so[MF_RUNNER_FAMILY_SO_MAX]; /* shared objects, each with one family */
    int n_family_so;
    const char *asm_folder;   /* folder of prebuilt kernels and manifests; "" or NULL: none */
    const char *aiter_folder; /* AITER tree whose kernel lists replace the built-in ones; "" or NULL: none */
    uint64_t keep_bytes;
    uint64_t memory_bytes; /* limit of the address space; 0: no limit */
    const char *scratch;   /* folder that the runner may write to; "": none */
    bool no_sandbox;       /* true: do not enter the sandbox (worker/sandbox/sandbox.h) */
    bool pid_namespace;    /* true: this process is in a PID namespace of its own */
    struct mf_runner_python python;
};

struct mf_runner;
struct mf_python_family;

/* Makes the runner of this process and enters the sandbox; before the process starts threads. `o` must
 * outlive the runner. Returns a negative errno after a message on stderr. */
int mf_runner_new(const struct mf_runner_options *o, struct mf_runner **ret);
/* Offers a Python family, which must outlive the runner. Returns a negative errno with the reason in why. */
int mf_runner_add_python(struct mf_runner *r, struct mf_python_family *f, char *why, size_t why_cap);
/* Reports in `hello` that the runner cannot serve a family. */
void mf_runner_refuse_family(struct mf_runner *r, const char *name, const char *why);
/* Runs until the worker sends `stop` or exits. Returns the exit code. */
int mf_runner_run(struct mf_runner *r);
struct mf_runner *mf_runner_free(struct mf_runner *r);

/* Makes, runs and frees a runner without Python. Returns the exit code. */
int mf_runner_main(const struct mf_runner_options *o);
