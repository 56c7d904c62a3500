/* Draws some cases of a grid that is too large for every test run.
 *
 * `make test` runs each case with a probability of 1/every. It prints the seed; set MOEFARM_TEST_SEED to that
 * seed to draw the same cases again. `make test-long` runs all cases: the ctest entry that mf_add_test(…
 * DRAWS) adds sets MOEFARM_TEST_ALL. */
#pragma once

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/text.h"

/* Set by mf_draw_start() and inherited by the forked tests. */
static struct {
    uint64_t seed;
    bool all;
} mf_draw_state;

/* Call this in main before the tests run. */
static inline void mf_draw_start(void)
{
    const char *seed = getenv("MOEFARM_TEST_SEED");
    mf_draw_state.all = getenv("MOEFARM_TEST_ALL") != NULL;
    mf_draw_state.seed = seed ? strtoull(seed, NULL, 10) : mf_now_ns() % 1000000007;
    if (mf_draw_state.all)
        printf("runs all cases\n");
    else
        printf("draws its cases by seed %" PRIu64 " (MOEFARM_TEST_SEED=%" PRIu64 " repeats it)\n",
               mf_draw_state.seed, mf_draw_state.seed);
    (void)fflush(stdout);
}

/* True if case i of the grid is part of this run. */
static inline bool mf_draw(int i, int every)
{
    const uint64_t key[2] = {mf_draw_state.seed, (uint64_t)i};
    return mf_draw_state.all || mf_hash64(key, sizeof(key), MF_HASH_SEED) % (uint64_t)every == 0;
}
