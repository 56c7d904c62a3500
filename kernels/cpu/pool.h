/* Pool functions for the CPU device only: pinning the caller and waking the threads before timing. */
#pragma once

#include <sched.h>

/* Pins the calling thread to the core of thread 0 and returns its previous affinity, to be restored by the
 * caller. */
void mf_pool_pin_caller(cpu_set_t *ret_before);
/* Wakes every thread, so that all threads are running when the next call begins within the spin time. */
void mf_pool_wake(void);
