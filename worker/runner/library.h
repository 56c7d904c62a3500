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

#include "worker/runner/python_callbacks.h"

#define MOEFARM_RUNNER_API  2
#define MOEFARM_RUNNER_FILE "libmoefarm-runner.so"
#define MOEFARM_RUNNER_BOOT "python/moefarm/boot.py"
#define MOEFARM_PUBLIC      __attribute__((visibility("default")))

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
 * whenever the family's kernels may change. opens_rows: not 0 if the family has open_row. Returns a negative
 * errno with the reason in why. */
MOEFARM_PUBLIC int moefarm_runner_add_family(const char *name, const char *revision, int supports_ep,
                                             int opens_rows, const char *const *enumerate, char *why,
                                             size_t why_cap);
/* Reports a family that this runner cannot serve. */
MOEFARM_PUBLIC void moefarm_runner_refuse_family(const char *name, const char *why);
/* Tells the worker that the runner is alive. For the callback `precompile`. */
MOEFARM_PUBLIC void moefarm_runner_progress(void);
/* Runs until the worker stops the runner. Returns the exit code. */
MOEFARM_PUBLIC int moefarm_runner_run(void);
