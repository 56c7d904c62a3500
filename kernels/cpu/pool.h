/* The pool's side that only the device uses: a caller that stays on its own core, and threads that are awake. */
#pragma once

#include <sched.h>

/* Pins the calling thread to the core of thread 0 and gives the affinity it had, to be restored. */
void mf_pool_pin_caller(cpu_set_t *ret_before);
/* Wakes every thread, so that what follows within the spin time finds them awake. */
void mf_pool_wake(void);
