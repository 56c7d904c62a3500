/* Probes and races on a simulated device, without data. The device's spec can plant faults in steps. A
 * planted fault either happens (a crash kills the runner), or its step is reported as rejected by the gate
 * that would detect the fault. */
#pragma once

#include "measure/session/session.h"

int mf_sim_probe(struct mf_device *device, const struct mf_shape *shape,
                 const struct mf_unit_options *options, const struct mf_probe_step *steps, size_t n,
                 struct mf_sink *sink);
/* A pipeline fails if one of its steps has a planted fault. */
int mf_sim_race(struct mf_device *device, const struct mf_shape *shape, const struct mf_unit_options *options,
                const struct mf_race_entry *entries, size_t n, const struct mf_race_plan *plan,
                struct mf_sink *sink);
