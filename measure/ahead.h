/* Compiling ahead of measuring: the code of all steps of a unit at once, each in a process of its own, so that no compiler
 * runs while a step is timed. */
#pragma once

#include "kernels/device.h"
#include "kernels/family.h"
#include "measure/session.h"

/* The different codes of the steps; *ret is the caller's to free. -ENOMEM. */
int mf_ahead_codes(const struct mf_device_info *device, const char *kind, const struct mf_shape *shape,
                   const struct mf_family_set *extra, const struct mf_probe_step *steps, size_t n,
                   struct mf_code **ret, size_t *ret_n);
/* Has the device compile them; what does not compile is told of by the step that opens it. -ENOMEM. */
int mf_ahead_compile(struct mf_device *device, const struct mf_shape *shape,
                     const struct mf_family_set *extra, const struct mf_probe_step *steps, size_t n);
