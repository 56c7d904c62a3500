/* Properties of a device as members of a JSON object. A runner sends them to the worker in the message
 * `described`. The worker passes them to later runners as `known`. */
#pragma once

#include <cjson/cJSON.h>

#include "kernels/core/device.h"

/* Adds the members to an object. Returns 0 or -ENOMEM. */
int mf_device_info_add(cJSON *object, const struct mf_device_info *info);
/* Returns -EINVAL for a missing or invalid member and its name in *ret_field. */
int mf_device_info_parse(const cJSON *object, struct mf_device_info *ret, const char **ret_field);
