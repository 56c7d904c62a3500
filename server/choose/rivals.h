/* Selects the pipelines that race against a task's winner under another routing profile. Pure functions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MF_RIVALS_MAX   3 /* maximum number of rivals, without the winner */
#define MF_ENTRANTS_MIN 2 /* minimum: the winner and one rival */

struct mf_entrant {
    int64_t pipeline;
    double us; /* measured in the race of the task */
    int block_m;
};

/* Appends rivals to `ret`, whose first entry is the winner. Selects at most MF_RIVALS_MAX: first the fastest
 * rival of each other block_m, because routing affects block_m most, then the fastest of the remaining
 * rivals. Sorts `rivals`; ret has room for MF_RIVALS_MAX + 1 entries. Returns the number of entries. */
size_t mf_rivals_pick(struct mf_entrant *rivals, size_t n_rivals, struct mf_entrant *ret);
/* Returns the number of entrants that can run MF_RACE_ROUNDS_MIN rounds within the budget; at least
 * MF_ENTRANTS_MIN, or n if that is less. */
size_t mf_rivals_affordable(const struct mf_entrant *entrants, size_t n, double budget_s);
