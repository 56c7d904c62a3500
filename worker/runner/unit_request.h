/* Parses the message `unit`: a probe of steps, or a race of pipelines. */
#pragma once

#include <cjson/cJSON.h>

#include "measure/session/session.h"

/* A parsed `unit` message. */
struct mf_unit_request {
    struct mf_shape shape;
    struct mf_unit_options options;
    const cJSON *best;
    struct mf_probe_step *steps;
    struct mf_race_entry *entries;
    size_t n, n_dropped; /* dropped items follow the first n; they do not run */
    struct mf_race_plan plan;
};

/* Reads member `shape` of a message. Returns a negative errno if it is missing or invalid. */
int mf_unit_shape_parse(const cJSON *message, struct mf_shape *ret);
/* kind is "probe" or "race". Returns -EINVAL for a missing or invalid member and its name in *ret_field.
 * `best` points into the message. Release *q in any case. */
int mf_unit_request_parse(const cJSON *unit, const char *kind, struct mf_unit_request *q,
                          const char **ret_field);
void mf_unit_request_release(struct mf_unit_request *q);
