/* What --list-devices prints: each device of this machine as a worker on it would find it, and why the others are left out. */
#pragma once

#include <stddef.h>

/* argv starts a runner on the device whose name lies in `device`, a text of argv's that this changes. The program's exit
 * code. */
int mf_list_devices(const char *const *argv, char *device, size_t device_cap);
