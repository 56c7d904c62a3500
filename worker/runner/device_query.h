/* Queries a GPU runtime in a child process, so that a driver that crashes or hangs becomes an error message.
 * Call before starting threads. */
#pragma once

#include <stddef.h>

/* Number of devices of the runtime of "amd" or "nvidia". Negative, with the reason in why: no device, no
 * runtime, or no module in this build. */
int mf_device_query_count(const char *vendor, char *why, size_t why_cap);
/* mf_device_info.identity of a device such as "hip:nvidia:0". Negative, with the reason in why. */
int mf_device_query_identity(const char *device, char *ret, size_t cap, char *why, size_t why_cap);
