/* Code objects of the CPU: shared objects whose functions compute one block of a launch.
 *
 *     void name(const void *args, size_t bytes, uint32_t x, uint32_t y, uint32_t z);
 *
 * A launch calls the function once per block of the grid, on the threads of the pool. As on a GPU, the order
 * of blocks is undefined, and blocks that update the same location must use atomics. `args` and `bytes` are
 * the launch's argument buffer, which is read-only. */
#pragma once

#include "kernels/core/device.h"

int mf_module_cpu_load(struct mf_device *d, const char *path, char *why, size_t why_cap,
                       struct mf_module **ret);
struct mf_module *mf_module_cpu_unload(struct mf_device *d, struct mf_module *m);
int mf_module_cpu_function(struct mf_device *d, struct mf_module *m, const char *name, void **ret);
int mf_module_cpu_launch(struct mf_device *d, void *function, const struct mf_grid *grid, const void *args,
                         size_t bytes, void *stream);
