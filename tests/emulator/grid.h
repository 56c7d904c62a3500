/* Runs a grid of blocks of lanes on one thread.
 *
 * Every lane is a fiber, and all blocks exist from the start. A lane runs until it waits for other lanes. A
 * wave runs until all its lanes wait for the block, and a block runs until it waits for another block. The
 * seed selects the order of lanes and waves: 0 runs the lowest first, and 1 the highest first. Any other
 * value draws a new order each time and sometimes switches away from a wave early.
 *
 * The first fault ends the launch. Faults are an access out of bounds, an access that is not ordered after
 * another lane's access (shadow.h), lanes of a wave at different collective calls, and a deadlock of the
 * grid. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "emulator/calls.h"
#include "emulator/known.h"

#define MF_EMULATOR_WHY_MAX 512

/* A loaded object of kernels (object.h). */
struct mf_emulator_module {
    mf_emulator_bind_fn bind;
    uintptr_t image, image_end; /* address range of the object's constants and __device__ variables */
    unsigned char *shared;      /* the object's __shared__ variables, then the launch's LDS */
    size_t lds_at;
};

struct mf_emulator_launch {
    const struct mf_emulator_module *module;
    mf_emulator_call_fn call; /* one of the module's kernels */
    uint32_t wave_lanes;
    struct mf_emulator_dim grid, block;
    uint32_t lds; /* in bytes, in addition to __shared__ variables */
    const void *arguments;
    uint64_t seed;
    struct mf_known *known;
};

/* Returns 0 on success. On a fault, returns -EFAULT and describes the fault in `why` with its block and lane;
 * *ret_pc is the fault's program counter relative to the module's image, or 0 if unknown. Returns -EINVAL if
 * the launch is invalid, -ENOMEM if memory is exhausted. */
int mf_emulator_run(const struct mf_emulator_launch *l, char why[MF_EMULATOR_WHY_MAX], uintptr_t *ret_pc);
