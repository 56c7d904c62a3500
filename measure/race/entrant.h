/* Entrants: whole pipelines on one session's data, verified against the layer's reference by every gate, then
 * timed one run at a time. Used for races, table rows and comparisons of two rows.
 *
 * Entrants run through the same code as production (kernels/pipeline/fmoe.h). All entrants of a session share
 * two outputs, one arena and the rotation cursor. Each call uses the next rotation, so that all calls do
 * equal work and none finds weights in the cache that the previous call has just read. The L2 and instruction
 * caches of a GPU are evicted before each call: on an H200, 17 MB of dirty lines cost the next call 10 of 167
 * µs, and evicted code costs 3 of 112 µs. */
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
/* Valid until the session creates other outputs or is trimmed. -ENOMEM. */
int mf_race_buffers_init(struct mf_race_buffers *c, struct mf_session *s);

struct mf_entrant {
    struct mf_race_buffers *buffers;
    struct mf_pipeline *pipeline; /* not owned */
    struct mf_measured measured;
    double flops;
    double tolerance; /* maximum reorder_tolerance of the steps */
    struct mf_verdict verdict;
    int verified; /* verified runs; 2: all gates passed */
};
/* The functions below return MF_STATUS_OK, or the failure's status and its reason. An entrant must not move
 * after mf_entrant_init: callbacks keep its address. */

/* Finds or creates the pipeline's weights and its arena. The pipeline must have the session's shape; it stays
 * owned by the caller. */
enum mf_status mf_entrant_init(struct mf_entrant *e, struct mf_race_buffers *c, struct mf_pipeline *pipeline,
                               char reason[MF_REASON_MAX]);
/* Runs once through all gates except the second run. *ret_us: time of the run. */
enum mf_status mf_entrant_check(struct mf_entrant *e, double *ret_us, char reason[MF_REASON_MAX]);
/* True if the time of a checked run is a valid sample. It is not if the weights may be cached (checked runs
 * all use rotation 0), or if a step is not built in: its first run may have to load code. */
bool mf_entrant_check_is_sample(const struct mf_entrant *e);
/* Runs twice through all gates. The second output must agree with the first. */
enum mf_status mf_entrant_verify(struct mf_entrant *e, char reason[MF_REASON_MAX]);
/* One timed run with the next rotation. */
enum mf_status mf_entrant_sample(struct mf_entrant *e, double *ret_us, char reason[MF_REASON_MAX]);
