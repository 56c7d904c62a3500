/* Probe and race of a simulated device: results without data. Faults of the device's spec are carried out for
 * real (a planted crash kills the runner) or reported as the gate that would have refused them. */
#pragma once

#include "measure/session/session.h"

int mf_sim_probe(struct mf_device *device, const struct mf_shape *shape,
                 const struct mf_unit_options *options, const struct mf_probe_step *steps, size_t n,
                 struct mf_sink *sink);
/* Entries whose steps have a planted fault fail as a whole. */
int mf_sim_race(struct mf_device *device, const struct mf_shape *shape, const struct mf_unit_options *options,
                const struct mf_race_entry *entries, size_t n, const struct mf_race_plan *plan,
                struct mf_sink *sink);
