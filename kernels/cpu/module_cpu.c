#include "kernels/cpu/module_cpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "common/base/text.h"

typedef void (*block_fn)(const void *args, size_t bytes, uint32_t x, uint32_t y, uint32_t z);

/* The module is the dlopen handle. */
int mf_module_cpu_load(struct mf_device *d, const char *path, char *why, size_t why_cap,
                       struct mf_module **ret)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    (void)d;
    if (!handle) {
        mf_format(why, why_cap, "%s", dlerror());
        return -ENOEXEC;
    }
    *ret = handle;
    return 0;
}

struct mf_module *mf_module_cpu_unload(struct mf_device *d, struct mf_module *m)
{
    (void)d;
    if (m)
        (void)dlclose(m);
    return NULL;
}

int mf_module_cpu_function(struct mf_device *d, struct mf_module *m, const char *name, void **ret)
{
    void *symbol = dlsym(m, name);
    (void)d;
    if (!symbol)
        return -ENOENT;
    *ret = symbol;
    return 0;
}

struct launch {
    block_fn function;
    const struct mf_grid *grid;
    const void *args;
    size_t bytes;
};

static void run_blocks(void *context, int thread, int n_threads)
{
    const struct launch *l = context;
    uint64_t x = l->grid->x, y = l->grid->y, n = x * y * l->grid->z;
    for (uint64_t i = (uint64_t)thread; i < n; i += (uint64_t)n_threads)
        l->function(l->args, l->bytes, (uint32_t)(i % x), (uint32_t)(i / x % y), (uint32_t)(i / x / y));
}

int mf_module_cpu_launch(struct mf_device *d, void *function, const struct mf_grid *grid, const void *args,
                         size_t bytes, void *stream)
{
    struct launch l = {.grid = grid, .args = args, .bytes = bytes};
    (void)d, (void)stream;
    memcpy(&l.function, &function, sizeof(l.function));
    mf_pool_run(run_blocks, &l, mf_pool_threads());
    return 0;
}
