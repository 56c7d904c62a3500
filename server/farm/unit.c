/* Units and their leases.
 *
 *   ready ──grant──► leased ──last result: done──► done
 *     ▲                │ │ └──cancel──► cancelled (from ready too)
 *     │                │ └──release, after too many attempts──► failed
 *     └────release─────┘      lease expired, worker disconnected, or unit could not run
 *
 * A grant increases `attempt` and writes the epoch; (unit, attempt, epoch) identifies the results of a lease.
 * The next attempt has only the undecided steps. A lease lasts three heartbeats from the last BEAT that lists
 * the unit, but never longer than its limit (lease_limit_ms). */
#include "server/farm/farm_private.h"

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/moe/timeouts.h"
#include "server/farm/promote.h"
#include "server/farm/unit_message.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Maximum attempts of a unit that workers report they cannot run. For interrupted units the maximum is
 * options.attempts. */
#define FAILURES_MAX 3
/* Class ids are small and never 0, so no key is 0 */
#define START_TAG_KEY(batch, class) ((uint64_t)(batch) << 20 | (uint64_t)(class))

struct mf_lease *mf_lease_free(struct mf_lease *l)
{
    if (l) {
        free(l->items);
        free(l->routing);
    }
    free(l);
    return NULL;
}

MF_DEFINE_CLEANUP(struct mf_lease *, mf_lease_free);

/* ---- fair shares ----
 *
 * Batches of one priority share the workers of a class by start-time fair queueing. All units are planned for
 * the same duration, so each unit has a cost of 1. The start tag of a batch's next unit is the tag of its
 * last unit plus 1, but at least the smallest tag among the ready units. So a batch that is submitted late
 * gets the same share as the other batches from then on, and an idle batch accumulates no claim. A worker
 * that stays on its shape may lease units out of order; these units are charged to their batch as well. */

/* Finds the largest start tag of the batch's units on the class. batch 0: of all granted units. */
static int last_start_tag(struct mf_farm *f, int64_t batch, int64_t class, int64_t *ret)
{
    uintptr_t known = (uintptr_t)mf_map_get(&f->start_tags, START_TAG_KEY(batch, class));
    *ret = (int64_t)known - 1;
    if (known)
        return 0;
    *ret = 0;
    return batch ? mf_store_last_start_tag(f->store, batch, class, ret) : 0;
}

static int set_start_tag(struct mf_farm *f, int64_t batch, int64_t class, int64_t tag)
{
    return mf_map_put(&f->start_tags, START_TAG_KEY(batch, class), (void *)(uintptr_t)(tag + 1));
}

static int assign_start_tag(struct mf_farm *f, const struct mf_task *g, struct mf_unit_row *unit)
{
    int64_t own, now;
    int r = last_start_tag(f, g->batch->id, g->class_id, &own);
    if (r == 0)
        r = mf_store_least_start_tag(f->store, g->class_id, unit->priority, &now);
    if (r == 0) /* no unit is ready */
        r = last_start_tag(f, 0, g->class_id, &now);
    if (r < 0)
        return r;
    unit->start_tag = MF_MAX(own + 1, now);
    return set_start_tag(f, g->batch->id, g->class_id, unit->start_tag);
}

static int record_granted_tag(struct mf_farm *f, const struct mf_unit_row *row)
{
    int64_t now;
    int r = last_start_tag(f, 0, row->class, &now);
    return r < 0 ? r : set_start_tag(f, 0, row->class, MF_MAX(now, row->start_tag));
}

/* ---- (none) ─► ready ---- */

static int add_unit(struct mf_farm *f, struct mf_task *g, enum mf_unit_kind kind, const char *body,
                    int64_t avoid_worker, int64_t *ret_unit)
{
    /* Order within a priority: races first, because they end tasks; then enumerations, because they show how
     * much work there is; then retries, because tasks wait for them; then probes */
    int urgency = mf_unit_is_race(kind) ? 3 : kind == MF_UNIT_ENUMERATE ? 2 : avoid_worker ? 1 : 0;
    struct mf_unit_row row = {.task = g->id,
                              .class = g->class_id,
                              .kind = kind,
                              .body = (char *)body,
                              .priority = g->batch->priority * 4 + urgency,
                              .avoid_worker = avoid_worker};
    /* Urgent units ignore start tags and are not charged to their batch */
    int r = urgency ? 0 : assign_start_tag(f, g, &row);
    if (r == 0)
        r = mf_store_unit_add(f->store, &row, f->wall_ms, ret_unit);
    if (r < 0)
        return r;
    g->open_units++;
    mf_slots_clear_starved(&f->slots, g->class_id);
    return 0;
}

int mf_unit_add(struct mf_farm *f, struct mf_task *g, enum mf_unit_kind kind, const char *body,
                int64_t avoid_worker)
{
    int64_t unit;
    return add_unit(f, g, kind, body, avoid_worker, &unit);
}

int mf_unit_add_steps(struct mf_farm *f, struct mf_task *g, const struct mf_best_times *best,
                      const struct mf_unit_steps *steps, int64_t *ret_unit)
{
    struct mf_buf body;
    char covers[MF_OPS_TEXT_MAX];
    mf_buf_init(&body, MF_UNIT_TEXT_MAX);
    (void)mf_buf_adds(&body, "{\"steps\":[");
    for (size_t i = 0; i < steps->n; i++)
        (void)mf_buf_addf(&body, "%s%" PRId64, i ? "," : "", steps->ids[i]);
    (void)mf_buf_adds(&body, "],\"best_us\":{");
    for (int i = 0; i < best->n; i++) {
        mf_ops_print(best->entries[i].covers, covers);
        (void)mf_buf_addf(&body, "%s\"%s\":", i ? "," : "", covers);
        mf_json_put_number(&body, best->entries[i].us);
    }
    int r = mf_buf_adds(&body, "}}");
    if (r == 0)
        r = add_unit(f, g, MF_UNIT_PROBE, body.data, steps->avoid_worker, ret_unit);
    mf_buf_release(&body);
    return r;
}

/* ---- contents of a lease ---- */

static int read_ids(const cJSON *body, const char *key, size_t max, struct mf_lease *l)
{
    const cJSON *item, *array = mf_json_array(body, key);
    l->items = calloc((size_t)cJSON_GetArraySize(array) + 1, sizeof(*l->items));
    if (!l->items)
        return -ENOMEM;
    cJSON_ArrayForEach (item, array) {
        if (!cJSON_IsNumber(item) || l->n == max)
            return -EBADMSG;
        l->items[l->n++].id = (int64_t)item->valuedouble;
    }
    l->n_left = l->n;
    return 0;
}

static void read_best_times(const cJSON *body, int64_t worker, struct mf_best_times *ret)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, mf_json_object(body, "best_us")) {
        mf_ops covers;
        if (cJSON_IsNumber(item) && mf_ops_parse(item->string, &covers) == 0)
            mf_best_times_add(ret, covers, worker, item->valuedouble);
    }
}

/* Creates the lease for a unit's row. Fills in only the ids of its items. */
static int lease_new(struct mf_farm *f, const struct mf_unit_row *row, struct mf_lease **ret)
{
    _cleanup_(mf_lease_freep) struct mf_lease *l = calloc(1, sizeof(*l));
    _cleanup_(cJSON_Deletep) cJSON *body = mf_json_parse(row->body, strlen(row->body), MF_UNIT_TEXT_MAX);
    if (!l || !body)
        return -ENOMEM;
    *l = (struct mf_lease){.unit = row->id,
                           .attempt = row->attempt,
                           .epoch = row->epoch,
                           .kind = row->kind,
                           .families = row->families,
                           .worker = row->worker,
                           .deadline_ms = f->now_ms + f->lease_ms};
    int r = mf_task_get(f, row->task, &l->task);
    if (r == 0 && row->kind == MF_UNIT_PROBE)
        r = read_ids(body, "steps", SIZE_MAX, l);
    if (r == 0 && mf_unit_is_race(row->kind))
        r = read_ids(body, "pipelines", MF_FINALISTS_MAX, l);
    if (r < 0)
        return r;
    const char *routing, *consumer;
    l->n_groups = cJSON_GetArraySize(mf_json_array(body, "layouts"));
    l->end_ms = INT64_MAX; /* set when the items are known */
    (void)mf_json_bool(body, "second_try", &l->second_try);
    (void)mf_json_bool(body, "rerun", &l->rerun);
    (void)mf_json_i64(body, "enumeration", 1, INT64_MAX, &l->enumeration);
    (void)mf_json_i64(body, "first_worker", 1, INT64_MAX, &l->first_worker);
    if (mf_json_text(body, "consumer", &consumer) == 0 && mf_consumer_parse(consumer, &l->consumer) < 0)
        return -EBADMSG;
    if (mf_json_text(body, "routing", &routing) == 0) {
        l->routing = strdup(routing);
        if (!l->routing)
            return -ENOMEM;
    }
    read_best_times(body, l->worker, &l->best);
    *ret = MF_TAKE(l);
    return 0;
}

/* ---- ready ─► leased ---- */

/* Allowances of the limit. They are generous, because a slow worker must not lose its unit: the limit only
 * ends leases of workers that send heartbeats and never finish. */
#define LIMIT_FIXED_MS   (15 * 60 * 1000.0)
#define LIMIT_ITEM_MS    (60 * 1000.0) /* compiling */
#define LIMIT_TIME_CAPS  4             /* per item */
#define LIMIT_FORECASTS  200
#define LIMIT_DATA_CORES 1

/* Returns the longest time that a worker may hold the unit, derived from the forecast of its work. */
static int64_t lease_limit_ms(const struct mf_farm *f, const struct mf_lease *l)
{
    if (f->options.lease_max_s > 0)
        return (int64_t)(f->options.lease_max_s * 1e3);
    double ms = LIMIT_FIXED_MS + (double)mf_data_timeout_ms(&l->task->shape, LIMIT_DATA_CORES);
    for (size_t i = 0; i < l->n; i++)
        ms += LIMIT_ITEM_MS + LIMIT_TIME_CAPS * (double)l->task->batch->options.time_cap_ms +
              LIMIT_FORECASTS * l->items[i].forecast_us * 1e-3;
    return (int64_t)ms;
}

void mf_lease_assign(struct mf_farm *f, struct mf_lease *l, struct mf_slot *slot)
{
    l->slot = slot;
    l->worker = slot->id;
    if (slot->n_leases++ == 0)
        slot->progress_ms = f->now_ms;
    if (l->kind != MF_UNIT_ENUMERATE) /* enumerations create no data */
        slot->last_task = l->task->id;
    slot->dirty = true;
}

/* Sets the end of a lease that starts now, or that continues after a restart. */
static void limit_lease(struct mf_farm *f, struct mf_lease *l)
{
    l->end_ms = f->now_ms + lease_limit_ms(f, l);
    l->deadline_ms = MF_MIN(l->deadline_ms, l->end_ms);
}

/* The first measuring unit pins the task to its device model, because times of two models are never compared.
 * With the option shape_grouped, the unit pins the task to its worker, too, unless that worker lacks a family
 * of the batch and thus could not run all units of the task. */
static int pin_task(struct mf_farm *f, struct mf_lease *l, const struct mf_slot *slot)
{
    const struct mf_ids *families;
    int r = 0;
    if (l->kind == MF_UNIT_ENUMERATE)
        return 0;
    if (l->task->batch->options.shape_grouped) {
        r = mf_families_of_batch(f, l->task->batch, l->task->class_id, &families);
        if (r == 0 && mf_slot_offers(slot, families->all, families->n))
            r = mf_store_task_set_worker(f->store, l->task->id, slot->id);
    }
    if (r < 0 || l->task->model)
        return r;
    l->task->model = slot->model_id;
    return mf_store_task_set_model(f->store, l->task->id, slot->model_id);
}

/* Ends a comparison that needs a second device, because the only worker left is the one that ran the first
 * comparison. */
static int end_without_second_device(struct mf_farm *f, struct mf_lease *l)
{
    struct mf_task *g = l->task;
    const enum mf_consumer consumer = l->consumer;
    int r = mf_lease_done(f, l);
    mf_lease_free(l);
    return r < 0 ? r : mf_promote_without_second(f, g, consumer);
}

static int grant(struct mf_farm *f, struct mf_slot *slot, const struct mf_unit_row *row)
{
    struct mf_lease *l = NULL;
    struct mf_buf text;
    int r = lease_new(f, row, &l);
    if (r < 0)
        return r;
    bool is_new_shape = slot->last_task != row->task;
    mf_buf_init(&text, MF_UNIT_TEXT_MAX);
    mf_lease_assign(f, l, slot);
    r = mf_map_put(&f->leases, (uint64_t)l->unit, l);
    if (r == 0)
        r = record_granted_tag(f, row);
    if (r == 0 && l->first_worker == slot->id)
        return end_without_second_device(f, l);
    if (r == 0)
        r = pin_task(f, l, slot);
    mf_fault_at(MF_FAULT_UNIT_LEASED);
    if (r == 0)
        r = mf_unit_message_add(f, l, row->body, &text);
    if (r == 0)
        r = mf_store_grant_add(f->store, row);
    limit_lease(f, l);
    if (r == 0 && is_new_shape && slot->compiles)
        r = mf_unit_message_add_next(f, l, &text);
    if (r == 0)
        r = mf_buf_adds(&text, "}");
    if (r == 0 && l->kind != MF_UNIT_ENUMERATE && l->n == 0) {
        /* Earlier attempts have decided every step */
        struct mf_task *g = l->task;
        r = mf_lease_done(f, l);
        mf_lease_free(l);
        if (r == 0 && g->open_units == 0 && g->state == MF_TASK_PROBING)
            r = mf_task_probed(f, g);
    } else if (r == 0) {
        slot->credit--;
        r = mf_hub_post(f->hub, &slot->peer, MF_MESSAGE_UNIT, text.data);
    }
    mf_buf_release(&text);
    return r;
}

/* Returns 1 if the slot got a unit, 0 if there is no ready unit that the slot may run. */
static int lease_next_unit(struct mf_farm *f, struct mf_slot *slot)
{
    bool may_be_only = !f->reconnect_deadline_ms;
    for (int affinity = slot->last_task ? MF_AFFINITY_LAST_TASK : MF_AFFINITY_IDLE_TASK;
         affinity < MF_AFFINITY_N_; affinity++) {
        struct mf_unit_row row = {0};
        int r = mf_store_unit_lease(f->store, slot, (enum mf_affinity)affinity, may_be_only, f->epoch,
                                    f->wall_ms + f->lease_ms, &row);
        if (r > 0) {
            r = grant(f, slot, &row);
            free(row.body);
            return r < 0 ? r : 1;
        }
        if (r < 0)
            return r;
    }
    return 0;
}

int mf_units_dispatch(struct mf_farm *f)
{
    for (size_t i = 0; i < f->slots.n; i++) {
        struct mf_slot *slot = f->slots.all[i];
        while (slot->credit > 0 && mf_slot_is_available(slot) && !slot->starved) {
            int r = lease_next_unit(f, slot);
            if (r < 0)
                return r;
            slot->starved = r == 0;
        }
    }
    return 0;
}

/* ---- from leased to other states ---- */

void mf_lease_extend(struct mf_farm *f, struct mf_lease *l)
{
    l->deadline_ms = MF_MIN(f->now_ms + f->lease_ms, l->end_ms);
    (void)mf_store_unit_extend(f->store, l->unit, f->wall_ms + f->lease_ms);
}

static void detach_lease(struct mf_farm *f, struct mf_lease *l)
{
    (void)mf_map_remove(&f->leases, (uint64_t)l->unit);
    if (l->slot) {
        l->slot->n_leases--;
        l->slot->dirty = true;
    }
    l->slot = NULL;
}

int mf_lease_done(struct mf_farm *f, struct mf_lease *l)
{
    detach_lease(f, l);
    l->task->open_units--;
    return mf_store_unit_end(f->store, l->unit, "done");
}

static int fail_unit(struct mf_farm *f, struct mf_lease *l, const char *why)
{
    char reason[MF_REASON_MAX];
    struct mf_task *g = l->task;
    mf_format(reason, sizeof(reason), "failed after %" PRId64 " attempts; the last one ended because %s",
              l->attempt, why);
    g->open_units--;
    int r = mf_store_unit_end(f->store, l->unit, "failed");
    if (r < 0)
        return r;
    switch (l->kind) {
    case MF_UNIT_ENUMERATE:
        return mf_tasks_enumerated(f, l->enumeration, reason);
    case MF_UNIT_PROBE:
        r = mf_deliver_unit_failed(f, l, reason);
        return r == 0 && g->open_units == 0 && g->state == MF_TASK_PROBING ? mf_task_probed(f, g) : r;
    case MF_UNIT_RACE:
        return l->routing ? mf_task_regret_done(f, g, l, NULL, reason)
               : l->rerun ? mf_task_rerun_done(f, g, l, NULL, reason)
                          : mf_task_lose(f, g, l->consumer, reason);
    case MF_UNIT_COMPARE:
        return mf_promote_not_compared(f, g, l->consumer, reason);
    case MF_UNIT_N_:
        break;
    }
    return 0;
}

/* avoid_worker: see mf_store_unit_release */
static int release(struct mf_farm *f, struct mf_lease *l, const char *why, int64_t attempts,
                   int64_t avoid_worker)
{
    _cleanup_(mf_lease_freep) struct mf_lease *owned = l;
    detach_lease(f, l);
    log_info("unit %" PRId64 ", attempt %" PRId64 " is released: %s", l->unit, l->attempt, why);
    /* Samples of a race are paired within one attempt, so results of an ended attempt decide nothing */
    int r = l->kind == MF_UNIT_RACE ? mf_store_results_clear_final(f->store, l->unit) : 0;
    if (r < 0)
        return r;
    if (l->attempt >= attempts)
        return fail_unit(f, l, why);
    mf_slots_clear_starved(&f->slots, l->task->class_id);
    return mf_store_unit_release(f->store, l->unit, avoid_worker);
}

int mf_lease_release(struct mf_farm *f, struct mf_lease *l, const char *why)
{
    return release(f, l, why, f->options.attempts, 0);
}

int mf_lease_fail(struct mf_farm *f, struct mf_lease *l, const char *why)
{
    /* the unit of a comparison names the worker of the first comparison */
    return release(f, l, why, MF_MIN(f->options.attempts, FAILURES_MAX),
                   l->kind == MF_UNIT_COMPARE ? 0 : l->worker);
}

int mf_leases_release_worker(struct mf_farm *f, struct mf_slot *slot, bool include_kept, const char *why)
{
    for (size_t i = 0; i < f->leases.cap;) {
        struct mf_lease *l = f->leases.entries[i].value;
        if (!f->leases.entries[i].key || l->worker != slot->id || (l->slot == slot && !include_kept)) {
            i++;
            continue;
        }
        int r = mf_lease_release(f, l, why);
        if (r < 0)
            return r;
        i = 0; /* removing a lease moves the entries of the map */
    }
    return 0;
}

/* Sends CANCEL to the lease's worker, if it is connected. */
static int send_cancel(struct mf_farm *f, const struct mf_lease *l)
{
    char text[80];
    if (!l->slot)
        return 0;
    mf_format(text, sizeof(text), "{\"unit\":%" PRId64 ",\"attempt\":%" PRId64 "}", l->unit, l->attempt);
    return mf_hub_post(f->hub, &l->slot->peer, MF_MESSAGE_CANCEL, text);
}

int mf_lease_fail_and_cancel(struct mf_farm *f, struct mf_lease *l, const char *why)
{
    int sent = send_cancel(f, l), r = mf_lease_fail(f, l, why);
    return r < 0 ? r : sent;
}

int mf_lease_cancel(struct mf_farm *f, struct mf_lease *l)
{
    int r = send_cancel(f, l);
    detach_lease(f, l);
    mf_lease_free(l);
    return r;
}

int mf_lease_hold(struct mf_farm *f, int64_t unit, struct mf_lease **ret)
{
    struct mf_unit_row row = {0};
    struct mf_lease *l = NULL;
    int r = mf_store_unit_hold(f->store, unit, f->epoch, f->wall_ms + f->lease_ms);
    if (r == 0)
        r = mf_store_unit_get(f->store, unit, &row);
    _cleanup_(mf_freep) char *body = row.body;
    if (r == 0)
        r = lease_new(f, &row, &l);
    if (r == 0)
        r = mf_lease_load_items(f, l, body);
    if (r == 0)
        r = mf_map_put(&f->leases, (uint64_t)unit, l);
    if (r < 0) {
        mf_lease_free(l);
        return r;
    }
    l->deadline_ms = INT64_MAX;
    *ret = l;
    return 0;
}

int mf_lease_unhold(struct mf_farm *f, struct mf_lease *l)
{
    int64_t unit = l->unit;
    detach_lease(f, l);
    mf_slots_clear_starved(&f->slots, l->task->class_id);
    mf_lease_free(l);
    return mf_store_unit_release(f->store, unit, 0);
}

int mf_units_expire(struct mf_farm *f)
{
    for (size_t i = 0; i < f->leases.cap;) {
        struct mf_lease *l = f->leases.entries[i].value;
        if (!f->leases.entries[i].key || f->now_ms <= l->deadline_ms) {
            i++;
            continue;
        }
        f->stats.leases_expired++;
        int r = f->now_ms > l->end_ms
                    ? mf_lease_fail_and_cancel(f, l, "its worker held it longer than its limit")
                    : mf_lease_release(f, l, "its lease expired");
        if (r < 0)
            return r;
        i = 0;
    }
    return 0;
}

/* ---- after a restart ---- */

static int restore_result(void *context, const struct mf_result_row *row)
{
    struct mf_lease *l = context;
    for (size_t i = 0; i < l->n && !row->late; i++) {
        struct mf_lease_item *item = &l->items[i];
        if (item->id != (row->step ? row->step : row->pipeline) || item->seq)
            continue;
        item->seq = row->seq;
        item->status = row->status;
        item->us = row->us;
        item->mad = row->mad;
        item->n = row->n_samples;
        item->n_fresh = row->n_fresh;
        item->verified = row->verified;
        l->n_left--;
        if (row->step && row->status == MF_STATUS_OK)
            mf_best_times_add(&l->best, mf_lease_item_rivals(item), l->worker, row->us);
    }
    return 0;
}

/* Marks the steps that earlier attempts decided, because the UNIT message of this attempt does not contain
 * them. */
static int skip_decided(struct mf_farm *f, struct mf_lease *l)
{
    for (size_t i = 0; i < l->n; i++) {
        struct mf_lease_item *item = &l->items[i];
        int r = item->seq ? 0
                          : mf_store_step_decided(f->store, l->task->id, l->unit, item->id, &item->status,
                                                  &item->us);
        if (r < 0)
            return r;
        if (r > 0) {
            item->seq = -1;
            l->n_left--;
        }
    }
    return 0;
}

static int reload_lease(struct mf_farm *f, int64_t unit)
{
    struct mf_unit_row row = {0};
    struct mf_lease *l = NULL;
    int r = mf_store_unit_get(f->store, unit, &row);
    _cleanup_(mf_freep) char *body = row.body;
    if (r == 0)
        r = lease_new(f, &row, &l);
    if (r == 0)
        r = mf_map_put(&f->leases, (uint64_t)unit, l);
    if (r == 0)
        r = mf_lease_load_items(f, l, body);
    if (r == 0)
        limit_lease(f, l);
    if (r == 0)
        r = mf_store_results_of_unit(f->store, unit, row.attempt, restore_result, l);
    return r == 0 && l->attempt > 1 && l->kind == MF_UNIT_PROBE ? skip_decided(f, l) : r;
}

int mf_units_load(struct mf_farm *f)
{
    struct mf_ids ids = {0};
    int r = mf_store_units_prolong(f->store, f->wall_ms + f->lease_ms);
    if (r == 0)
        r = mf_store_units_leased(f->store, &ids);
    for (size_t i = 0; r == 0 && i < ids.n; i++)
        r = reload_lease(f, ids.all[i]);
    mf_ids_release(&ids);
    return r;
}
