#include "common/base/cpus.h"

#include <sched.h>
#include <unistd.h>

int mf_cpus_allowed(void)
{
    cpu_set_t set;
    /* sched_getaffinity fails if the kernel supports more CPUs than cpu_set_t holds. */
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
