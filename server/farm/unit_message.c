#include "server/farm/unit_message.h"

#include "common/base/json.h"
#include "common/base/text.h"
#include "server/store/store_family.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Maximum number of upcoming shapes in a UNIT message, for compiling in advance. A layer model has about as
 * many token counts. */
#define NEXT_SHAPES 8

/* Adds the work of a step, for the routing of the unit. */
static void add_work(const struct mf_lease *l, mf_ops covers, struct mf_work *to)
{
    struct mf_routing of_unit;
    const struct mf_routing *routing = &l->task->batch->options.routing;
    if (l->routing && mf_routing_parse(l->routing, &of_unit) == 0)
        routing = &of_unit;
    mf_work_add(to, &l->task->shape, routing, covers);
}

/* Appends the step's object with the farm's id, and adds its work to the item. */
static int add_step(struct mf_farm *f, const struct mf_lease *l, struct mf_lease_item *item, int64_t step,
                    struct mf_buf *out)
{
    struct mf_step_row row;
    _cleanup_(mf_freep) char *body = NULL;
    int r = mf_store_step_get(f->store, step, &row, out ? &body : NULL);
    if (r < 0)
        return r;
    item->kernel = row.kernel;
    item->covers = row.covers;
    item->foreign = row.foreign;
    add_work(l, row.covers, &item->work);
    if (!out)
        return 0;
    (void)mf_buf_addf(out, "{\"id\":%" PRId64 ",", step);
    /* mf_step_print wrote the body, so it starts with '{' and has members */
    return mf_buf_adds(out, body + 1);
}

/* Returns 1 if no worker may run the step: its kernel is quarantined, or another unit retries it. Then
 * decides the step, or holds it back in another unit. Returns 0 if the step may run. */
static int leave_out(struct mf_farm *f, const struct mf_lease *l, const struct mf_lease_item *item)
{
    struct mf_task *g = l->task;
    _cleanup_(mf_freep) char *reason = NULL;
    int r = mf_store_quarantine_reason(f->store, item->kernel, g->class_id, &reason);
    if (r > 0) {
        r = mf_suspect_decide(f, g,
                              &(struct mf_suspect_step){.unit = l->unit,
                                                        .attempt = l->attempt,
                                                        .step = item->id,
                                                        .worker = l->worker,
                                                        .covers = item->covers,
                                                        .reason = reason});
        return r < 0 ? r : 1;
    }
    if (r < 0 || !mf_suspect_bars(f, item->kernel, g->class_id, l->unit))
        return r;
    r = mf_store_unit_drop_step(f->store, l->unit, item->id);
    if (r == 0)
        r = mf_suspect_hold(f, g, &l->best, item->id, item->kernel);
    return r < 0 ? r : 1;
}

/* Appends the undecided steps. Removes steps with a deciding result from the lease, and steps that no worker
 * may run. */
static int add_steps(struct mf_farm *f, struct mf_lease *l, struct mf_buf *out)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        struct mf_lease_item item = {.id = l->items[i].id};
        enum mf_status status;
        double us;
        int r =
            l->attempt > 1 ? mf_store_step_decided(f->store, l->task->id, l->unit, item.id, &status, &us) : 0;
        if (r < 0)
            return r;
        bool decided = r > 0;
        size_t before = out->len;
        if (!decided && n > 0)
            (void)mf_buf_adds(out, ",");
        r = add_step(f, l, &item, item.id, decided ? NULL : out);
        if (r == 0 && !decided)
            r = leave_out(f, l, &item);
        if (r < 0)
            return r;
        if (r > 0)
            mf_buf_truncate(out, before);
        else if (!decided)
            l->items[n++] = item;
        else if (status == MF_STATUS_OK)
            mf_best_times_add(&l->best, mf_lease_item_rivals(&item), l->worker, us);
    }
    l->n = l->n_left = n;
    return 0;
}

/* Appends the pipeline of a race and fills in the item. layouts: the layouts that race; NULL: all pipelines
 * are in one group. */
static int add_pipeline(struct mf_farm *f, const struct mf_lease *l, struct mf_lease_item *item,
                        const cJSON *layouts, struct mf_buf *out)
{
    struct mf_pipeline p;
    const cJSON *id, *layout;
    bool first = true;
    int k = 0, r = mf_store_pipeline_get(f->store, item->id, &p);
    if (r < 0)
        return r;
    item->forecast_us = p.forecast_us;
    cJSON_ArrayForEach (layout, layouts) {
        if (cJSON_IsString(layout) && strcmp(layout->valuestring, p.layout) == 0)
            item->group = k;
        k++;
    }
    _cleanup_(cJSON_Deletep) cJSON *steps = mf_json_parse(p.steps, strlen(p.steps), 1u << 16);
    if (out) {
        (void)mf_buf_addf(out, "{\"id\":%" PRId64 ",\"forecast_us\":", item->id);
        mf_json_put_number(out, p.forecast_us);
        (void)mf_buf_addc(out, ',');
    }
    if (out && layouts)
        (void)mf_buf_addf(out, "\"group\":%d,", item->group);
    if (out)
        (void)mf_buf_adds(out, "\"steps\":[");
    mf_pipeline_release(&p);
    cJSON_ArrayForEach (id, steps) {
        if (out && !first)
            (void)mf_buf_adds(out, ",");
        r = add_step(f, l, item, (int64_t)id->valuedouble, out);
        if (r < 0)
            return r;
        first = false;
    }
    return out ? mf_buf_adds(out, "]}") : 0;
}

static bool contains(const mf_ops *ops, int n, mf_ops wanted)
{
    int i = 0;
    while (i < n && ops[i] != wanted)
        i++;
    return i < n;
}

/* Appends the best times, which a worker uses to drop slow steps early. On simulated devices these are only
 * the times of this unit, so that the results do not depend on the speed of other workers, and a repeated
 * batch gives the same table. */
static void add_best_times(const struct mf_lease *l, struct mf_buf *out)
{
    const struct mf_best_times *b = l->slot->simulated ? &l->best : &l->task->best;
    char covers[MF_OPS_TEXT_MAX];
    mf_ops done[MF_BEST_MAX];
    int n_done = 0;
    (void)mf_buf_adds(out, ",\"best_us\":{");
    for (int i = 0; i < b->n; i++) {
        mf_ops ops = b->entries[i].covers;
        double us = mf_best_times_find(b, ops, l->worker);
        if (!isfinite(us) || contains(done, n_done, ops))
            continue;
        mf_ops_print(ops, covers);
        (void)mf_buf_addf(out, "%s\"%s\":", n_done ? "," : "", covers);
        mf_json_put_number(out, us);
        done[n_done++] = ops;
    }
    (void)mf_buf_adds(out, "}");
}

static int add_probe(struct mf_farm *f, struct mf_lease *l, struct mf_buf *out)
{
    (void)mf_buf_adds(out, ",\"steps\":[");
    int r = add_steps(f, l, out);
    (void)mf_buf_adds(out, "]");
    add_best_times(l, out);
    return r;
}

static int add_race(struct mf_farm *f, struct mf_lease *l, const char *body, struct mf_buf *out)
{
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(body, strlen(body), MF_UNIT_TEXT_MAX);
    int r = json ? 0 : -ENOMEM;
    if (out)
        (void)mf_buf_adds(out, ",\"pipelines\":[");
    for (size_t i = 0; r == 0 && i < l->n; i++) {
        if (out && i > 0)
            (void)mf_buf_adds(out, ",");
        r = add_pipeline(f, l, &l->items[i], mf_json_array(json, "layouts"), out);
    }
    if (r < 0 || !out)
        return r;
    _cleanup_(mf_freep) char *plan = mf_json_print(mf_json_object(json, "plan"));
    return plan ? mf_buf_addf(out, "],\"plan\":%s", plan) : -ENOMEM;
}

static int add_row(void *context, const char *row)
{
    struct mf_buf *out = context;
    return mf_buf_addf(out, "%s\"%s\"", out->data[out->len - 1] == '[' ? "" : ",", row);
}

int mf_unit_message_add_next(struct mf_farm *f, const struct mf_lease *l, struct mf_buf *out)
{
    int r = mf_buf_adds(out, ",\"next\":[");
    if (r == 0)
        r = mf_store_next_shapes(f->store, l->task->class_id, NEXT_SHAPES, add_row, out);
    return r < 0 ? r : mf_buf_adds(out, "]");
}

int mf_unit_message_add(struct mf_farm *f, struct mf_lease *l, const char *body, struct mf_buf *out)
{
    _cleanup_(mf_freep) char *other = l->routing ? mf_batch_unit_options(l->task->batch, l->routing) : NULL;
    if (l->routing && !other)
        return -ENOMEM;
    (void)mf_buf_addf(out,
                      "{\"unit\":%" PRId64 ",\"attempt\":%" PRId64 ",\"epoch\":%" PRId64
                      ",\"kind\":\"%s\",\"shape\":\"%s\",\"options\":%s,\"families\":",
                      l->unit, l->attempt, l->epoch, mf_unit_kind_name(l->kind), l->task->row,
                      other ? other : l->task->batch->unit_options);
    int r = mf_store_family_set_print(f->store, l->families, out);
    if (r < 0)
        return r;
    if (mf_unit_is_race(l->kind))
        return add_race(f, l, body, out);
    return l->kind == MF_UNIT_PROBE ? add_probe(f, l, out) : 0;
}

int mf_lease_load_items(struct mf_farm *f, struct mf_lease *l, const char *body)
{
    int r = 0;
    if (mf_unit_is_race(l->kind))
        return add_race(f, l, body, NULL);
    for (size_t i = 0; r == 0 && i < l->n; i++)
        r = add_step(f, l, &l->items[i], l->items[i].id, NULL);
    return r;
}
