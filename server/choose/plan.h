/* Cuts a task's steps into probe units. Pure functions.
 *
 * A unit holds steps with the same block_m (steps without a block_m form their own units), of families that
 * the same workers offer, so that each of these workers can run the unit. All its steps cover the same ops,
 * unless several small sets of covered ops fit. A unit should take about target_s. With shorter units, less
 * work is lost if a worker dies; with longer units, workers create the shape's data less often. The cut
 * depends only on the steps, not on the worker. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "server/choose/ceilings.h"
#include "server/store/store_unit.h"

#define MF_PLAN_UNIT_STEPS_MAX 64

struct mf_plan_options {
    double target_s;             /* seconds per unit */
    struct mf_ceilings ceilings; /* ceilings of the device; 0: unknown */
};

/* Returns the estimated seconds to verify and time the step. */
double mf_plan_step_s(const struct mf_step_row *step, const struct mf_ceilings *ceilings);
/* Sorts the steps into measurement order and cuts them: unit i ends before index ret_ends[i]. ret_ends must
 * have n entries. Returns the number of units. */
size_t mf_plan_cut(struct mf_step_row *steps, size_t n, const struct mf_plan_options *options,
                   size_t *ret_ends);
