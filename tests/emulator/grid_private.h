/* State of a launch, shared by the scheduler (grid.c) and the calls of lanes (lane.c). */
#pragma once

#include <stdbool.h>

#include "emulator/fiber.h"
#include "emulator/grid.h"
#include "emulator/shadow.h"

/* READY: runnable. IN_COLLECTIVE: waits at a collective call of its wave. AT_BARRIER: waits at a barrier of
 * the block. POLLING: polls for another block and becomes READY when its own block runs again. */
enum lane_state { READY, IN_COLLECTIVE, AT_BARRIER, POLLING, ENDED };

/* An asynchronous copy. Groups are numbered from 0; groups below lane.groups are committed. */
struct copy {
    void *to;
    const void *from;
    uint32_t bytes, group, read;
};

struct lane {
    struct mf_fiber fiber;
    struct grid *grid;
    struct block *block;
    struct wave *wave;
    uint32_t index; /* index in the block */
    enum lane_state state;
    void *mine; /* the lane's argument of the collective call */
    unsigned char *stack;
    struct copy *copies; /* in the order of their start */
    uint32_t n_copies, cap_copies, groups;
};

struct wave {
    struct lane *lanes;
    uint32_t index, n_lanes; /* the last wave of a block may be incomplete */
    uint32_t n_there;        /* lanes that have arrived at the collective call `name` */
    uint32_t epoch;
    const char *name;
};

struct block {
    struct mf_emulator_dim at;
    struct lane *lanes;
    struct wave *waves;
    uint32_t n_live, n_waiting, epoch;
    struct mf_shadow *shadow;
    unsigned char *shared; /* saved __shared__ variables while another block is active */
};

struct grid {
    /* must be first: the functions of `calls` cast its address to struct grid */
    struct mf_emulator_calls calls;
    const struct mf_emulator_launch *launch;
    struct block *blocks, *active; /* active: the block whose shared variables are in the module */
    struct lane *lanes, *lane;     /* lanes: all lanes; lane: the running one */
    struct wave *waves;
    uint32_t n_blocks, n_lanes, n_waves; /* blocks in the grid; lanes and waves per block */
    size_t shared_bytes;                 /* per block: __shared__ variables and LDS of the launch */
    unsigned char *stacks;
    struct mf_fiber scheduler;
    uint64_t random, ticks;
    bool failed;
    char *why;
    uintptr_t pc;
};

/* Fills in the function pointers of `e`. */
void mf_lane_bind(struct mf_emulator_calls *e);
/* Ends the launch with a fault of the running lane. Does not return, but must not be declared _Noreturn:
 * AddressSanitizer would then unpoison the thread's own stack. */
void mf_lane_fault(struct grid *g, const void *pc, const char *format, ...)
    __attribute__((format(printf, 3, 4), noinline));
/* Suspends the running lane until the scheduler resumes it. */
void mf_lane_yield(struct grid *g);
/* Marks the running lane as finished. */
void mf_lane_end(struct grid *g);
