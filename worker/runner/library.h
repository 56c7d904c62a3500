/* The runner as a shared library (libmoefarm-runner.so) that python/moefarm/boot.py loads into a Python
 * interpreter. The interface is flat: it passes numbers, text and JSON, so that ctypes can call and implement
 * it. One process has one runner, and one thread calls these functions:
 *
 *   moefarm_runner_enter        enters the sandbox; before the first import from outside the standard library
 *   moefarm_runner_add_family   once per family
 *   moefarm_runner_run          serves the worker until it stops the runner; calls the callbacks
 *
 * Not a stable interface: the library and boot.py are installed together. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MOEFARM_RUNNER_API  1
#define MOEFARM_RUNNER_FILE "libmoefarm-runner.so"
#define MOEFARM_RUNNER_BOOT "python/moefarm/boot.py"
#define MOEFARM_PUBLIC      __attribute__((visibility("default")))

/* Calls of the families. Each returns 0, or a negative errno with the reason in why. A shape is an object
 * {shape: text, layer: {covers, needs, gives, flops, bytes}}; steps are printed by mf_step_print. Kernels and
 * arguments are numbers: a kernel's is chosen by `open`, that of a set of arguments by the caller of
 * `prepare`. */
struct moefarm_runner_callbacks {
    int (*open)(int64_t family, const char *shape, const char *step, int64_t *ret_kernel, char *why,
                size_t why_cap);
    /* Does the one-time work for a set of tensors: [{name, shape, dtype, pointer, writable}]. *ret_graph is
     * the handle of a captured launch (hipGraph_t, CUgraph), which lives until `close`. It is 0 on a CPU, and
     * for a launch that cannot be captured; why has the reason then. */
    int (*prepare)(int64_t kernel, int64_t arguments, const char *tensors, uintptr_t stream,
                   uintptr_t *ret_graph, char *why, size_t why_cap);
    int (*launch)(int64_t kernel, int64_t arguments, uintptr_t stream, char *why, size_t why_cap);
    /* Copies results to the outputs after a timed run, outside of the timed interval. */
    int (*finish)(int64_t kernel, int64_t arguments, uintptr_t stream, char *why, size_t why_cap);
    int (*release)(int64_t kernel, int64_t arguments, char *why, size_t why_cap);
    int (*close)(int64_t kernel, char *why, size_t why_cap);
    /* Compiles an array of steps; calls moefarm_runner_progress after each. */
    int (*precompile)(int64_t family, const char *shape, const char *steps, char *why, size_t why_cap);
};

/* Returns MOEFARM_RUNNER_API of the library. */
MOEFARM_PUBLIC int moefarm_runner_api(void);
/* Reads the options of a runner (runner_options.h; options[0] is ignored) and enters the sandbox. prefixes:
 * folders of the interpreter. readable: further files and folders that the runner may read. All pointers must
 * stay valid. Returns a negative errno after a message on stderr. */
MOEFARM_PUBLIC int moefarm_runner_enter(int n_options, char **options, int n_prefixes,
                                        const char *const *prefixes, int n_readable,
                                        const char *const *readable,
                                        const struct moefarm_runner_callbacks *callbacks);
/* Adds a family; its number in callbacks is the number of families that were added before it. enumerate is
 * the command (argv, copied) that lists the family's steps (python_enumerator.h). revision: text that changes
 * whenever the family's kernels may change. Returns a negative errno with the reason in why. */
MOEFARM_PUBLIC int moefarm_runner_add_family(const char *name, const char *revision, int supports_ep,
                                             const char *const *enumerate, char *why, size_t why_cap);
/* Reports a family that this runner cannot serve. */
MOEFARM_PUBLIC void moefarm_runner_refuse_family(const char *name, const char *why);
/* Tells the worker that the runner is alive. For the callback `precompile`. */
MOEFARM_PUBLIC void moefarm_runner_progress(void);
/* Runs until the worker stops the runner. Returns the exit code. */
MOEFARM_PUBLIC int moefarm_runner_run(void);
