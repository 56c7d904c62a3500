/* Regret: the time that a config's pipeline loses under other routing profiles than the profile for which it
 * was chosen. When a task's config for a consumer is decided, its pipeline and a few rivals race again under
 * each profile of the batch's list, on a device that already holds their weights. The races of all profiles
 * together take a quarter of a race's time. A regret race is a unit of kind `race` with a `routing` member;
 * its results are stored and decide nothing. The task is done when its last regret race has ended,
 * successfully or not. */
#pragma once

#include "server/farm/farm_private.h"

/* Adds a regret race for each profile. Call after the consumer's config is decided. */
int mf_regret_start(struct mf_farm *f, struct mf_task *g, enum mf_consumer c);
/* Stores the outcome of a regret race in the config. */
int mf_regret_finish(struct mf_farm *f, const struct mf_lease *l, const cJSON *race);
/* Stores in the config that a profile was not raced, and why. */
int mf_regret_skip(struct mf_farm *f, const struct mf_task *g, enum mf_consumer c, const char *routing,
                   const char *reason);
