/* One worker per device: an exclusive lock on <folder>/moefarm-<device>.lock, held until the process ends. The
 * file says the holder's pid. */
#pragma once

#include <stddef.h>

/* /run/lock when it can be written to, else /tmp. */
const char *mf_device_lock_folder(void);
/* *ret_fd holds the lock. -EBUSY with a sentence in why that names the holder. */
int mf_device_lock(const char *folder, const char *device, char *why, size_t why_cap, int *ret_fd);
