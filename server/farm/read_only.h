/* The farm while its database cannot be written to: the disk is full, or was made read-only, or fails.
 *
 *   turns ──a turn fails for such a reason──► halted ──the database takes a write again──► turns
 *
 * Halted, the farm forgets what it holds in memory, which is of a turn that was undone; answers what would change something,
 * and /readyz, with 503 and the reason; and keeps its workers: their beats are answered, their results are not, so that
 * they stay in the spools. What only reads is served by the readers as ever. It is then read anew like at a start. */
#pragma once

#include "server/farm/farm_private.h"

/* r: what a turn failed with. True: it may pass, and the farm is halted. False: the store is broken, or this program is. */
bool mf_halt(struct mf_farm *f, int r);
/* In place of a turn. 0, whether it is halted still or not; or what cannot pass. */
int mf_halted_turn(struct mf_farm *f);
