/* Default name of a worker: host and device, in characters allowed in file names. */
#pragma once

#include <stddef.h>

#include "common/net/wire.h"

/* Writes the name, limited to max_len characters (56 to MF_WORKER_NAME_MAX - 1). The first 40 characters of
 * the device are kept. If the host does not fit, a hash of the host replaces its end, so that names stay
 * distinct. */
void mf_worker_name(const char *host, const char *device, size_t max_len, char name[MF_WORKER_NAME_MAX]);
