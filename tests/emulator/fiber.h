/* Fibers: user-space stacks of one thread that switch to each other. On x86-64 a switch takes a few
 * instructions, because a lane switches at every collective call; other machines use ucontext. */
#pragma once

#include <stddef.h>

struct mf_fiber {
    void *at; /* saved stack pointer or context */
};

typedef void (*mf_fiber_fn)(void *argument);

/* Prepares a fiber that runs fn(argument) on the stack at the first switch to it. fn must not return. */
void mf_fiber_start(struct mf_fiber *f, void *stack, size_t bytes, mf_fiber_fn fn, void *argument);
/* Suspends `from`, which must be the running fiber, and resumes `to`. */
void mf_fiber_switch(struct mf_fiber *from, struct mf_fiber *to);
