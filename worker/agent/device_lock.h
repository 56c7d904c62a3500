/* Exclusive lock of a device: <folder>/moefarm-<device>.lock, held until the process ends.
 *
 * The file contains the pid of the holder. GPUs are locked by identity, because the ordinal in hip:nvidia:0
 * depends on which devices the process can see (CUDA_VISIBLE_DEVICES). */
#pragma once

#include <stddef.h>

/* Returns /run/lock if it is writable, else /tmp. */
const char *mf_device_lock_folder(void);
/* Locks the device; *ret_fd holds the lock. identity: mf_device_info.identity; "" or NULL: lock by device
 * name. Returns -EBUSY if another process holds the lock; why then names that process. */
int mf_device_lock(const char *folder, const char *device, const char *identity, char *why, size_t why_cap,
                   int *ret_fd);
