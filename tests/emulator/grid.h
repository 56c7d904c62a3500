/* Runs a grid of blocks of lanes on one thread.
 *
 * Every lane is a fiber and all blocks are there from the start. A lane runs until it has to meet others; a wave runs until
 * all its lanes wait for the block, a block until it waits for another. Whose turn it is says the seed: 0 is lowest first, 1
 * highest first, any other draws lanes and waves anew each time and leaves a wave now and then in between.
 *
 * The first fault ends the launch: an access out of bounds, one that is not ordered after another lane's (shadow.h), lanes
 * of a wave that meet at different calls, or a grid that can not go on. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "emulator/calls.h"
#include "emulator/known.h"

#define MF_EMULATOR_WHY_MAX 512

/* An object of kernels that is loaded (object.h). */
struct mf_emulator_module {
    mf_emulator_bind_fn bind;
    uintptr_t image, image_end; /* what the object has of its own: constants and __device__ variables */
    unsigned char *shared;      /* its __shared__ variables, and behind them the launches' LDS */
    size_t lds_at;
};

struct mf_emulator_launch {
    const struct mf_emulator_module *module;
    mf_emulator_call_fn call; /* a function of it */
    uint32_t wave_lanes;
    struct mf_emulator_dim grid, block;
    uint32_t lds; /* bytes */
    const void *arguments;
    uint64_t seed;
    struct mf_known *known;
};

/* 0; -EFAULT: the fault in why, with the lane's place and the address in the kernel's image, *ret_pc (0: none); -EINVAL:
 * no such launch; -ENOMEM. */
int mf_emulator_run(const struct mf_emulator_launch *l, char why[MF_EMULATOR_WHY_MAX], uintptr_t *ret_pc);
