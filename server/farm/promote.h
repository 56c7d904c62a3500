/* Promotion: decides whether a task's new row replaces the known row of its key.
 *
 * With promote=improved the winner of a race must also beat the known row. The two rows race again on one
 * device, and only the rounds of this comparison are used. If the new row wins and another device of the
 * class and model is connected, the two rows also race on that device. The new row is promoted if it is
 * FASTER (common/base/paired.h) on each device. Otherwise the known row stays, with the time from the
 * comparison, so that no older time is exported. A comparison is a unit of kind `compare`; its results decide
 * only the promotion.
 *
 * The known row comes from the batch's baseline or, without a baseline, from an earlier batch of the farm.
 * There are three special cases. A known row that is no longer a pipeline, because a step is gone or wrong,
 * is replaced, and the decision states this reason. A known row whose weight layout differs from the rest of
 * its layer model is replaced, too; this is possible only if the known rows of the layer model have different
 * layouts. A known row that names no pipeline (foreign kernels) cannot be compared. Such a row stays, and
 * the decision is `undecided` before anything is measured.
 *
 * Every decision is stored in table promotion. */
#pragma once

#include "common/moe/pipeline_search.h"
#include "server/farm/farm_private.h"

/* Ends the batch's waiting tasks whose known row names no pipeline, before anything is measured. Returns the
 * number of these tasks. The batch ends too if no other task is open. */
int mf_promote_skip_unnamed(struct mf_farm *f, int64_t batch);
/* Calls mf_promote_skip_unnamed for batches with tasks that have just been assigned to the class. Returns 0
 * or a negative errno. */
int mf_promote_skip_for_class(struct mf_farm *f, int64_t class_id);
/* Call after the consumer's race: makes the decision, or starts a comparison. */
int mf_promote_start(struct mf_farm *f, struct mf_task *g, enum mf_consumer c);
/* Call after a comparison has ended. */
int mf_promote_compared(struct mf_farm *f, struct mf_task *g, const struct mf_lease *l);
/* Call if the second device is gone before it ran the comparison. The result of the first device then
 * decides. */
int mf_promote_without_second(struct mf_farm *f, struct mf_task *g, enum mf_consumer c);
/* Call if a comparison was given up. The decision is then `undecided`. */
int mf_promote_not_compared(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *reason);

/* Call if the task is cancelled. Pending decisions then become `undecided`. */
int mf_promote_cancel(struct mf_farm *f, struct mf_task *g);

/* Finds the weight layout of the consumer's known row. Returns 1, or 0 if there is no known row or it is not
 * a pipeline that the consumer dispatches. */
int mf_promote_layout(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, char ret[MF_PATH_LAYOUT_MAX]);
