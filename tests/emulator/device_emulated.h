/* The emulator as a device of kind "hip": what families open on it is compiled by g++ and run on the host, lane by lane.
 *
 * It is for tests: it compiles, loads and launches. A launch may touch what the device has allocated, memory of the test's own
 * that was made known, and nothing else. Launches take turns at lowest lane first, highest first, and an order drawn from the seed. */
#pragma once

#include <stdbool.h>

#include "emulator/grid.h"
#include "kernels/core/device.h"

/* gfx "sm_89", "gfx90a" or "gfx942", with `cores` cores. -ENOENT: there is no compiler; -EINVAL: another gfx. */
int mf_device_emulated_open(const char *gfx, int cores, uint64_t seed, struct mf_device **ret);

/* The device that MOEFARM_TEST_DEVICE names ("hip:nvidia:0") where it does, else the emulator. -ENODEV: it is of another vendor than
 * gfx; -EINVAL: it did not open. */
int mf_device_emulated_or_named(const char *gfx, int cores, uint64_t seed, struct mf_device **ret);

/* Memory that launches may read, or also write; memory NULL: forget all that was known. */
void mf_device_emulated_know(struct mf_device *d, const void *memory, size_t bytes, bool writable);

/* What ended the last launch that failed: the fault and where in the source it was, "… (tile.hip:340)"; "" of a named one. */
const char *mf_device_emulated_why(const struct mf_device *d);
