/* A session holds the data of one shape on one device inside a runner. It probes steps and races pipelines.
 *
 * The weights of the layer model are created once in sealed memory files (memfd_store) and converted to each
 * layout that a step needs. References are stored likewise. Routing is rotated over the experts so that every
 * timed call reads cold weights. Rotation r maps expert e to (e + shift[r]) mod E (measure/race/rotate.h).
 *
 * The gates apply in this order, each with its own message: guard bands intact; poison overwritten in every
 * valid row; outputs finite; mismatch ratio within err_ratio; worst expert; worst row; second run agrees.
 * Times that are <= 0 or beyond the device's ceilings are rejected as implausible. */
#pragma once

#include "kernels/core/device.h"
#include "kernels/core/family.h"
#include "measure/race/race.h"
#include "measure/session/unit.h"

struct mf_session;

struct mf_session_args {
    struct mf_device *device;
    struct mf_shape shape;
    const struct mf_unit_options *options; /* the session copies the options */
    struct mf_memfd_store *memfd_store;    /* NULL: memory is private to this process */
    /* families besides the built-in ones, searched first; NULL: none */
    const struct mf_family_set *extra;
    struct mf_sink *sink; /* receives phase changes while data is created; may be NULL */
};
/* Creates or finds the data of the shape. Reuses weights and references that memfd_store holds. A runner
 * keeps one session for units of the same shape and options. Returns 0, or -EINVAL or -ENOMEM with a message
 * in why. */
int mf_session_new(const struct mf_session_args *args, char *why, size_t why_cap, struct mf_session **ret);
/* True if the session can run the next unit unchanged: the unit has the same shape, routing, seed and other
 * options. */
bool mf_session_serves(const struct mf_session *s, const struct mf_shape *shape,
                       const struct mf_unit_options *o);
struct mf_session *mf_session_free(struct mf_session *s);

struct mf_probe_step {
    int64_t id;
    struct mf_step step;
};
/* Returns the best time in microseconds that the caller knows for the set of ops `covers`, or 0. */
typedef double (*mf_best_fn)(void *context, mf_ops covers);

/* Verifies and times each step, and reports one result per step. A failed step is also a result. A negative
 * return value comes from the sink. */
int mf_session_probe(struct mf_session *s, const struct mf_probe_step *steps, size_t n, mf_best_fn best,
                     void *context, struct mf_sink *sink);

struct mf_race_entry {
    int64_t id;
    int group; /* group of the race (measure/race/race.h) */
    double forecast_us;
    const struct mf_step *steps;
    size_t n_steps;
};
/* Races the pipelines through mf_pipeline_run. A pipeline must pass every gate except the second run before
 * its first sample counts, and all gates before its rerun. If the plan has no reruns, all pipelines must pass
 * all gates before the first round. */
int mf_session_race(struct mf_session *s, const struct mf_race_entry *entries, size_t n,
                    const struct mf_race_plan *plan, struct mf_sink *sink);
