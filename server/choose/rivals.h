/* Selects the pipelines that race against a task's winner under another routing profile. Pure functions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MF_RIVALS_MAX   3 /* besides the winner */
#define MF_ENTRANTS_MIN 2 /* the winner and one rival */

struct mf_entrant {
    int64_t pipeline;
    double us; /* measured in the race of the task */
    int block_m;
};

/* Appends rivals to the entrants, of which there is one: the winner. First the fastest rival of each other
 * block_m, because routing affects block_m most, then the fastest others, at most MF_RIVALS_MAX. Sorts
 * `rivals`; ret has room for MF_RIVALS_MAX + 1. Returns the number of entrants. */
size_t mf_rivals_pick(struct mf_entrant *rivals, size_t n_rivals, struct mf_entrant *ret);
/* Number of entrants that can run MF_RACE_ROUNDS_MIN rounds within the budget; at least MF_ENTRANTS_MIN, if
 * there are as many. */
size_t mf_rivals_affordable(const struct mf_entrant *entrants, size_t n, double budget_s);
