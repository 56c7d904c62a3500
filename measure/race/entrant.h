/* Entrants: whole pipelines that run on one session's data. An entrant is verified against the layer's
 * reference by every gate, then timed one run at a time. Races, table rows and comparisons of two rows use
 * entrants.
 *
 * Entrants run through the same code as production (kernels/pipeline/fmoe.h). All entrants of a session share
 * two outputs, one arena and the rotation cursor. Each call uses the next rotation, so that all calls do
 * equal work and no call finds its weights in the cache. The L2 and instruction caches of a GPU are evicted
 * before each call, because their contents affect the time. On an H200, 17 MB of dirty lines in the L2 cache
 * cost the next call 10 of its 167 µs, and evicted code costs a call 3 of its 112 µs. */
#pragma once

#include "common/moe/status.h"
#include "kernels/pipeline/fmoe.h"
#include "measure/race/measure.h"
#include "measure/verify/verify.h"

struct mf_race_buffers {
    struct mf_session *session;
    struct mf_guarded *y[2];
    int run;    /* index of the output that the next run writes */
    int cursor; /* rotation of the last run */
};
/* Initialises the buffers. They are valid until the session creates other outputs or is trimmed. Returns 0 or
 * -ENOMEM. */
int mf_race_buffers_init(struct mf_race_buffers *c, struct mf_session *s);

struct mf_entrant {
    struct mf_race_buffers *buffers;
    struct mf_pipeline *pipeline; /* owned by the caller */
    struct mf_measured measured;
    double flops;
    double tolerance; /* maximum reorder_tolerance of the steps */
    struct mf_verdict verdict;
    int verified; /* number of verified runs; 2 if all gates passed */
};
/* The functions below return MF_STATUS_OK, or the status of the failure with its cause in `reason`. An
 * entrant must not move after mf_entrant_init, because callbacks keep its address. */

/* Finds or creates the pipeline's weights and arena. The pipeline must have the session's shape. The caller
 * keeps ownership of the pipeline. */
enum mf_status mf_entrant_init(struct mf_entrant *e, struct mf_race_buffers *c, struct mf_pipeline *pipeline,
                               char reason[MF_REASON_MAX]);
/* Runs once through all gates except the comparison of two runs. *ret_us is the time of the run. */
enum mf_status mf_entrant_check(struct mf_entrant *e, double *ret_us, char reason[MF_REASON_MAX]);
/* True if the time of a checked run is a valid sample. It is invalid in two cases: the weights may be in the
 * cache, because all checked runs use rotation 0; or a step is not built in, so that its first run may have
 * to load code. */
bool mf_entrant_check_is_sample(const struct mf_entrant *e);
/* Runs twice through all gates. The second output must agree with the first. */
enum mf_status mf_entrant_verify(struct mf_entrant *e, char reason[MF_REASON_MAX]);
/* Times one run with the next rotation. */
enum mf_status mf_entrant_sample(struct mf_entrant *e, double *ret_us, char reason[MF_REASON_MAX]);
