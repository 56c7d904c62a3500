/* Checks the `device` object of HELLO and BEAT, and reads the limits against which results are checked. */
#pragma once

#include <cjson/cJSON.h>

#include "common/moe/device_class.h"
#include "common/moe/status.h"
#include "server/choose/ceilings.h"

/* Known members must have their type. A device that is not simulated must report its bf16 peak and memory
 * bandwidth, and no ceiling that its class cannot reach: for a GPU with published figures (device_peak.h),
 * 1.5 times these figures; for a CPU, what its threads can reach. The numbers are within their bounds
 * (wire_bounds.h). Returns -EINVAL and the reason. */
int mf_device_claim_read(const cJSON *device, const struct mf_device_class *class, bool simulated,
                         struct mf_ceilings *ret, char why[MF_REASON_MAX]);
