/* Code objects of the CPU: shared objects whose functions are work groups of a launch.
 *
 *     void name(const void *block, size_t bytes, uint32_t x, uint32_t y, uint32_t z);
 *
 * A launch calls the function once for each group of the grid, on the threads of the pool, in no order that a group may
 * rely on, as a GPU does: what groups write to one place has to be added atomically. Block and bytes are those of the
 * launch and only read. */
#pragma once

#include "kernels/core/device.h"

int mf_module_cpu_load(struct mf_device *d, const char *path, char *why, size_t why_cap,
                       struct mf_module **ret);
struct mf_module *mf_module_cpu_unload(struct mf_device *d, struct mf_module *m);
int mf_module_cpu_function(struct mf_device *d, struct mf_module *m, const char *name, void **ret);
int mf_module_cpu_launch(struct mf_device *d, void *function, const struct mf_grid *grid, const void *block,
                         size_t bytes);
