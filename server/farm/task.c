/* Tasks: one shape of a batch on one device class.
 *
 *   waiting ─start─► enumerating ─probe─► probing ─probed─► ranking ─race─► racing ─raced──────────────► done
 *      ├─skip─► done    │                    │                 │             │ └─compare─► comparing ─┘
 *      └────────────────┴────────────────────┼─────────────────┴─────────────┴─────────────────┘
 *                                            └─fail, cancel─► failed, cancelled
 *
 *   waiting      no worker of the class with a family of the batch is connected
 *   enumerating  an enumeration of the task is incomplete; there is one for each family of the batch. Tasks
 *                may share an enumeration; then one of them has the unit. In a batch with search=enumerate,
 *                the task ends when the enumerations are complete
 *   probing      every step to measure is in a unit that is ready, leased or done. With a time budget, only
 *                those of a round of the search (task_search.h); at its end the next round begins
 *   ranking      each step has a deciding result; the task waits for the other tasks of its layer model
 *   racing       its pipelines are stored and a race unit is open. After the race the task has a config and
 *                its regret races are open. Then it waits for the tasks of its layer model with more tokens,
 *                and its pipeline is rerun if its time breaks their order (order.c)
 *                Each consumer of the task has a race and a config of its own. A consumer without a legal
 *                pipeline gets none; the task fails if this is so for all its consumers
 *   comparing    a known row exists for its key: the config and the known row race each other, in one unit at
 *                a time (promote.h). The better row becomes the config; the task then goes on as after a race
 *   done         the task has a config, or its batch needs only the enumeration, or the task was skipped
 *                because its known row cannot be compared (mf_promote_skip_unnamed)
 *
 * Each arrow is one function below. A task that has ended stays in memory until the iteration ends. */
#include "server/farm/farm_private.h"

#include "common/base/array.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/choose/plan.h"
#include "server/farm/promote.h"
#include "server/farm/regret.h"
#include "server/farm/step_selection.h"
#include "server/farm/task_search.h"
#include "server/store/store_family.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_INTERVAL_MS 400

/* ---- tasks in memory ---- */

void mf_task_drop_forecast(struct mf_task *g, enum mf_consumer c)
{
    g->forecasts[c] = mf_forecast_free(g->forecasts[c]);
}

mf_consumers mf_task_live_consumers(const struct mf_task *g)
{
    return g->consumers & ~g->lost;
}

struct mf_task *mf_task_free(struct mf_task *g)
{
    if (g) {
        for (enum mf_consumer c = 0; c < MF_CONSUMER_N_; c++)
            mf_task_drop_forecast(g, c);
        mf_ranking_free(g->ranking);
    }
    free(g);
    return NULL;
}

static void add_best_time(void *context, mf_ops covers, int64_t worker, double us)
{
    mf_best_times_add(context, covers, worker, us);
}

static int load(struct mf_farm *f, struct mf_task *g)
{
    struct mf_task_row row;
    int r = mf_store_task_get(f->store, g->id, &row);
    if (r == 0)
        r = mf_batch_get(f, row.batch, &g->batch);
    if (r == 0)
        r = mf_shape_parse(row.row, &g->shape);
    if (r == 0)
        r = mf_store_task_first_enumeration(f->store, g->id, &g->enumeration);
    if (r == 0)
        r = mf_store_open_units_count(f->store, g->id, &g->open_units);
    if (r == 0)
        r = mf_store_best_times(f->store, g->id, add_best_time, &g->best);
    if (r == 0)
        r = mf_store_task_consumers(f->store, g->id, &g->consumers, &g->lost);
    if (r < 0)
        return r;
    g->shape_id = row.shape;
    g->class_id = row.class;
    g->model = row.model;
    g->state = row.state;
    g->counts = row.counts;
    memcpy(g->row, row.row, sizeof(g->row));
    memcpy(g->layer_model, row.layer_model, sizeof(g->layer_model));
    return 0;
}

int mf_task_get(struct mf_farm *f, int64_t id, struct mf_task **ret)
{
    struct mf_task *g = mf_map_get(&f->tasks, (uint64_t)id);
    if (!g) {
        g = calloc(1, sizeof(*g));
        if (!g)
            return -ENOMEM;
        g->id = id;
        int r = load(f, g);
        if (r == 0)
            r = mf_map_put(&f->tasks, (uint64_t)id, g);
        if (r < 0) {
            mf_task_free(g);
            return r;
        }
        g->batch->n_loaded++;
    }
    *ret = g;
    return 0;
}

/* Adds the task to the list that mf_tasks_flush processes. */
static int touch(struct mf_farm *f, struct mf_task *g)
{
    if (g->touched)
        return 0;
    int r = mf_array_grow(&f->touched, f->n_touched, &f->cap_touched, sizeof(*f->touched));
    if (r < 0)
        return r;
    f->touched[f->n_touched++] = g;
    g->touched = true;
    return 0;
}

static int write_counters(struct mf_farm *f, struct mf_task *g)
{
    int r = g->dirty ? mf_store_task_set_counts(f->store, g->id, &g->counts) : 0;
    g->dirty = false;
    return r;
}

static int enter(struct mf_farm *f, struct mf_task *g, enum mf_task_state state, const char *reason)
{
    assert(g->state < MF_TASK_DONE);
    g->state = state;
    int r = touch(f, g);
    if (r == 0)
        r = write_counters(f, g);
    if (r == 0)
        r = mf_store_task_set_state(f->store, g->id, state, reason, f->wall_ms);
    if (r == 0 && state >= MF_TASK_DONE && g->batch->open_tasks > 0)
        g->batch->open_tasks--;
    return r < 0 ? r : mf_event_task(f, g, reason);
}

/* ---- waiting ─► enumerating ---- */

static int add_enumerate_unit(struct mf_farm *f, struct mf_task *g, int64_t enumeration)
{
    char body[48];
    int r = mf_store_has_enumerate_unit(f->store, enumeration);
    if (r != 0)
        return r < 0 ? r : 0;
    mf_format(body, sizeof(body), "{\"enumeration\":%" PRId64 "}", enumeration);
    return mf_unit_add(f, g, MF_UNIT_ENUMERATE, body, 0);
}

static int set_waiting_reason(struct mf_farm *f, struct mf_task *g, const struct mf_ids *families)
{
    char reason[MF_REASON_MAX], class_text[MF_DEVICE_CLASS_TEXT_MAX], missing[MF_REASON_MAX / 2];
    struct mf_device_class class;
    int r = mf_store_class_get(f->store, g->class_id, &class);
    if (r == 0)
        r = mf_families_print_missing(f, g->class_id, families, missing, sizeof(missing));
    if (r < 0)
        return r;
    mf_device_class_print(&class, class_text);
    mf_format(reason, sizeof(reason), "waits for a worker of class %s with %s", class_text,
              families->n > 0 ? missing : "a kernel family; the connected workers offer none");
    r = mf_store_task_set_reason(f->store, g->id, reason);
    return r > 0 ? mf_event_task(f, g, reason) : r;
}

static int probe(struct mf_farm *f, struct mf_task *g);

/* Adds the enumerations of the families to the task. *ret_n_open: number of those that are incomplete. */
static int add_enumerations(struct mf_farm *f, struct mf_task *g, const struct mf_ids *families,
                            size_t *ret_n_open)
{
    *ret_n_open = 0;
    for (size_t i = 0; i < families->n; i++) {
        int64_t enumeration;
        bool complete;
        int r = mf_store_enumeration(f->store, g->class_id, g->shape_id, families->all[i], &enumeration,
                                     &complete);
        if (r == 0)
            r = mf_store_task_add_enumeration(f->store, g->id, enumeration);
        if (r < 0)
            return r;
        *ret_n_open += !complete;
    }
    return mf_store_task_first_enumeration(f->store, g->id, &g->enumeration);
}

/* Adds a unit for each incomplete enumeration of the task that has none. */
static int add_enumerate_units(struct mf_farm *f, struct mf_task *g)
{
    struct mf_ids ids = {0};
    int r = mf_store_task_enumerations_open(f->store, g->id, &ids);
    for (size_t i = 0; r == 0 && i < ids.n; i++)
        r = add_enumerate_unit(f, g, ids.all[i]);
    mf_ids_release(&ids);
    return r;
}

static int start(struct mf_farm *f, struct mf_task *g)
{
    const struct mf_ids *families;
    size_t n_open;
    bool offered = false;
    int r = mf_families_of_batch(f, g->batch, g->class_id, &families);
    for (size_t i = 0; r == 0 && i < families->n && !offered; i++)
        offered = mf_families_are_offered(f, g->class_id, 0, &families->all[i], 1);
    if (r < 0 || !offered)
        return r < 0 ? r : set_waiting_reason(f, g, families);
    r = add_enumerations(f, g, families, &n_open);
    if (r == 0)
        r = mf_store_task_set_state(f->store, g->id, MF_TASK_ENUMERATING, "", f->wall_ms);
    if (r < 0)
        return r;
    g->state = MF_TASK_ENUMERATING;
    if (n_open == 0)
        return probe(f, g);
    r = mf_event_task(f, g, "");
    return r < 0 ? r : add_enumerate_units(f, g);
}

bool mf_tasks_are_waking(const struct mf_farm *f)
{
    return f->wake_waiting || f->wake_at < f->wake.n || f->wake_slot < f->slots.n;
}

/* Returns the first available slot of the class, or NULL. The waiting tasks of a class are listed once, for
 * this slot. */
static const struct mf_slot *starter(const struct mf_farm *f, int64_t class_id)
{
    for (size_t i = 0; i < f->slots.n; i++) {
        if (f->slots.all[i]->class_id == class_id && mf_slot_is_available(f->slots.all[i]))
            return f->slots.all[i];
    }
    return NULL;
}

/* Lists the waiting tasks of the slot's class if the slot starts them. */
static int list_waiting(struct mf_farm *f, const struct mf_slot *slot)
{
    if (starter(f, slot->class_id) != slot)
        return 0;
    f->wake.n = f->wake_at = 0;
    return mf_store_tasks_waiting(f->store, slot->class_id, &f->wake);
}

/* Starts a listed task, unless it has started or its workers have left since it was listed. */
static int wake_task(struct mf_farm *f, int64_t id)
{
    struct mf_task *g;
    int r = mf_task_get(f, id, &g);
    const struct mf_slot *slot = r == 0 ? starter(f, g->class_id) : NULL;
    return slot && g->state == MF_TASK_WAITING && !g->batch->ended ? start(f, g) : r;
}

int mf_tasks_wake(struct mf_farm *f)
{
    uint64_t start_ns = mf_now_ns();
    int r = 0;
    while (r == 0 && mf_tasks_are_waking(f) && mf_now_ns() - start_ns < MF_SLICE_NS) {
        if (f->wake_at < f->wake.n) {
            r = wake_task(f, f->wake.all[f->wake_at++]);
        } else if (f->wake_slot < f->slots.n) {
            r = list_waiting(f, f->slots.all[f->wake_slot++]);
        } else {
            f->wake_waiting = false;
            f->wake_slot = 0;
            if (f->slots.n == 0)
                break;
        }
    }
    return r;
}

/* ---- enumerating ─► probing ---- */

static int add_probe_unit(struct mf_farm *f, struct mf_task *g, const struct mf_step_row *steps, size_t n)
{
    struct mf_buf body;
    mf_buf_init(&body, 1u << 20);
    (void)mf_buf_adds(&body, "{\"steps\":[");
    for (size_t i = 0; i < n; i++)
        (void)mf_buf_addf(&body, "%s%" PRId64, i ? "," : "", steps[i].id);
    int r = mf_buf_adds(&body, "]}");
    if (r == 0)
        r = mf_unit_add(f, g, MF_UNIT_PROBE, body.data, 0);
    mf_buf_release(&body);
    return r;
}

static int add_probe_units(struct mf_farm *f, struct mf_task *g, struct mf_step_selection *selected)
{
    struct mf_plan_options options = {.target_s = f->options.unit_s};
    int64_t oldest = INT64_MAX;
    for (size_t i = 0; i < f->slots.n; i++) {
        const struct mf_slot *slot = f->slots.all[i];
        if (slot->class_id != g->class_id || slot->quarantined || slot->id >= oldest)
            continue;
        options.ceilings = slot->ceilings;
        oldest = slot->id;
    }
    _cleanup_(mf_freep) size_t *ends = calloc(selected->n + 1, sizeof(*ends));
    if (!ends)
        return -ENOMEM;
    size_t n_units = mf_plan_cut(selected->steps, selected->n, &options, ends), first = 0;
    for (size_t i = 0; i < n_units; first = ends[i++]) {
        int r = add_probe_unit(f, g, selected->steps + first, ends[i] - first);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Ends a task of a batch with search=enumerate, which needs only the steps and rejections. */
static int end_with_steps(struct mf_farm *f, struct mf_task *g)
{
    char reason[80];
    mf_format(reason, sizeof(reason), "%" PRId64 " steps would be measured", g->counts.steps);
    int r = enter(f, g, MF_TASK_DONE, reason);
    return r < 0 ? r : mf_batch_check(f, g->batch);
}

/* The consumers whose tables cannot express the shape lose the task. */
static int check_shape(struct mf_farm *f, struct mf_task *g)
{
    char why[MF_CONSUMER_WHY_MAX];
    int r = 0;
    for (enum mf_consumer c = 0; r == 0 && c < MF_CONSUMER_N_; c++) {
        if ((mf_task_live_consumers(g) & MF_CONSUMER_BIT(c)) && !mf_consumer_takes_shape(c, &g->shape, why))
            r = mf_task_lose(f, g, c, why);
    }
    return r;
}

/* The consumers that dispatch none of the selected steps lose the task. */
static int check_consumers(struct mf_farm *f, struct mf_task *g, const struct mf_step_selection *selected)
{
    int r = 0;
    for (enum mf_consumer c = 0; r == 0 && c < MF_CONSUMER_N_; c++) {
        char reason[MF_REASON_MAX];
        if (!(mf_task_live_consumers(g) & MF_CONSUMER_BIT(c)) || selected->n_of[c] > 0)
            continue;
        mf_format(reason, sizeof(reason), "no candidate step%s%s; see the task's rejections",
                  *selected->why_not[c] ? ": " : "", selected->why_not[c]);
        r = mf_task_lose(f, g, c, reason);
    }
    return r;
}

static int begin_probing(struct mf_farm *f, struct mf_task *g, struct mf_step_selection *selected)
{
    if (g->batch->options.search == MF_SEARCH_ENUMERATE)
        return end_with_steps(f, g);
    int r = 0;
    if (mf_task_search_applies(g)) {
        r = mf_task_search_next(f, g, selected);
        g->counts.steps = (int64_t)selected->n;
        g->dirty = true;
    }
    if (r == 0)
        r = enter(f, g, MF_TASK_PROBING, "");
    return r < 0 ? r : add_probe_units(f, g, selected);
}

static int probe(struct mf_farm *f, struct mf_task *g)
{
    struct mf_step_selection selected = {.n = 0};
    assert(g->state == MF_TASK_ENUMERATING);
    int r = check_shape(f, g);
    if (r < 0 || g->state == MF_TASK_FAILED)
        return r;
    r = mf_families_choose_model(f, g);
    if (r == 0)
        r = mf_store_rejections_add_refused(f->store, g->enumeration, g->batch->id, g->class_id);
    if (r == 0)
        r = mf_steps_select(f, g, &selected);
    g->counts = (struct mf_task_counts){.candidates = (int64_t)selected.n, .steps = (int64_t)selected.n};
    if (r == 0)
        r = mf_store_task_set_counts(f->store, g->id, &g->counts);
    if (r == 0)
        r = check_consumers(f, g, &selected);
    if (r == 0 && g->state != MF_TASK_FAILED)
        r = begin_probing(f, g, &selected);
    free(selected.steps);
    return r;
}

/* Removes a failed enumeration from the task, which goes on with its other families. Without other families
 * the task fails. */
static int leave_out_family(struct mf_farm *f, struct mf_task *g, int64_t enumeration, const char *failure)
{
    int64_t family, first = g->enumeration;
    struct mf_family_row row;
    int r = mf_store_task_remove_enumeration(f->store, g->id, enumeration);
    if (r == 0)
        r = mf_store_task_first_enumeration(f->store, g->id, &g->enumeration);
    if (r == 0 && !g->enumeration) {
        g->enumeration = first;
        r = mf_store_task_add_enumeration(f->store, g->id, enumeration);
        return r < 0 ? r : mf_task_fail(f, g, failure);
    }
    if (r == 0)
        r = mf_store_enumeration_family(f->store, enumeration, &family);
    if (r == 0)
        r = mf_store_family_get(f->store, family, &row);
    return r < 0 ? r
                 : mf_store_rejection_add(f->store, g->enumeration, g->batch->id, row.name, "*", "enumerate",
                                          failure);
}

/* Starts the probes of the task if all its enumerations are complete. */
static int probe_if_enumerated(struct mf_farm *f, struct mf_task *g)
{
    struct mf_ids open = {0};
    int r = mf_store_task_enumerations_open(f->store, g->id, &open);
    size_t n = open.n;
    mf_ids_release(&open);
    return r < 0 || n > 0 ? r : probe(f, g);
}

int mf_tasks_enumerated(struct mf_farm *f, int64_t enumeration, const char *failure)
{
    struct mf_ids ids = {0};
    int r = mf_store_tasks_of_enumeration(f->store, enumeration, &ids);
    if (r == 0 && failure)
        r = mf_store_enumeration_clear(f->store, enumeration);
    for (size_t i = 0; r == 0 && i < ids.n; i++) {
        struct mf_task *g;
        r = mf_task_get(f, ids.all[i], &g);
        if (r == 0 && failure)
            r = leave_out_family(f, g, enumeration, failure);
        if (r == 0 && g->state == MF_TASK_ENUMERATING)
            r = probe_if_enumerated(f, g);
    }
    mf_ids_release(&ids);
    return r;
}

/* ---- probing ─► ranking ─► racing ---- */

int mf_task_measured(struct mf_farm *f, struct mf_task *g, mf_ops covers, int64_t worker,
                     enum mf_status status, double us)
{
    g->counts.measured++;
    g->dirty = g->changed = true;
    if (status == MF_STATUS_OK)
        mf_best_times_add(&g->best, covers, worker, us);
    return touch(f, g);
}

/* Starts the next round of the task's search. Returns 1, or 0 if the search has ended. */
static int start_round(struct mf_farm *f, struct mf_task *g)
{
    struct mf_step_selection selected = {.n = 0};
    int r = mf_steps_select(f, g, &selected);
    if (r == 0)
        r = mf_task_search_next(f, g, &selected);
    size_t n = r == 0 ? selected.n : 0;
    g->counts.steps += (int64_t)n;
    if (n > 0)
        r = mf_store_task_set_counts(f->store, g->id, &g->counts);
    if (r == 0 && n > 0)
        r = add_probe_units(f, g, &selected);
    free(selected.steps);
    return r < 0 ? r : n > 0;
}

int mf_task_probed(struct mf_farm *f, struct mf_task *g)
{
    assert(g->state == MF_TASK_PROBING);
    int r = mf_task_search_applies(g) ? start_round(f, g) : 0;
    if (r != 0)
        return r < 0 ? r : 0;
    r = enter(f, g, MF_TASK_RANKING, "");
    return r < 0 ? r : mf_rank_task(f, g);
}

int mf_task_race(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *unit_body)
{
    assert(g->state == MF_TASK_RANKING || g->state == MF_TASK_RACING);
    int r = g->state == MF_TASK_RANKING ? enter(f, g, MF_TASK_RACING, "") : 0;
    mf_task_drop_forecast(g, c);
    return r < 0 ? r : mf_unit_add(f, g, MF_UNIT_RACE, unit_body, 0);
}

/* ---- racing ─► done ---- */

static bool any_pipeline_died(const struct mf_lease *l)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->items[i].seq &&
            (l->items[i].status == MF_STATUS_CRASH || l->items[i].status == MF_STATUS_HANG))
            return true;
    }
    return false;
}

/* Repeats a race or comparison in which a pipeline killed its runner, once per race. A runner that is killed
 * from outside looks like a crash of its current pipeline, so the first outcome decides nothing. */
static int repeat_race(struct mf_farm *f, struct mf_task *g, const struct mf_lease *l)
{
    /* A comparison on a second device must not run on the first device */
    int64_t avoid_worker = l->first_worker ? l->first_worker : l->worker;
    struct mf_unit_row row = {0};
    int r = mf_store_results_clear_final(f->store, l->unit);
    if (r == 0)
        r = mf_store_unit_get(f->store, l->unit, &row);
    _cleanup_(cJSON_Deletep) cJSON *body = r == 0 ? cJSON_Parse(row.body) : NULL;
    free(row.body);
    if (r == 0)
        cJSON_AddTrueToObject(body, "second_try");
    _cleanup_(mf_freep) char *text = body ? mf_json_print(body) : NULL;
    if (!text)
        return r < 0 ? r : -ENOMEM;
    return mf_unit_add(f, g, l->kind, text, avoid_worker);
}

int mf_task_end(struct mf_farm *f, struct mf_task *g)
{
    assert(g->open_units == 0);
    return enter(f, g, MF_TASK_DONE, "");
}

/* Ends the task if it has no open units and no task of its layer model with more tokens is open. */
static int end_if_idle(struct mf_farm *f, struct mf_task *g)
{
    int r = g->open_units > 0 ? 0 : mf_order_end_tasks(f, g->batch, g->class_id, g->layer_model);
    return r < 0 ? r : mf_batch_check(f, g->batch);
}

/* Ends a race whose finalists all failed. The reason quotes the first finalist. */
static int fail_race(struct mf_farm *f, struct mf_task *g, const struct mf_lease *l)
{
    char why[MF_REASON_MAX] = "", reason[MF_REASON_MAX];
    enum mf_status status = MF_STATUS_WRONG;
    int r = mf_store_pipeline_result(f->store, l->unit, l->attempt, l->items[0].id, &status, why);
    if (r < 0 && r != -ENOENT)
        return r;
    mf_format(reason, sizeof(reason), "all %zu finalists failed in the race; the first is %s: %s", l->n,
              mf_status_name(status), *why ? why : "no reason given");
    return mf_task_lose(f, g, l->consumer, reason);
}

/* ---- racing, comparing: reruns ---- */

int mf_task_rerun(struct mf_farm *f, struct mf_task *g, const char *unit_body)
{
    assert(g->state == MF_TASK_RACING || g->state == MF_TASK_COMPARING);
    return mf_unit_add(f, g, MF_UNIT_RACE, unit_body, 0);
}

int mf_task_rerun_done(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race,
                       const char *reason)
{
    assert(g->state == MF_TASK_RACING || g->state == MF_TASK_COMPARING);
    int r = mf_order_rerun_done(f, g, lease, race, reason);
    return r < 0 ? r : end_if_idle(f, g);
}

int mf_task_raced(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race)
{
    struct mf_win w = {0};
    assert(g->state == MF_TASK_RACING || g->state == MF_TASK_COMPARING); /* another consumer may compare */
    if (!lease->second_try && any_pipeline_died(lease))
        return repeat_race(f, g, lease);
    int r = mf_config_race_times(f, lease, race);
    if (r == 0)
        r = lease->n_groups > 0 ? mf_ladder_raced(f, g, lease, race)
                                : mf_config_win(f, g, lease, 0, race, &w);
    if (r == 0)
        return fail_race(f, g, lease);
    if (r > 0 && lease->n_groups == 0)
        r = mf_task_won(f, g, &w);
    mf_win_release(&w);
    return r < 0 ? r : 0;
}

int mf_task_won(struct mf_farm *f, struct mf_task *g, const struct mf_win *w)
{
    int r = mf_config_write(f, g, w);
    mf_fault_at(MF_FAULT_CONFIG_STORED);
    return r < 0 ? r : mf_promote_start(f, g, w->consumer);
}

/* ---- racing ─► comparing ─► done ---- */

int mf_task_compare(struct mf_farm *f, struct mf_task *g, const char *unit_body, int64_t avoid_worker)
{
    assert(g->state == MF_TASK_RACING || g->state == MF_TASK_COMPARING);
    int r = g->state == MF_TASK_RACING ? enter(f, g, MF_TASK_COMPARING, "") : 0;
    return r < 0 ? r : mf_unit_add(f, g, MF_UNIT_COMPARE, unit_body, avoid_worker);
}

int mf_task_compared(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease)
{
    assert(g->state == MF_TASK_COMPARING);
    return !lease->second_try && any_pipeline_died(lease) ? repeat_race(f, g, lease)
                                                          : mf_promote_compared(f, g, lease);
}

int mf_task_decided(struct mf_farm *f, struct mf_task *g, enum mf_consumer c)
{
    int r = mf_regret_start(f, g, c);
    return r < 0 ? r : end_if_idle(f, g);
}

int mf_task_regret_done(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race,
                        const char *reason)
{
    assert(g->state == MF_TASK_RACING || g->state == MF_TASK_COMPARING);
    int r = race ? mf_regret_finish(f, lease, race)
                 : mf_regret_skip(f, g, lease->consumer, lease->routing, reason);
    return r < 0 ? r : end_if_idle(f, g);
}

/* ---- to failed and cancelled ---- */

/* The other tasks of the layer model may have waited for this task only. */
static int continue_layer(struct mf_farm *f, struct mf_task *g)
{
    int r = mf_ladder_rank(f, g->batch, g->class_id, g->layer_model);
    if (r == 0)
        r = mf_ladder_choose_layout(f, g->batch, g->class_id, g->layer_model);
    if (r == 0)
        r = mf_order_end_tasks(f, g->batch, g->class_id, g->layer_model);
    return r < 0 ? r : mf_batch_check(f, g->batch);
}

int mf_task_fail(struct mf_farm *f, struct mf_task *g, const char *reason)
{
    int r = enter(f, g, MF_TASK_FAILED, reason);
    return r < 0 ? r : continue_layer(f, g);
}

int mf_task_lose(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *reason)
{
    char reasons[MF_REASON_MAX] = "";
    int r = mf_store_task_lose(f->store, g->id, c, reason);
    g->lost |= MF_CONSUMER_BIT(c);
    mf_task_drop_forecast(g, c);
    if (r < 0 || mf_task_live_consumers(g))
        return r < 0 ? r : continue_layer(f, g);
    r = mf_store_task_reasons(f->store, g->id, reasons, sizeof(reasons));
    return r < 0 ? r : mf_task_fail(f, g, reasons);
}

/* Adds units for the incomplete enumerations of an ended task that other tasks share, because its own units
 * are cancelled. */
static int hand_over_enumerations(struct mf_farm *f, const struct mf_task *g)
{
    struct mf_ids open = {0};
    int r = mf_store_task_enumerations_open(f->store, g->id, &open);
    for (size_t i = 0; r == 0 && i < open.n; i++) {
        struct mf_ids others = {0};
        struct mf_task *other;
        r = mf_store_tasks_of_enumeration(f->store, open.all[i], &others);
        if (r == 0 && others.n > 0)
            r = mf_task_get(f, others.all[0], &other);
        if (r == 0 && others.n > 0)
            r = add_enumerate_unit(f, other, open.all[i]);
        mf_ids_release(&others);
    }
    mf_ids_release(&open);
    return r;
}

int mf_task_cancel(struct mf_farm *f, struct mf_task *g)
{
    bool enumerating = g->state == MF_TASK_ENUMERATING;
    int r = g->state == MF_TASK_COMPARING ? mf_promote_cancel(f, g) : 0;
    if (r == 0)
        r = enter(f, g, MF_TASK_CANCELLED, "");
    if (r == 0)
        r = mf_store_units_cancel(f->store, g->id);
    for (size_t i = 0; r == 0 && i < f->leases.cap;) {
        struct mf_lease *l = f->leases.entries[i].value;
        if (f->leases.entries[i].key && l->task == g) {
            r = mf_lease_cancel(f, l);
            i = 0; /* removing a lease moves the entries of the map */
        } else {
            i++;
        }
    }
    g->open_units = 0;
    return r == 0 && enumerating ? hand_over_enumerations(f, g) : r;
}

/* ---- end of an iteration ---- */

/* Writes counters, publishes events and frees ended tasks. Counters are stored with each event and state
 * change. After a restart, counts since the last stored ones are derived from the results. */
int mf_tasks_flush(struct mf_farm *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_touched; i++) {
        struct mf_task *g = f->touched[i];
        bool due = f->now_ms - g->published_ms >= EVENT_INTERVAL_MS;
        int r = due ? write_counters(f, g) : 0;
        if (r == 0 && g->changed && due)
            r = mf_event_task(f, g, "");
        if (r < 0)
            return r;
        if (g->state >= MF_TASK_DONE) {
            struct mf_batch *b = g->batch;
            (void)mf_map_remove(&f->tasks, (uint64_t)g->id);
            mf_task_free(g);
            b->n_loaded--;
            mf_batch_unload(f, b);
        } else if (g->changed || g->dirty) {
            f->touched[n++] = g; /* flushed in a later iteration */
        } else {
            g->touched = false;
        }
    }
    f->n_touched = n;
    return 0;
}
