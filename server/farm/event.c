/* Stores events as rows for later readers, and publishes them to connected subscribers. */
#include "server/farm/farm_private.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "server/farm/bus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_KEPT 200000

int mf_event_add(struct mf_farm *f, int64_t batch, const char *kind, cJSON *body)
{
    _cleanup_(cJSON_Deletep) cJSON *owned = body;
    _cleanup_(mf_freep) char *text = body ? mf_json_print(body) : NULL;
    int64_t id;
    if (!text)
        return -ENOMEM;
    int r = mf_array_grow(&f->new_events, f->n_new_events, &f->cap_new_events, sizeof(*f->new_events));
    if (r < 0)
        return r;
    r = mf_store_event_add(f->store, batch, kind, text, f->wall_ms, &id);
    if (r == 0 && id % 4096 == 0)
        r = mf_store_events_trim(f->store, EVENTS_KEPT);
    if (r < 0)
        return r;
    f->new_events[f->n_new_events++] =
        (struct mf_event){.id = id, .batch = batch, .kind = kind, .body = MF_TAKE(text)};
    f->stats.events++;
    return 0;
}

static void send_unsent_event(struct mf_farm *f)
{
    const struct mf_event *e = &f->unsent_event;
    if (!e->body || (f->events && mf_bus_send_event(f->events, e->id, e->batch, e->kind, e->body) == -EAGAIN))
        return;
    free(f->unsent_event.body);
    f->unsent_event = (struct mf_event){0};
}

/* Publishes the new events. A subscriber that sees a gap in the ids reads the missing events from the table.
 * So if the subscriber's queue is full, it is enough to send the latest event again in a later iteration. */
void mf_events_publish(struct mf_farm *f)
{
    send_unsent_event(f);
    for (size_t i = 0; i < f->n_new_events; i++) {
        free(f->unsent_event.body);
        f->unsent_event = f->new_events[i];
        send_unsent_event(f);
    }
    f->n_new_events = 0;
}

struct task_event {
    int64_t batch, task;
    struct mf_task_counts counts;
    enum mf_task_state state;
    const char *reason;
};

static int add_task_event(struct mf_farm *f, const struct task_event *t)
{
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "batch", t->batch);
    mf_json_add_i64(body, "task", t->task);
    cJSON_AddStringToObject(body, "state", mf_task_state_name(t->state));
    mf_json_add_i64(body, "candidates", t->counts.candidates);
    mf_json_add_i64(body, "steps", t->counts.steps);
    mf_json_add_i64(body, "measured", t->counts.measured);
    cJSON_AddStringToObject(body, "reason", t->reason);
    return mf_event_add(f, t->batch, "task", body);
}

int mf_event_task(struct mf_farm *f, struct mf_task *g, const char *reason)
{
    g->published_ms = f->now_ms;
    g->changed = false;
    return add_task_event(
        f,
        &(struct task_event){
            .batch = g->batch->id, .task = g->id, .state = g->state, .counts = g->counts, .reason = reason});
}

int mf_event_task_ended(struct mf_farm *f, int64_t batch, int64_t task, enum mf_task_state state)
{
    return add_task_event(f,
                          &(struct task_event){.batch = batch, .task = task, .state = state, .reason = ""});
}

int mf_event_worker(struct mf_farm *f, struct mf_slot *slot, const char *state)
{
    slot->published = (struct mf_slot_published){.state = state, .unit = slot->unit, .at_ms = f->now_ms};
    memcpy(slot->published.step, slot->step, sizeof(slot->step));
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "worker", slot->id);
    cJSON_AddStringToObject(body, "name", slot->name);
    cJSON_AddStringToObject(body, "state", state);
    if (slot->unit)
        mf_json_add_i64(body, "unit", slot->unit);
    else
        cJSON_AddNullToObject(body, "unit");
    cJSON_AddStringToObject(body, "step", slot->step);
    return mf_event_add(f, 0, "worker", body);
}
