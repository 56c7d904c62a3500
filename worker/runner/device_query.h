/* Queries a GPU runtime in a child process, so that a crash or hang of the driver becomes an error message.
 * Call before starting threads. */
#pragma once

#include <stddef.h>

/* Returns the number of devices that the runtime of "amd" or "nvidia" reports. Returns a negative value, with
 * the reason in why, if there is no device, no runtime, or no module for it in this build. */
int mf_device_query_count(const char *vendor, char *why, size_t why_cap);
/* Stores mf_device_info.identity of a device such as "hip:nvidia:0". Returns a negative value on error, with
 * the reason in why. */
int mf_device_query_identity(const char *device, char *ret, size_t cap, char *why, size_t why_cap);
