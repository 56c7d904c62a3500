/* Number of CPUs available to this process. */
#pragma once

/* CPUs in the affinity mask of the calling thread, as restricted by a cpuset, taskset or a batch system. At
 * least 1. */
int mf_cpus_allowed(void);
