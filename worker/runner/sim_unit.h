/* Probe and race on a simulated device: results without data. Planted faults of the device's spec either
 * happen (a crash kills the runner) or are reported as the gate that would have rejected them. */
#pragma once

#include "measure/session/session.h"

int mf_sim_probe(struct mf_device *device, const struct mf_shape *shape,
                 const struct mf_unit_options *options, const struct mf_probe_step *steps, size_t n,
                 struct mf_sink *sink);
/* An entry fails as a whole if one of its steps has a planted fault. */
int mf_sim_race(struct mf_device *device, const struct mf_shape *shape, const struct mf_unit_options *options,
                const struct mf_race_entry *entries, size_t n, const struct mf_race_plan *plan,
                struct mf_sink *sink);
