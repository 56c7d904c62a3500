/* A GPU that compiles, loads and runs nothing. It records the grid of the last launch, and can refuse
 * launches. */
#pragma once

#include "kernels/core/device.h"

struct launch_recorder {
    struct mf_device base; /* must be first */
    struct mf_grid grid;   /* grid of the last launch */
    int result;            /* result of the next launches */
};

static inline int recorder_compile(struct mf_device *d, const struct mf_code *codes, size_t n,
                                   char (*paths)[PATH_MAX], char (*whys)[MF_CODE_WHY_MAX])
{
    (void)d, (void)codes;
    for (size_t i = 0; paths && whys && i < n; i++)
        paths[i][0] = whys[i][0] = '\0';
    return (int)n;
}
static inline int recorder_load(struct mf_device *d, const char *path, char *why, size_t why_cap,
                                struct mf_module **ret)
{
    (void)path, (void)why, (void)why_cap;
    *ret = (struct mf_module *)d;
    return 0;
}
static inline struct mf_module *recorder_unload(struct mf_device *d, struct mf_module *m)
{
    (void)d, (void)m;
    return NULL;
}
static inline int recorder_function(struct mf_device *d, struct mf_module *m, const char *name, void **ret)
{
    (void)m, (void)name;
    *ret = d;
    return 0;
}
static inline int recorder_launch(struct mf_device *d, void *function, const struct mf_grid *grid,
                                  const void *block, size_t bytes, void *stream)
{
    (void)function, (void)block, (void)bytes, (void)stream;
    ((struct launch_recorder *)d)->grid = *grid;
    return ((struct launch_recorder *)d)->result;
}
static const struct mf_device_ops recorder_ops = {
    .kind = "hip",
    .compile = recorder_compile,
    .module_load = recorder_load,
    .module_unload = recorder_unload,
    .module_function = recorder_function,
    .module_launch = recorder_launch,
};
