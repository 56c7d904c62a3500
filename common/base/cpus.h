/* Number of CPUs available to this process. */
#pragma once

/* Returns the number of CPUs in the affinity mask of the calling thread, at least 1. A cpuset, taskset or a
 * batch system can restrict the mask. */
int mf_cpus_allowed(void);
