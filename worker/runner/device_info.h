/* Message `described`: properties of a device, sent by a runner to the worker; later runners get them as
 * `known`. */
#pragma once

#include <cjson/cJSON.h>

#include "kernels/core/device.h"

/* Adds the members to an object. -ENOMEM. */
int mf_device_info_add(cJSON *object, const struct mf_device_info *info);
/* -EINVAL: *ret_field is the missing or invalid member. */
int mf_device_info_parse(const cJSON *object, struct mf_device_info *ret, const char **ret_field);
