/* Shadow memory for a block's LDS. For every byte it holds the last writer, the last reader and the epochs of
 * both accesses.
 *
 * Two accesses of different lanes to a byte, at least one of them a write, must be separated by a barrier of
 * the block or, for lanes of one wave, by a synchronisation of the wave. The order of the two accesses in
 * this run does not matter, so errors do not depend on the schedule. An asynchronous copy writes from its
 * start until its lane waits for the copy. No lane may access the bytes before that wait. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The accessing lane, its wave, and the number of synchronisations of its block and of its wave so far. */
struct mf_shadow_lane {
    uint32_t lane, wave, epoch, wave_epoch;
};

struct mf_shadow; /* mf_shadow_new: all bytes are uninitialised; NULL if out of memory */
struct mf_shadow *mf_shadow_new(size_t bytes, uint32_t wave_lanes);
struct mf_shadow *mf_shadow_free(struct mf_shadow *s);

enum mf_shadow_event { MF_SHADOW_READ, MF_SHADOW_WRITE, MF_SHADOW_COPY_START, MF_SHADOW_COPY_DONE };

/* Records an access. If the access is an error, returns false and describes the error in `why`. */
bool mf_shadow_note(struct mf_shadow *s, const struct mf_shadow_lane *by, enum mf_shadow_event event,
                    size_t at, size_t bytes, char *why, size_t why_cap);
