/* Bounds of the numbers in messages between worker and coordinator. Both sides check every number of a
 * message before they use the message, so that no peer can store a number that breaks later arithmetic. */
#pragma once

#include <cjson/cJSON.h>

#include "common/moe/status.h"

/* Longest time that a message may contain, in us: 28 hours. Shortest plausible time of a kernel: 1 ns. */
#define MF_TIME_US_MAX 1e11
#define MF_TIME_US_MIN 1e-3

/* Checks every number of the body. Returns -EINVAL and the reason, which names the field, its value and its
 * bounds: "race.us: 1e+308 is out of bounds; expected a number from 0 to 1e+11". */
int mf_wire_bounds_check(const cJSON *body, char why[MF_REASON_MAX]);
/* Checks one number of a step. key: a member of a step object, such as "flops". Returns 0 or -EINVAL. */
int mf_wire_bounds_check_step(const char *key, double value);
