/* --list-devices: prints each usable device of this machine. For each unusable device, prints the reason. */
#pragma once

#include <stddef.h>

#include "worker/agent/runner_pool.h"
#include "worker/sandbox/supervisor.h"

/* argv is the command line of a runner. One of its arguments is `device`, which this function overwrites with
 * each device name in turn. Returns the exit code. */
int mf_list_devices(const char *const *argv, enum mf_isolation isolation, char *device, size_t device_cap);
/* Prints a device from the fields of `described`. */
void mf_print_described(const char *name, const cJSON *described);
