/* What only a GPU's runtime knows, asked in a process of its own: a driver that crashes or hangs there is a sentence here. The
 * caller has no threads yet. */
#pragma once

#include <stddef.h>

/* Devices that the runtime of "amd" or "nvidia" shows. Negative with the sentence in why when there are none, or no
 * runtime, or no module in this build. */
int mf_device_query_count(const char *vendor, char *why, size_t why_cap);
/* mf_device_info.identity of "hip:nvidia:0". Negative with the sentence in why. */
int mf_device_query_identity(const char *device, char *ret, size_t cap, char *why, size_t why_cap);
