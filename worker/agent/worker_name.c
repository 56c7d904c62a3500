#include "worker/agent/worker_name.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define DEVICE_LEN 40
#define HASH_LEN   9 /* length of the hash, including the dash before it */

void mf_worker_name(const char *host, const char *device, size_t max_len, char name[MF_WORKER_NAME_MAX])
{
    size_t len = strlen(host), device_len = MF_MIN(strlen(device), DEVICE_LEN),
           room = max_len - 1 - device_len;
    char hash[HASH_LEN + 1] = "";
    assert(max_len < MF_WORKER_NAME_MAX && room > HASH_LEN);
    if (len > room) {
        mf_format(hash, sizeof(hash), "-%08" PRIx32, (uint32_t)mf_hash64(host, len, MF_HASH_SEED));
        len = room - HASH_LEN;
    }
    mf_format(name, max_len + 1, "%.*s%s-%.*s", (int)len, host, hash, (int)device_len, device);
    for (char *p = name; *p; p++) {
        if (!mf_is_name((const char[]){*p, '\0'}, 1))
            *p = '-';
    }
}
