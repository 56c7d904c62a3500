/* The processors of this process. */
#pragma once

/* How many the calling thread may use: of the host's, those that a cpuset, taskset or a batch system left it. At least 1. */
int mf_cpus_allowed(void);
