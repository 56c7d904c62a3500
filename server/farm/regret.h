/* Regret: the time that a config's pipeline loses under other routing profiles than the one it was chosen
 * for.
 *
 * After a task's config is decided, its pipeline and a few rivals race again for each profile of the batch's
 * list, on the device that holds their weights. All profiles together take a quarter of a race's time. Such a
 * race is a unit of kind `race` with a `routing` member; its results are stored and decide nothing. The task
 * is done when the last of these units has ended, successfully or not. */
#pragma once

#include "server/farm/farm_private.h"

/* Adds a unit for each profile. Call after the task's config is decided. */
int mf_regret_start(struct mf_farm *f, struct mf_task *g);
/* Stores the outcome of such a unit's race in the config. */
int mf_regret_finish(struct mf_farm *f, const struct mf_lease *l, const cJSON *race);
/* Records that a profile was not raced, and why. */
int mf_regret_skip(struct mf_farm *f, const struct mf_task *g, const char *routing, const char *reason);
