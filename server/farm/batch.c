/* Batches: cancellation, completion. submit.c has the submission. */
#include "server/farm/farm_private.h"

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- options as JSON ---- */

static char *print_unit_options(const struct mf_batch_options *o)
{
    _cleanup_(cJSON_Deletep) cJSON *json = mf_batch_options_print(o, true);
    cJSON_AddTrueToObject(json, "keep_samples");
    return mf_json_print(json);
}

char *mf_batch_unit_options(const struct mf_batch *b, const char *routing)
{
    struct mf_batch_options o = b->options;
    return mf_routing_parse(routing, &o.routing) == 0 ? print_unit_options(&o) : NULL;
}

/* ---- batches in memory ---- */

struct mf_batch *mf_batch_free(struct mf_batch *b)
{
    if (b) {
        free(b->options_text);
        free(b->unit_options);
        mf_ids_release(&b->families);
        free(b);
    }
    return NULL;
}

int mf_batch_get(struct mf_farm *f, int64_t id, struct mf_batch **ret)
{
    struct mf_batch *b = mf_map_get(&f->batches, (uint64_t)id);
    if (b) {
        *ret = b;
        return 0;
    }
    bool open;
    b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->id = id;
    int r = mf_store_batch_get(f->store, id, &b->priority, &b->created_ms, &b->options_text, &open);
    if (r == 0) {
        _cleanup_(cJSON_Deletep) cJSON *json =
            mf_json_parse(b->options_text, strlen(b->options_text), 1u << 20);
        mf_batch_options_read(json, &b->options);
        b->unit_options = print_unit_options(&b->options);
        r = b->unit_options ? mf_map_put(&f->batches, (uint64_t)id, b) : -ENOMEM;
    }
    if (r < 0) {
        mf_batch_free(b);
        return r;
    }
    *ret = b;
    return 0;
}

int mf_batch_event(struct mf_farm *f, int64_t batch, const char *state)
{
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "batch", batch);
    cJSON_AddStringToObject(body, "state", state);
    return mf_event_add(f, batch, "batch", body);
}

/* ---- end of a batch ---- */

static int end(struct mf_farm *f, int64_t batch, const char *state)
{
    int r = mf_store_batch_end(f->store, batch, state, f->wall_ms);
    return r < 0 ? r : mf_batch_event(f, batch, state);
}

/* Finds the unfinished tasks of the last listed batch, or removes it from the list if there are none. */
static int find_cancelled_tasks(struct mf_farm *f)
{
    f->cancel.n = f->cancel_at = 0;
    int r = mf_store_tasks_of_batch(f->store, f->cancelled.all[f->cancelled.n - 1], &f->cancel);
    if (r == 0 && f->cancel.n == 0)
        f->cancelled.n--;
    return r;
}

static int cancel_task(struct mf_farm *f, int64_t id)
{
    struct mf_task *g;
    int r = mf_task_get(f, id, &g);
    if (r < 0 || g->state >= MF_TASK_DONE) /* it has ended since it was listed */
        return r;
    g->batch->ended = true;
    return mf_task_cancel(f, g);
}

int mf_batches_cancel(struct mf_farm *f)
{
    uint64_t start_ns = mf_now_ns();
    int r = 0;
    while (r == 0 && f->cancelled.n > 0 && mf_now_ns() - start_ns < MF_SLICE_NS)
        r = f->cancel_at < f->cancel.n ? cancel_task(f, f->cancel.all[f->cancel_at++])
                                       : find_cancelled_tasks(f);
    return r;
}

int mf_farm_cancel(struct mf_farm *f, int64_t batch)
{
    int priority;
    int64_t created_ms;
    bool open;
    _cleanup_(mf_freep) char *options = NULL;
    int r = mf_store_batch_get(f->store, batch, &priority, &created_ms, &options, &open);
    if (r < 0 || !open)
        return r < 0 ? r : 1;
    /* End the batch before its tasks, because the end of its last task would mark the batch as done. A
     * restart finds the tasks of cancelled batches and continues. */
    r = end(f, batch, "cancelled");
    if (r == 0)
        r = mf_ids_add(&f->cancelled, batch);
    if (r < 0)
        return r;
    f->cancel_at = f->cancel.n; /* the tasks of another batch are listed again later */
    r = mf_batches_cancel(f);
    if (r < 0 && f->cancelled.n > 0)
        f->cancelled.n--; /* the request is undone */
    return r;
}

/* A measurement that differs from its forecast by more than a factor of 100 says nothing about the
 * structure. */
#define LOG_RATIO_MAX 4.6

/* Sums for the mean and standard deviation of one structure's ratios on one worker. The query returns the
 * ratios of a batch sorted by model, structure and worker. */
struct ratios {
    struct mf_farm *f;
    int64_t batch, model, worker;
    char structure[MF_PATH_STRUCTURE_MAX];
    int64_t n;
    double sum, sum_squares;
};

static int close_ratio(struct ratios *s)
{
    if (!s->n)
        return 0;
    const struct mf_ratio_key key = {.model = s->model, .worker = s->worker, .structure = s->structure};
    double mean = s->sum / (double)s->n;
    double variance = fmax(0, s->sum_squares / (double)s->n - mean * mean);
    int r = mf_store_ratio_add(s->f->store, &key, s->batch, s->n, mean, sqrt(variance));
    s->n = 0;
    s->sum = s->sum_squares = 0;
    return r;
}

static int add_ratio(void *context, const struct mf_ratio_key *key, double log_ratio)
{
    struct ratios *s = context;
    int r = 0;
    if (key->model != s->model || key->worker != s->worker || strcmp(key->structure, s->structure) != 0)
        r = close_ratio(s);
    s->model = key->model;
    s->worker = key->worker;
    mf_format(s->structure, sizeof(s->structure), "%s", key->structure);
    if (!(fabs(log_ratio) <= LOG_RATIO_MAX))
        return r;
    s->n++;
    s->sum += log_ratio;
    s->sum_squares += log_ratio * log_ratio;
    return r;
}

int mf_batch_check(struct mf_farm *f, struct mf_batch *b)
{
    int64_t created_ms;
    int priority;
    bool open;
    _cleanup_(mf_freep) char *options = NULL;
    if (b->open_tasks > 0)
        return 0;
    int r = mf_store_open_tasks_count(f->store, b->id, &b->open_tasks);
    if (r < 0 || b->open_tasks > 0)
        return r;
    r = mf_store_batch_get(f->store, b->id, &priority, &created_ms, &options, &open);
    b->ended = r >= 0;
    if (r < 0 || !open)
        return r;
    struct ratios ratios = {.f = f, .batch = b->id};
    r = mf_store_forecast_ratios_each(f->store, b->id, add_ratio, &ratios);
    if (r == 0)
        r = close_ratio(&ratios);
    if (r == 0)
        r = end(f, b->id, "done");
    if (r == 0)
        log_info("batch %" PRId64 " is done", b->id);
    return r;
}

void mf_batch_unload(struct mf_farm *f, struct mf_batch *b)
{
    if (!b->ended || b->n_loaded > 0)
        return;
    (void)mf_map_remove(&f->batches, (uint64_t)b->id);
    mf_batch_free(b);
}

/* ---- requests of users about workers and kernels ---- */

int mf_farm_drain(struct mf_farm *f, int64_t worker)
{
    struct mf_slot *slot = mf_slots_by_id(&f->slots, worker);
    if (!slot)
        return -ENOENT;
    slot->draining = true;
    /* The search for units reads the workers' rows, so this row must not wait for mf_peers_flush. */
    int r = mf_store_worker_save(f->store, slot, mf_slot_state(slot), f->wall_ms);
    if (r == 0)
        r = mf_peer_set_available(f, slot, false);
    return r < 0 ? r : mf_hub_post(f->hub, &slot->peer, MF_MESSAGE_DRAIN, "{}");
}

int mf_farm_revive(struct mf_farm *f, int64_t kernel, const struct mf_device_class *class)
{
    int64_t class_id;
    int r = mf_store_class(f->store, class, &class_id);
    if (r == 0)
        r = mf_store_quarantine_lift(f->store, kernel, class_id);
    if (r > 0)
        return 0;
    return r == 0 ? -ENOENT : r;
}
