#include "common/base/shared_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"

int mf_shared_library_load(const char *file, const char *const *functions, size_t n, void *calls)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    _cleanup_(mf_freep) void **found = calloc(n, sizeof(*found));
    if (!found)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        found[i] = library ? dlsym(library, functions[i]) : NULL;
        if (!found[i])
            return -ENOENT;
    }
    memcpy(calls, found, n * sizeof(*found));
    return 0;
}
