/* Cutting a task's steps into probe units. Pure.
 *
 * A unit holds steps of one block_m (steps that do not care are in units of their own), and of one set of covered ops
 * unless several small sets fit one unit; it is expected to take about target_s. Small units lose little when a
 * worker dies, large ones make less of the shape's data again. The cut depends on the steps only, not on who measures. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "server/farm/slot.h"
#include "server/store/store_unit.h"

#define MF_PLAN_UNIT_STEPS_MAX 64

struct mf_plan_options {
    double target_s;             /* of a unit: 2 */
    struct mf_ceilings ceilings; /* of the device; 0: unknown */
};

/* Seconds that verifying and timing the step are expected to take. */
double mf_plan_step_s(const struct mf_step_row *step, const struct mf_ceilings *ceilings);
/* Sorts the steps into the order in which they are measured, and cuts: unit i ends before ret_ends[i]. Room for n
 * ends is the caller's. */
size_t mf_plan_cut(struct mf_step_row *steps, size_t n, const struct mf_plan_options *options,
                   size_t *ret_ends);
