/* Promotion: whether a task's new row replaces the one that is known of its key.
 *
 * With promote=improved a race's winner stands only where it beats the known row: the two race each other once more in rounds
 * that all count, on one device, and where it wins there and another device of the class and model is here, on that one too. It
 * is promoted when it is FASTER (common/base/paired.h) on each. Otherwise the known row stays, with the time that it was measured at
 * just now: no number of another day is exported. Such a race is a unit of kind compare, whose results decide nothing else.
 *
 * The known row is that of the batch's baseline or, without one, the farm's own of an earlier batch. One that is no pipeline here
 * any more (a step is gone, or wrong), or whose weights lie otherwise than those of the rest of its layer model, which can
 * only be where known rows of it differ, is replaced, and the decision says so. One that names no pipeline (somebody else's
 * kernels) can be compared with nothing: it is decided before anything is measured, stays where it is, and the task is
 * undecided. Every decision is in table promotion. */
#pragma once

#include "common/moe/pipeline_search.h"
#include "server/farm/farm_private.h"

/* Before anything is measured: ends the batch's waiting tasks whose known row names no pipeline. How many; the batch may have ended,
 * too. */
int mf_promote_spare(struct mf_farm *f, int64_t batch);
/* The same, of tasks that have just got that class. */
int mf_promote_adopted(struct mf_farm *f, int64_t class_id);
/* After the race: decides, or has the two compared. */
int mf_promote_start(struct mf_farm *f, struct mf_task *g);
/* A comparison has ended. */
int mf_promote_take(struct mf_farm *f, struct mf_task *g, const struct mf_lease *l);
/* The second device has gone before it could compare: the first one's word counts. */
int mf_promote_alone(struct mf_farm *f, struct mf_task *g);
/* A comparison was given up. */
int mf_promote_miss(struct mf_farm *f, struct mf_task *g, const char *reason);

/* Its task is cancelled: what is pending stays undecided. */
int mf_promote_cancel(struct mf_farm *f, struct mf_task *g);

/* The layout of the weights of the task's known row. 1; 0: nothing is known, or what is known is no pipeline here. */
int mf_promote_layout(struct mf_farm *f, struct mf_task *g, char ret[MF_PATH_LAYOUT_MAX]);
