/* The runner's sink: what a unit reports, as messages to the worker, and the time it spends by phase. */
#pragma once

#include "kernels/core/device.h"
#include "measure/session/unit.h"
#include "worker/runner/runner_wire.h"

struct mf_runner_sink {
    struct mf_sink sink; /* first: sessions see only this */
    struct mf_channel *channel;
    const struct mf_device_info *device; /* NULL until it is described */
    double told;                         /* sum of the ceilings that the last `described` gave */
    enum mf_phase now;
    uint64_t since_ns;
    double busy_s[MF_PHASE_N_];
};

void mf_runner_sink_init(struct mf_runner_sink *s, struct mf_channel *channel);
/* Sends `described`. From then on it is sent again before a result, whenever the device's ceilings, measured anew,
 * have risen: the coordinator judges results by them too. The info must live as long as s. */
int mf_runner_sink_describe(struct mf_runner_sink *s, const struct mf_device_info *device);
/* Sends `end` with the busy seconds of this unit, and begins anew. */
int mf_runner_sink_end(struct mf_runner_sink *s);
