/* Events: rows for those who come later, messages for those who listen. */
#include "server/farm/farm_private.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "server/farm/bus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_KEPT 200000

int mf_event_tell(struct mf_farm *f, int64_t batch, const char *kind, cJSON *body)
{
    _cleanup_(cJSON_Deletep) cJSON *owned = body;
    _cleanup_(mf_freep) char *text = body ? mf_json_print(body) : NULL;
    int64_t id;
    if (!text)
        return -ENOMEM;
    int r = mf_array_grow(&f->told, f->n_told, &f->cap_told, sizeof(*f->told));
    if (r < 0)
        return r;
    r = mf_store_event_add(f->store, batch, kind, text, f->wall_ms, &id);
    if (r == 0 && id % 4096 == 0)
        r = mf_store_events_trim(f->store, EVENTS_KEPT);
    if (r < 0)
        return r;
    f->told[f->n_told++] = (struct mf_event){.id = id, .batch = batch, .kind = kind, .body = MF_TAKE(text)};
    f->stats.events++;
    return 0;
}

static void send_untold(struct mf_farm *f)
{
    const struct mf_event *e = &f->no_completion_signal;
    if (!e->body || (f->events && mf_bus_send_event(f->events, e->id, e->batch, e->kind, e->body) == -EAGAIN))
        return;
    free(f->no_completion_signal.body);
    f->no_completion_signal = (struct mf_event){0};
}

/* Whoever sees a gap reads the table, so of events that find no room only the latest has to arrive: in a later turn. */
void mf_events_publish(struct mf_farm *f)
{
    send_untold(f);
    for (size_t i = 0; i < f->n_told; i++) {
        free(f->no_completion_signal.body);
        f->no_completion_signal = f->told[i];
        send_untold(f);
    }
    f->n_told = 0;
}

struct told_task {
    int64_t batch, task, n_steps, n_measured;
    enum mf_task_state state;
    const char *reason;
};

static int tell_task(struct mf_farm *f, const struct told_task *t)
{
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "batch", t->batch);
    mf_json_add_i64(body, "task", t->task);
    cJSON_AddStringToObject(body, "state", mf_task_state_name(t->state));
    mf_json_add_i64(body, "steps", t->n_steps);
    mf_json_add_i64(body, "measured", t->n_measured);
    cJSON_AddStringToObject(body, "reason", t->reason);
    return mf_event_tell(f, t->batch, "task", body);
}

int mf_event_task(struct mf_farm *f, struct mf_task *g, const char *reason)
{
    g->told_ms = f->now_ms;
    g->changed = false;
    return tell_task(f, &(struct told_task){.batch = g->batch->id,
                                            .task = g->id,
                                            .state = g->state,
                                            .n_steps = g->n_steps,
                                            .n_measured = g->n_measured,
                                            .reason = reason});
}

int mf_event_task_ended(struct mf_farm *f, int64_t batch, int64_t task, enum mf_task_state state)
{
    return tell_task(f, &(struct told_task){.batch = batch, .task = task, .state = state, .reason = ""});
}

int mf_event_worker(struct mf_farm *f, struct mf_slot *slot, const char *state)
{
    slot->told = (struct mf_slot_told){.state = state, .unit = slot->unit, .at_ms = f->now_ms};
    memcpy(slot->told.step, slot->step, sizeof(slot->step));
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "worker", slot->id);
    cJSON_AddStringToObject(body, "name", slot->name);
    cJSON_AddStringToObject(body, "state", state);
    if (slot->unit)
        mf_json_add_i64(body, "unit", slot->unit);
    else
        cJSON_AddNullToObject(body, "unit");
    cJSON_AddStringToObject(body, "step", slot->step);
    return mf_event_tell(f, 0, "worker", body);
}
