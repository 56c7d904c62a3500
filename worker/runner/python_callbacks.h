/* The calls that a runner in a Python interpreter makes into its families. python/moefarm/boot.py implements
 * them with ctypes, so this struct is part of the interface of library.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Each call returns 0, or a negative errno with the reason in why. A shape is an object
 * {shape: text, layer: {covers, needs, gives, flops, bytes}}; steps are printed by mf_step_print. Kernels and
 * sets of arguments have numbers: `open` chooses the number of a kernel, and the caller of `prepare` chooses
 * the number of a set of arguments. */
struct moefarm_runner_callbacks {
    int (*open)(int64_t family, const char *shape, const char *step, int64_t *ret_kernel, char *why,
                size_t why_cap);
    /* Does the one-time work for a set of tensors: [{name, shape, dtype, pointer, writable}]. *ret_graph is
     * the handle of a captured launch (hipGraph_t, CUgraph), which lives until `close`. It is 0 on a CPU, and
     * for a launch that cannot be captured; then `why` contains the reason. */
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
