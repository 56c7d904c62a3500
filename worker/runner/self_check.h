/* --self-check: verifies a device and its kernel families before the worker joins a farm. */
#pragma once

#include "worker/agent/runner_pool.h"

/* Prints a report: host, device, sandbox, families, and for each format of a small layer, how many candidates
 * of each family work, with the reason of the first that does not. Runs one candidate of each family and set
 * of ops. Returns the exit code: 1 if the device, a family or a candidate does not work. */
int mf_self_check(const struct mf_runner_pool_options *o, const char *device);
