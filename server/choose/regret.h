/* Regret: what a config's pipeline loses under other routing profiles than the one it was chosen on.
 *
 * When a task's config stands, its pipeline and a few of its rivals of the race race once more for each profile of the batch's list, on the device
 * that has their weights, in a quarter of a race's time for all profiles together. Such a race is a unit of kind race
 * whose body names the routing; its results are kept and decide nothing. The task is done when the last of them has ended,
 * well or not: a config never waits for ever on what only adds to it. */
#pragma once

#include "server/farm/farm_private.h"

/* When the task's config stands: adds a unit for each profile. */
int mf_regret_start(struct mf_farm *f, struct mf_task *g);
/* Such a unit's race has ended: its outcome goes to the config. */
int mf_regret_take(struct mf_farm *f, const struct mf_lease *l, const cJSON *race);
/* It was given up. */
int mf_regret_miss(struct mf_farm *f, const struct mf_task *g, const char *routing, const char *reason);
