/* Fibers: stacks of one thread that hand control to each other. A switch is a few instructions where the machine is known,
 * since a lane gives way at every call that meets others; elsewhere it is ucontext. */
#pragma once

#include <stddef.h>

struct mf_fiber {
    void *at; /* where it stopped */
};

typedef void (*mf_fiber_fn)(void *argument);

/* Prepares a fiber that runs fn(argument) on the stack when it is first switched to. fn has to switch away for good. */
void mf_fiber_start(struct mf_fiber *f, void *stack, size_t bytes, mf_fiber_fn fn, void *argument);
/* Leaves `from`, which must be the one that runs, and goes on with `to`. */
void mf_fiber_switch(struct mf_fiber *from, struct mf_fiber *to);
