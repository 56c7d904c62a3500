/* The runner's sink: sends the reports of a unit to the worker and sums the time spent in each phase. */
#pragma once

#include "kernels/core/device.h"
#include "measure/session/unit.h"
#include "worker/runner/runner_wire.h"

struct mf_runner_sink {
    struct mf_sink sink; /* must be the first member: sessions get a pointer to it */
    struct mf_channel *channel;
    const struct mf_device_info *device; /* NULL before `described` is sent */
    double sent_ceilings;                /* sum of the ceilings in the last `described` */
    enum mf_phase phase;
    uint64_t since_ns;
    double busy_s[MF_PHASE_N_];
};

void mf_runner_sink_init(struct mf_runner_sink *s, struct mf_channel *channel);
/* Sends `described`. If the measured ceilings rise later, `described` is sent again before the next result,
 * because the coordinator checks results against the ceilings. `device` must outlive s. */
int mf_runner_sink_describe(struct mf_runner_sink *s, const struct mf_device_info *device);
/* Sends `end` with the seconds that this unit spent in each phase. Then resets the seconds. */
int mf_runner_sink_end(struct mf_runner_sink *s);
