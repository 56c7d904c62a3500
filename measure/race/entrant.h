/* Pipelines on one session's data, run as production runs them (kernels/pipeline/fmoe.h): held against the layer's reference by every
 * gate, then timed one run at a time. What enters a race, what a table's row is, and the two sides of a comparison.
 *
 * A course is what the entrants of one session share: two outputs, one arena, and the turn of the rotations. Every call
 * takes the next rotation, whoever's it is: all do equal work, and none finds its weights in the cache because the one before
 * it has just read them. Nor does one wait for what another wrote, or find its own code: a GPU's last cache and what its units keep of
 * instructions are washed before each call, for 17 MB that somebody wrote there cost the next one 10 of 167 µs on an H200, and code that
 * was gone 3 of 112 (docs/findings.md). */
#pragma once

#include "common/moe/status.h"
#include "kernels/pipeline/fmoe.h"
#include "measure/race/measure.h"
#include "measure/verify/verify.h"

struct mf_course {
    struct mf_session *session;
    struct mf_guarded *y[2];
    int run;    /* which y the next run writes to */
    int cursor; /* rotation of the last run */
};
/* Good until the session makes other outputs or is trimmed. -ENOMEM. */
int mf_course_init(struct mf_course *c, struct mf_session *s);

struct mf_entrant {
    struct mf_course *course;
    struct mf_pipeline *pipeline; /* the caller's */
    struct mf_measured measured;
    double flops;
    double tolerance; /* the largest of its steps' */
    struct mf_verdict verdict;
    int verified; /* runs that passed: 2 = all gates */
};
/* All give MF_STATUS_OK, or what became of it and the reason. An entrant stays where it is from its init on. */

/* Its weights, and room for its tensor specs. The pipeline is of the session's shape and stays the caller's. */
enum mf_status mf_entrant_init(struct mf_entrant *e, struct mf_course *c, struct mf_pipeline *pipeline,
                               char reason[MF_REASON_MAX]);
/* One run through all gates: what is left unwritten anywhere, is damaged or wrong is refused. It is timed as any other. */
enum mf_status mf_entrant_check(struct mf_entrant *e, double *ret_us, char reason[MF_REASON_MAX]);
/* Is a checked run as good a sample as any? One that finds its weights in a cache is none, as checked runs are of one rotation; nor is
 * the first run of a step that is not of this build, which may have to load what it needs. */
bool mf_entrant_check_counts(const struct mf_entrant *e);
/* Two runs through all gates, one behind the other: what differs from run to run is refused too. */
enum mf_status mf_entrant_verify(struct mf_entrant *e, char reason[MF_REASON_MAX]);
/* One timed run in the next rotation. */
enum mf_status mf_entrant_sample(struct mf_entrant *e, double *ret_us, char reason[MF_REASON_MAX]);
