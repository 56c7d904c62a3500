/* A session: one shape's data on a device inside a runner, and the two things done with it.
 *
 * Weights of the layer model are made once in sealed memory files (through the memfd_store), packed into each layout
 * that a step asks for; x, routing and references are the shape's own, and the references are kept likewise. Routing is rotated over the experts so
 * that every timed call finds its weights cold: rotation r maps expert e to (e + r·stride) mod E.
 *
 * Gates, in this order (design section 6), each with its own sentence: guard bands intact; poison overwritten
 * in every valid row; outputs finite; mismatch ratio within err_ratio; worst expert; worst row; a second run agrees. Times
 * of zero or below, or beyond the device's ceilings, are refused as implausible. */
#pragma once

#include "kernels/core/device.h"
#include "kernels/core/family.h"
#include "measure/race/race.h"
#include "measure/session/unit.h"

struct mf_session;

struct mf_session_args {
    struct mf_device *device;
    struct mf_shape shape;
    const struct mf_unit_options *options; /* copied */
    struct mf_memfd_store *memfd_store;    /* NULL: memory lives in this process only */
    const struct mf_family_set *extra;     /* families beside the registry's, searched first; NULL: none */
    struct mf_sink *sink;                  /* told of phases while data is made; may be NULL */
};
/* Makes or finds the data of the shape: cheap when the memfd_store, or an earlier session of this process, has the
 * weights and the references. A runner keeps one session for units of the same shape and options. -EINVAL, -ENOMEM, with the
 * sentence in why. */
int mf_session_new(const struct mf_session_args *args, char *why, size_t why_cap, struct mf_session **ret);
/* The same shape, routing, seed and device: the session can serve the next unit as it is. */
bool mf_session_serves(const struct mf_session *s, const struct mf_shape *shape,
                       const struct mf_unit_options *o);
struct mf_session *mf_session_free(struct mf_session *s);

struct mf_probe_step {
    int64_t id;
    struct mf_step step;
};
/* best_us of a covers set known from elsewhere; 0 for none. */
typedef double (*mf_best_fn)(void *context, mf_ops covers);

/* Verifies and times each step, one result each. A failed step is a result; a negative return is the sink's. */
int mf_session_probe(struct mf_session *s, const struct mf_probe_step *steps, size_t n, mf_best_fn best,
                     void *context, struct mf_sink *sink);

struct mf_race_entry {
    int64_t id;
    int group; /* measure/race/race.h */
    double forecast_us;
    const struct mf_step *steps;
    size_t n_steps;
};
/* Races the pipelines through mf_pipeline_run. No one has a time before its output was right end to end, by every gate but the second
 * run's, and none is measured afresh before it was so twice and the same; where the plan has nobody measured afresh, all are checked
 * twice before the first round. */
int mf_session_race(struct mf_session *s, const struct mf_race_entry *entries, size_t n,
                    const struct mf_race_plan *plan, struct mf_sink *sink);

/* Every buffer that a session hands to a launch lies in a memory file, so that a foreign program can map it.
 * Which file, and where in it; -ENOENT for an address that is not a session's. */
int mf_session_locate(const void *address, int *ret_fd, uint64_t *ret_offset);

/* One run of the fixed reference kernel, in microseconds; NAN: it did not run. Behind every step and entrant it shows a device
 * that is slow just then (mf_session_canary). */
double mf_canary_us(struct mf_device *device);
