/* What a worker is called where nobody said: its host and its device, in letters that a file's name may have. */
#pragma once

#include <stddef.h>

#include "common/net/wire.h"

/* At most `most` letters, from 56 up to what MF_WORKER_NAME_MAX holds. The device stands whole up to 40 letters; a host that is too long for
 * what it leaves gives up its tail for a hash of itself, so that two of them still have two names. */
void mf_worker_name(const char *host, const char *device, size_t most, char name[MF_WORKER_NAME_MAX]);
