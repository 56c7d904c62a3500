/* Shadow memory of a block's LDS: for every byte who wrote and who read it last, and since when.
 *
 * Two accesses of different lanes to a byte, of which one writes, need order between them: a barrier of the block, or, for
 * lanes of one wave, a synchronisation of the wave. Which came first in this run does not matter, so an error does not depend
 * on the order that lanes happen to run in. A copy in the background writes from its call until its lane waits for it; in
 * between the bytes are nobody's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who accesses: a lane, in its wave and at its block's and its wave's count of synchronisations. */
struct mf_shadow_lane {
    uint32_t lane, wave, epoch, wave_epoch;
};

struct mf_shadow; /* of `bytes`, untouched; NULL when out of memory */
struct mf_shadow *mf_shadow_new(size_t bytes, uint32_t wave_lanes);
struct mf_shadow *mf_shadow_free(struct mf_shadow *s);

enum mf_shadow_event { MF_SHADOW_READ, MF_SHADOW_WRITE, MF_SHADOW_ASK, MF_SHADOW_LAND };

/* false: the event is an error, which the sentence says. */
bool mf_shadow_note(struct mf_shadow *s, const struct mf_shadow_lane *by, enum mf_shadow_event event,
                    size_t at, size_t bytes, char *why, size_t why_cap);
