/* --list-devices: prints each usable device of this machine, and the reason for each unusable one. */
#pragma once

#include <stddef.h>

/* argv is the command line of a runner; it refers to `device`, which this function overwrites with each
 * device name. Returns the exit code. */
int mf_list_devices(const char *const *argv, char *device, size_t device_cap);
