#include "worker/agent/recovery_time.h"

void mf_recovery_time_died(struct mf_recovery_time *c, uint64_t now_ns)
{
    *c = (struct mf_recovery_time){.died_ns = now_ns};
}

void mf_recovery_time_ready(struct mf_recovery_time *c, uint64_t now_ns)
{
    if (c->died_ns && !c->ready_ns)
        c->ready_ns = now_ns;
}

void mf_recovery_time_unit_sent(struct mf_recovery_time *c, uint64_t now_ns)
{
    if (c->ready_ns && !c->unit_sent_ns)
        c->unit_sent_ns = now_ns;
}

void mf_recovery_time_begun(struct mf_recovery_time *c, uint64_t now_ns)
{
    if (c->unit_sent_ns && !c->begun_ns)
        c->begun_ns = now_ns;
}

bool mf_recovery_time_result(struct mf_recovery_time *c, uint64_t now_ns, struct mf_recovery_time_ms *ret)
{
    if (!c->begun_ns)
        return false;
    ret->context = (double)(c->ready_ns - c->died_ns) * 1e-6;
    ret->data = (double)(c->begun_ns - c->unit_sent_ns) * 1e-6;
    ret->step = (double)(now_ns - c->begun_ns) * 1e-6;
    *c = (struct mf_recovery_time){0};
    return true;
}
