/* The commands run-config and compare as a shared library (libmoefarm-cli.so) that python/moefarm/boot.py
 * loads into a Python interpreter, so that rows run through the operator of a framework. The interface is
 * flat: it passes numbers, text and JSON. One thread calls these functions:
 *
 *   moefarm_cli_add_family   once per family
 *   moefarm_cli_run          runs the command; calls the callbacks
 *
 * Not a stable interface: the library, boot.py and the program moefarm are installed together. */
#pragma once

#include <stddef.h>

#include "cli/bench/operators.h"
#include "worker/runner/python_callbacks.h"

#define MOEFARM_PUBLIC __attribute__((visibility("default")))

/* Returns MOEFARM_CLI_API of the library. */
MOEFARM_PUBLIC int moefarm_cli_api(void);
/* Adds a family; its number in callbacks is the number of families that were added before it. enumerate: as
 * in moefarm_runner_add_family. Texts are copied. Returns a negative errno with the reason in why. */
MOEFARM_PUBLIC int moefarm_cli_add_family(const char *name, const char *device, int supports_ep,
                                          const char *const *enumerate,
                                          const struct moefarm_runner_callbacks *callbacks, char *why,
                                          size_t why_cap);
/* Runs the program moefarm with these arguments. Returns its exit code. */
MOEFARM_PUBLIC int moefarm_cli_run(int argc, char **argv);
