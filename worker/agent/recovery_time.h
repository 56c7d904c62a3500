/* Measures the recovery time: from the death of a runner to the next result of a step, split into three
 * parts.
 *
 *   idle ─died─► dead ─ready─► ready (context) ─begun─► begun (data) ─result─► idle (step)
 *
 * Another death starts the measurement again. Time without a unit is in none of the three parts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct mf_recovery_time {
    /* times of the events; 0: the event has not happened yet */
    uint64_t died_ns, ready_ns, unit_sent_ns, begun_ns;
};

void mf_recovery_time_died(struct mf_recovery_time *c, uint64_t now_ns);
/* Records that a runner has opened the device. */
void mf_recovery_time_ready(struct mf_recovery_time *c, uint64_t now_ns);
/* Records that the runner got a unit. */
void mf_recovery_time_unit_sent(struct mf_recovery_time *c, uint64_t now_ns);
/* Records that the runner has the data and begins a step. */
void mf_recovery_time_begun(struct mf_recovery_time *c, uint64_t now_ns);

struct mf_recovery_time_ms {
    double context, data, step;
};
/* Reports a result. Returns true with the times in *ret if the result is the first one after a death. */
bool mf_recovery_time_result(struct mf_recovery_time *c, uint64_t now_ns, struct mf_recovery_time_ms *ret);
