/* Counts the shapes that production reports as missed, and submits them as batches: on request or, with
 * --tune-misses, automatically. */
#include "server/farm/miss.h"

#include "server/farm/farm_private.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX        (INT64_C(1) << 53)
#define TRIM_INTERVAL_MS 60000 /* interval between deletions of tuned shapes from a full list */

/* ---- reports ---- */

struct counts {
    int64_t counted, open, tuned, left_out;
};

/* Finds how many new shapes the list of misses can take. */
static int find_free_entries(struct mf_farm *f, size_t n_rows, int64_t *ret)
{
    int64_t n = 0;
    int r = mf_store_misses_count(f->store, &n);
    if (r == 0 && n + (int64_t)n_rows > MF_MISSES_MAX && f->now_ms >= f->misses_trim_ms) {
        f->misses_trim_ms = f->now_ms + TRIM_INTERVAL_MS;
        r = mf_store_misses_delete_tuned(f->store);
        n -= r > 0 ? r : 0;
    }
    *ret = MF_MISSES_MAX - n;
    return r < 0 ? r : 0;
}

static int add_miss(struct mf_farm *f, const struct mf_miss_report *report, const struct mf_miss_row *row,
                    int64_t *free_entries, struct counts *counts)
{
    char text[MF_SHAPE_TEXT_MAX];
    enum mf_miss_state state = MF_MISS_OPEN;
    struct mf_miss miss = {.class = &report->class,
                           .row = text,
                           .count = row->count,
                           .layout = row->layout,
                           .source = report->source,
                           .at_ms = f->wall_ms};
    mf_shape_print(&row->shape, text);
    int r = mf_store_miss_add(f->store, &miss, *free_entries > 0, &state);
    if (r == 0)
        counts->left_out++;
    if (r <= 0)
        return r;
    *free_entries -= r == 2;
    /* As in the list, counts saturate at the largest exact integer of a JSON number */
    counts->counted = MF_MIN(counts->counted + row->count, COUNT_MAX);
    counts->open += state == MF_MISS_OPEN || state == MF_MISS_FAILED;
    counts->tuned += state == MF_MISS_TUNED || state == MF_MISS_TUNING;
    f->misses_new |= state == MF_MISS_OPEN;
    return 0;
}

static cJSON *make_receipt(const struct mf_miss_report *report, const struct counts *counts)
{
    cJSON *o = cJSON_CreateObject(), *errors = cJSON_Duplicate(report->errors, true);
    mf_json_add_i64(o, "misses", (int64_t)report->n_rows);
    mf_json_add_i64(o, "counted", counts->counted);
    mf_json_add_i64(o, "tuned", counts->tuned);
    mf_json_add_i64(o, "open", counts->open);
    mf_json_add_i64(o, "left_out", counts->left_out);
    cJSON_AddItemToObject(o, "errors", errors);
    return o;
}

int mf_farm_misses_add(struct mf_farm *f, const struct mf_miss_report *report, cJSON **ret_receipt)
{
    struct counts counts = {0};
    int64_t free_entries = 0;
    int r;
    if (*report->idempotency_key) {
        r = mf_store_miss_find_receipt(f->store, report->idempotency_key, report->body_hash, ret_receipt);
        if (r != 0)
            return r;
    }
    r = find_free_entries(f, report->n_rows, &free_entries);
    for (size_t i = 0; r == 0 && i < report->n_rows; i++)
        r = add_miss(f, report, &report->rows[i], &free_entries, &counts);
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *json = make_receipt(report, &counts);
    _cleanup_(mf_freep) char *text = mf_json_print(json);
    if (!text)
        return -ENOMEM;
    if (*report->idempotency_key)
        r = mf_store_miss_add_receipt(f->store, report->idempotency_key, report->body_hash, text, f->wall_ms);
    if (r == 0)
        *ret_receipt = MF_TAKE(json);
    return r;
}

/* ---- tuning ---- */

/* A batch of missed shapes that is being collected. All its shapes have one class and one weight layout. */
struct batch_builder {
    struct mf_farm *f;
    int priority;
    struct mf_device_class class;
    char layout[MF_PATH_LAYOUT_MAX];
    struct mf_shape *shapes;
    size_t n, cap;
    cJSON *batches;
};

static int submit(struct batch_builder *g)
{
    char name[96], class[MF_DEVICE_CLASS_TEXT_MAX];
    int64_t batch = 0;
    if (g->n == 0)
        return 0;
    mf_device_class_print(&g->class, class);
    mf_format(name, sizeof(name), "shapes missed by production on %s", class);
    struct mf_submission submission = {.name = name,
                                       .idempotency_key = "",
                                       .body_hash = "",
                                       .options = mf_batch_options_default(),
                                       .shapes = g->shapes,
                                       .n_shapes = g->n};
    submission.options.priority = g->priority;
    submission.options.classes[0] = g->class;
    submission.options.n_classes = 1;
    memcpy(submission.options.layout, g->layout, sizeof(g->layout));
    _cleanup_(cJSON_Deletep) cJSON *receipt = NULL;
    int r = mf_farm_submit(g->f, &submission, &receipt);
    if (r < 0)
        return r;
    (void)mf_json_i64(receipt, "batch", 1, INT64_MAX, &batch);
    log_info("batch %" PRId64 ": %zu shapes missed by production on %s", batch, g->n, class);
    cJSON *o = cJSON_CreateObject();
    mf_json_add_i64(o, "batch", batch);
    cJSON_AddStringToObject(o, "class", class);
    if (*g->layout)
        cJSON_AddStringToObject(o, "layout", g->layout);
    mf_json_add_i64(o, "shapes", (int64_t)g->n);
    cJSON_AddItemToArray(g->batches, o);
    g->n = 0;
    return 0;
}

static int add_shape(const struct mf_device_class *class, const char *row, const char *layout, void *data)
{
    struct batch_builder *g = data;
    bool other = !mf_device_class_equal(class, &g->class) || strcmp(layout, g->layout) != 0;
    int r = g->n > 0 && other ? submit(g) : 0;
    if (r < 0)
        return r;
    r = mf_array_grow(&g->shapes, g->n, &g->cap, sizeof(*g->shapes));
    if (r < 0)
        return r;
    g->class = *class;
    (void)mf_copy(g->layout, sizeof(g->layout), layout);
    /* A row that an earlier version wrote and this version cannot parse stays on the list */
    if (mf_shape_parse(row, &g->shapes[g->n]) == 0)
        g->n++;
    return 0;
}

int mf_farm_misses_submit(struct mf_farm *f, const struct mf_miss_filter *filter, int priority, cJSON **ret)
{
    _cleanup_(cJSON_Deletep) cJSON *batches = cJSON_CreateArray();
    struct batch_builder g = {.f = f, .priority = priority, .batches = batches};
    int r = batches ? mf_store_misses_open(f->store, filter, add_shape, &g) : -ENOMEM;
    if (r >= 0)
        r = submit(&g);
    free(g.shapes);
    if (r < 0)
        return r;
    *ret = MF_TAKE(batches);
    return 0;
}

int mf_misses_tune(struct mf_farm *f)
{
    _cleanup_(cJSON_Deletep) cJSON *batches = NULL;
    if (f->options.tune_misses_s <= 0 || !f->misses_new || f->now_ms < f->misses_due_ms)
        return 0;
    f->misses_new = false;
    f->misses_due_ms = f->now_ms + f->options.tune_misses_s * 1000;
    return mf_farm_misses_submit(f, &(struct mf_miss_filter){.min_count = 1},
                                 (int)mf_batch_options_default().priority, &batches);
}
