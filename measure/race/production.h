/* Checks a pipeline of a framework's kernels through the framework's own production operator, with the row of
 * its tuned table that names these kernels. A row that production would not use, or for which it computes a
 * wrong result, must not win. */
#pragma once

#include "measure/race/entrant.h"

/* Verifies the operator by all gates. Returns MF_STATUS_OK also if the steps have no production operator
 * (mf_family.production). Otherwise returns the failure, with its cause in `reason`. */
enum mf_status mf_production_check(struct mf_race_buffers *c, const struct mf_step *steps, size_t n,
                                   char reason[MF_REASON_MAX]);
/* True if mf_production_check runs an operator for these steps. */
bool mf_production_has(const struct mf_session *s, const struct mf_step *steps, size_t n);
