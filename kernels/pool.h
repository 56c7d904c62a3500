/* The pool's side that only the device uses: which cores there are, and a caller that stays on its own. */
#pragma once

#include <sched.h>

/* Cores that this process may use, at most CPU_SETSIZE; cpus may be NULL. Taken at the first call, so that a
 * thread which is pinned later changes nothing. */
int mf_pool_cpus(int *cpus, int cap);
/* Pins the calling thread to the core of thread 0 and gives the affinity it had, to be restored. */
void mf_pool_pin_caller(cpu_set_t *ret_before);
/* Wakes every thread, so that what follows within the spin time finds them awake. */
void mf_pool_wake(void);
