/* Batches: submission, cancellation, completion. */
#include "server/farm/farm_private.h"

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "server/farm/promote.h"
#include "server/store/store_promote.h"

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

static int add_batch_event(struct mf_farm *f, int64_t batch, const char *state)
{
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "batch", batch);
    cJSON_AddStringToObject(body, "state", state);
    return mf_event_add(f, batch, "batch", body);
}

/* ---- submission ---- */

/* Finds the ids of the requested classes or, if no class is requested, of all classes with a worker. If no
 * class has a worker, the list holds only the id 0, which stands for the class of the next worker. */
static int find_classes(struct mf_farm *f, const struct mf_batch_options *o, struct mf_ids *ret)
{
    int r = 0;
    for (int i = 0; r == 0 && i < o->n_classes; i++) {
        int64_t id;
        r = mf_store_class(f->store, &o->classes[i], &id);
        if (r == 0)
            r = mf_ids_add(ret, id);
    }
    for (size_t i = 0; r == 0 && !o->n_classes && i < f->slots.n; i++) {
        bool known = f->slots.all[i]->quarantined;
        for (size_t j = 0; j < ret->n; j++)
            known |= ret->all[j] == f->slots.all[i]->class_id;
        if (!known)
            r = mf_ids_add(ret, f->slots.all[i]->class_id);
    }
    return r == 0 && ret->n == 0 ? mf_ids_add(ret, 0) : r;
}

static int compare_shapes(const void *a, const void *b)
{
    return mf_shape_compare(a, b);
}

/* Adds tasks in the order in which they are listed: by layer model and token count. Tasks start in the order
 * of mf_store_tasks_waiting. That start order keeps units of one layer model together, so that the weights of
 * the layer model are created only once. */
static int add_tasks(struct mf_farm *f, int64_t batch, const struct mf_submission *s,
                     const struct mf_ids *classes)
{
    _cleanup_(mf_freep) struct mf_shape *shapes = calloc(s->n_shapes + 1, sizeof(*shapes));
    int r = shapes ? 0 : -ENOMEM;
    if (r == 0) {
        memcpy(shapes, s->shapes, s->n_shapes * sizeof(*shapes));
        qsort(shapes, s->n_shapes, sizeof(*shapes), compare_shapes);
    }
    for (size_t c = 0; r == 0 && c < classes->n; c++) {
        char reason[120] = "waits for a worker of any class", class_text[MF_DEVICE_CLASS_TEXT_MAX];
        struct mf_device_class class;
        if (classes->all[c]) {
            r = mf_store_class_get(f->store, classes->all[c], &class);
            if (r == 0) {
                mf_device_class_print(&class, class_text);
                mf_format(reason, sizeof(reason), "waits for a worker of class %s", class_text);
            }
        }
        for (size_t i = 0; r == 0 && i < s->n_shapes; i++) {
            int64_t shape;
            if (i > 0 && mf_shape_equal(&shapes[i], &shapes[i - 1]))
                continue;
            r = mf_store_shape(f->store, &shapes[i], &shape);
            if (r == 0)
                r = mf_store_task_add(f->store, batch, shape, classes->all[c], reason);
        }
    }
    return r;
}

/* Adds the known rows to the batch. If the batch's classes are known, skips the rows of all other classes. */
static int add_known(struct mf_farm *f, int64_t batch, const struct mf_submission *s,
                     const struct mf_ids *classes)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < s->n_known; i++) {
        const struct mf_known_row *k = &s->known[i];
        int64_t class, shape;
        bool wanted = classes->n == 1 && classes->all[0] == 0;
        r = mf_store_class(f->store, &k->class, &class);
        for (size_t j = 0; j < classes->n; j++)
            wanted |= classes->all[j] == class;
        if (r < 0 || !wanted)
            continue;
        r = mf_store_shape(f->store, k->shape, &shape);
        if (r == 0)
            r = mf_store_baseline_row_add(f->store, batch, shape, class, k->pipeline, k->us, k->line);
    }
    return r;
}

/* Copies a list of the submission to the receipt. list NULL: adds an empty list. */
static bool add_list(cJSON *receipt, const char *name, const cJSON *list)
{
    return cJSON_AddItemToObject(receipt, name, list ? cJSON_Duplicate(list, true) : cJSON_CreateArray());
}

static int write_receipt(struct mf_farm *f, int64_t batch, const struct mf_submission *s, size_t n_classes,
                         int n_skipped, cJSON **ret)
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    mf_json_add_i64(json, "batch", batch);
    mf_json_add_i64(json, "shapes", (int64_t)s->n_shapes);
    mf_json_add_i64(json, "tasks", (int64_t)(s->n_shapes * n_classes));
    mf_json_add_i64(json, "undecided", n_skipped);
    bool whole = add_list(json, "errors", s->errors) && add_list(json, "unknown_columns", s->unknown_columns);
    _cleanup_(mf_freep) char *text = whole ? mf_json_print(json) : NULL;
    if (!text)
        return -ENOMEM;
    int r = mf_store_batch_set_receipt(f->store, batch, text);
    if (r == 0)
        *ret = MF_TAKE(json);
    return r;
}

int mf_farm_submit(struct mf_farm *f, const struct mf_submission *s, cJSON **ret_receipt)
{
    if (s->idempotency_key && *s->idempotency_key) {
        int known = mf_store_batch_find_receipt(f->store, s->idempotency_key, s->body_hash, ret_receipt);
        if (known != 0)
            return known;
    }
    int64_t batch;
    int n_skipped = 0;
    struct mf_ids classes = {0};
    _cleanup_(cJSON_Deletep) cJSON *options = mf_batch_options_print(&s->options, false);
    _cleanup_(mf_freep) char *text = mf_json_print(options);
    struct mf_batch_row row = {.name = s->name,
                               .options = text,
                               .idempotency_key = s->idempotency_key,
                               .body_hash = s->body_hash,
                               .priority = (int)s->options.priority,
                               .created_ms = f->wall_ms};
    int r = text ? mf_store_batch_add(f->store, &row, &batch) : -ENOMEM;
    if (r == 0)
        r = find_classes(f, &s->options, &classes);
    if (r == 0)
        r = add_tasks(f, batch, s, &classes);
    if (r == 0)
        r = add_known(f, batch, s, &classes);
    if (r == 0)
        r = add_batch_event(f, batch, "open");
    if (r == 0)
        r = n_skipped = mf_promote_skip_unnamed(f, batch);
    if (r >= 0)
        r = write_receipt(f, batch, s, classes.n, n_skipped, ret_receipt);
    mf_ids_release(&classes);
    f->wake_waiting = true;
    return r;
}

/* ---- end of a batch ---- */

static int end(struct mf_farm *f, int64_t batch, const char *state)
{
    int r = mf_store_batch_end(f->store, batch, state, f->wall_ms);
    return r < 0 ? r : add_batch_event(f, batch, state);
}

int mf_farm_cancel(struct mf_farm *f, int64_t batch)
{
    int priority;
    int64_t created_ms;
    bool open;
    struct mf_ids tasks = {0};
    _cleanup_(mf_freep) char *options = NULL;
    int r = mf_store_batch_get(f->store, batch, &priority, &created_ms, &options, &open);
    if (r < 0 || !open)
        return r < 0 ? r : 1;
    /* End the batch before its tasks, because the end of its last task would mark the batch as done. */
    r = end(f, batch, "cancelled");
    if (r == 0)
        r = mf_store_tasks_of_batch(f->store, batch, &tasks);
    for (size_t i = 0; r == 0 && i < tasks.n; i++) {
        struct mf_task *g;
        r = mf_task_get(f, tasks.all[i], &g);
        if (r < 0)
            break;
        g->batch->ended = true;
        r = mf_task_cancel(f, g);
    }
    mf_ids_release(&tasks);
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
    slot->draining = slot->dirty = true;
    /* Until now, units that avoid the other workers waited for this worker. Now the other workers may take
     * them. */
    mf_slots_clear_starved(&f->slots, slot->class_id);
    return mf_hub_post(f->hub, &slot->peer, MF_MESSAGE_DRAIN, "{}");
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
