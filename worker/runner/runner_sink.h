/* The runner's sink: sends the reports of a unit to the worker and accounts time by phase. */
#pragma once

#include "kernels/core/device.h"
#include "measure/session/unit.h"
#include "worker/runner/runner_wire.h"

struct mf_runner_sink {
    struct mf_sink sink; /* must be the first member: sessions get a pointer to it */
    struct mf_channel *channel;
    const struct mf_device_info *device; /* NULL until described */
    double sent_ceilings;                /* sum of the ceilings in the last `described` */
    enum mf_phase phase;
    uint64_t since_ns;
    double busy_s[MF_PHASE_N_];
};

void mf_runner_sink_init(struct mf_runner_sink *s, struct mf_channel *channel);
/* Sends `described`. If the measured ceilings rise later, it is sent again before the next result, since the
 * coordinator checks results against them. The info must outlive s. */
int mf_runner_sink_describe(struct mf_runner_sink *s, const struct mf_device_info *device);
/* Sends `end` with the seconds per phase of this unit and resets them. */
int mf_runner_sink_end(struct mf_runner_sink *s);
