/* What a worker is called where nobody said: its host and its device, in letters that a file's name may have. */
#pragma once

#include <stddef.h>

#define MF_WORKER_NAME_LEN 63 /* most letters of a name; a coordinator takes no more */

/* At most `most` letters, of 56 up to MF_WORKER_NAME_LEN. The device stands whole up to 40 letters; a host that is too long for
 * what it leaves gives up its tail for a hash of itself, so that two of them still have two names. */
void mf_worker_name(const char *host, const char *device, size_t most, char name[MF_WORKER_NAME_LEN + 1]);
