/* One worker per device: an exclusive lock on <folder>/moefarm-<device>.lock, held until the process ends. The
 * file says the holder's pid. What is called hip:nvidia:0 depends on the devices that a process is shown, so the lock of a
 * GPU is on its identity. */
#pragma once

#include <stddef.h>

/* /run/lock when it can be written to, else /tmp. */
const char *mf_device_lock_folder(void);
/* *ret_fd holds the lock. identity: of the device (mf_device_info), "" or NULL where it has none. -EBUSY with a sentence in
 * why that names the holder. */
int mf_device_lock(const char *folder, const char *device, const char *identity, char *why, size_t why_cap,
                   int *ret_fd);
