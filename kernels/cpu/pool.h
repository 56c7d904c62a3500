/* Pool functions for the CPU device only: pinning the caller and waking the threads before timing. */
#pragma once

#include <sched.h>

/* Pins the calling thread to the core of thread 0. Returns the thread's previous affinity, which the caller
 * must restore. */
void mf_pool_pin_caller(cpu_set_t *ret_before);
/* Wakes every thread. If the next call begins within the spin time, all threads are still running then. */
void mf_pool_wake(void);
