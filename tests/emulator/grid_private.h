/* A launch as the scheduler (grid.c) and the calls of its lanes (lane.c) share it. */
#pragma once

#include <stdbool.h>

#include "emulator/fiber.h"
#include "emulator/grid.h"
#include "emulator/shadow.h"

/* READY: goes on when it is its turn. MEETS: at a call of the wave. WAITS: at a barrier of the block. SPINS: for another
 * block; READY again when its block's turn comes. */
enum lane_state { READY, MEETS, WAITS, SPINS, ENDED };

/* A copy in the background. Groups count from 0; those below lane.groups are committed. */
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
    uint32_t index; /* in the block */
    enum lane_state state;
    void *mine; /* what it brought to where it meets */
    unsigned char *stack;
    struct copy *copies; /* in the order they were asked for */
    uint32_t n_copies, cap_copies, groups;
};

struct wave {
    struct lane *lanes;
    uint32_t index, n_lanes; /* the last one of a block may be short */
    uint32_t n_there;        /* of its lanes, at `name` */
    uint32_t epoch;
    const char *name;
};

struct block {
    struct mf_emulator_dim at;
    struct lane *lanes;
    struct wave *waves;
    uint32_t n_live, n_waiting, epoch;
    struct mf_shadow *shadow;
    unsigned char *shared; /* its variables while another block's are in place */
};

struct grid {
    struct mf_emulator_calls calls; /* first: the calls get its address */
    const struct mf_emulator_launch *launch;
    struct block *blocks, *in_place;
    struct lane *lanes, *lane; /* all; the one that runs */
    struct wave *waves;
    uint32_t n_blocks, n_lanes, n_waves; /* blocks; lanes and waves of a block */
    size_t shared_bytes;                 /* of a block: its variables and the launch's LDS */
    unsigned char *stacks;
    struct mf_fiber scheduler;
    uint64_t random, ticks;
    bool failed;
    char *why;
    uintptr_t pc;
};

/* The words of mf_emulator_calls. */
void mf_lane_bind(struct mf_emulator_calls *e);
/* Ends the launch with a fault of the running lane; does not return, which AddressSanitizer must not be told: it would look
 * for the end of the thread's own stack. */
void mf_lane_fault(struct grid *g, const void *pc, const char *format, ...)
    __attribute__((format(printf, 3, 4), noinline));
/* Goes on elsewhere until the scheduler comes back. */
void mf_lane_give_way(struct grid *g);
/* The lane's function is done. */
void mf_lane_end(struct grid *g);
