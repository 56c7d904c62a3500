/* Options of a batch that exclude steps from its tasks. */
#pragma once

#include "server/farm/farm_private.h"

/* Returns true, and the reason, if the step covers all ops of an entry of the batch's no_fuse list. */
bool mf_step_policy_no_fuse(const struct mf_batch *b, mf_ops covers, char reason[MF_REASON_MAX]);
/* Returns 1, and the reason, if the batch's options fuse_saves, split_k or layout exclude the step; otherwise
 * 0, or an error of the store. */
int mf_step_policy_excludes(struct mf_farm *f, const struct mf_batch *b, const struct mf_step_row *row,
                            char reason[MF_REASON_MAX]);
