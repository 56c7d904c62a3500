/* Options of a batch that exclude steps from its tasks. */
#pragma once

#include "server/farm/farm_private.h"

/* Each call returns true, and the reason, if the batch excludes the step. */
/* The step needs a weight in another layout than the batch's. step: JSON of mf_step_print. */
bool mf_step_policy_other_layout(const struct mf_batch *b, const cJSON *step, char reason[MF_REASON_MAX]);
/* The step covers all ops of an entry of the batch's no_fuse list. */
bool mf_step_policy_no_fuse(const struct mf_batch *b, mf_ops covers, char reason[MF_REASON_MAX]);
