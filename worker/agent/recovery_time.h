/* What a runner's death costs: the time from it to the next step's result, by what it went on.
 *
 *   idle ─died─► dead ─ready─► ready (context) ─begun─► begun (data) ─result─► idle (step)
 *
 * Another death on the way begins anew. Time in which there was no unit to go on with counts as none of them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct mf_recovery_time {
    uint64_t died_ns, ready_ns, asked_ns, begun_ns; /* 0: not yet */
};

void mf_recovery_time_died(struct mf_recovery_time *c, uint64_t now_ns);
/* A runner has opened the device. */
void mf_recovery_time_ready(struct mf_recovery_time *c, uint64_t now_ns);
/* It was given a unit. */
void mf_recovery_time_asked(struct mf_recovery_time *c, uint64_t now_ns);
/* It has the data of a step, and starts on it. */
void mf_recovery_time_begun(struct mf_recovery_time *c, uint64_t now_ns);

struct mf_recovery_time_ms {
    double context, data, step;
};
/* A result came. True, once, when it is the first after a death. */
bool mf_recovery_time_result(struct mf_recovery_time *c, uint64_t now_ns, struct mf_recovery_time_ms *ret);
