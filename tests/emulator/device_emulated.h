/* The emulator as a device of kind "hip", for tests. Kernels are compiled with g++ and run on the host, lane
 * by lane.
 *
 * A launch may access only memory that the device allocated or that the test registered. Successive launches
 * alternate between three lane orders: ascending, descending and pseudorandom from the seed. */
#pragma once

#include <stdbool.h>

#include "emulator/grid.h"
#include "kernels/core/device.h"

/* Opens an emulated "sm_89", "gfx90a" or "gfx942" with `cores` cores. Returns -ENOENT if g++ is missing,
 * -EINVAL for any other gfx. */
int mf_device_emulated_open(const char *gfx, int cores, uint64_t seed, struct mf_device **ret);

/* Opens the device that MOEFARM_TEST_DEVICE names ("hip:nvidia:0"), or the emulator if the variable is not
 * set. Returns -ENODEV if the vendor of that device is not that of gfx, -EINVAL if the device cannot be
 * opened. */
int mf_device_emulated_or_named(const char *gfx, int cores, uint64_t seed, struct mf_device **ret);

/* Registers host memory that launches may read and, if `writable`, write. If memory is NULL, clears all
 * registrations. */
void mf_device_emulated_allow(struct mf_device *d, const void *memory, size_t bytes, bool writable);

/* Returns a description of the fault of the last failed launch with its source line, like "… (tile.hip:340)".
 * Returns "" on a real device. */
const char *mf_device_emulated_why(const struct mf_device *d);
