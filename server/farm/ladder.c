/* Chooses one weight layout for each layer model and consumer.
 *
 * Production stores a layer's weights once, so the layout is chosen over the whole ladder: all token counts
 * of the layer model. No task races before the last task of its layer model is probed. With layout=free each
 * task takes its own layout, and the farm records how much time this saves over one layout for all tasks.
 *
 * The races of a ladder start in slices, so that no transaction takes long. The choice is stored first. Tasks
 * stay in state `ranking` until their races start.
 *
 *   all ranked ──rank──► one layout is left: each task races in it and has its config when its race ends
 *                   └──► several layouts are within the forecast errors: each task races all of them in the
 *                        same rounds. Pipelines compete only within their layout. The task then waits for
 *                        the other tasks.
 *   all raced ──settle──► the layout with the lowest total time of its winners; its winners are the configs
 *
 * Table layout_choice holds the totals of each layout and the reason why it was chosen or not. */
#include "server/farm/farm_private.h"

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "server/choose/layout_choice.h"
#include "server/farm/promote.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAYOUTS_MAX 64
/* Number of tasks whose races start in one transaction. A race stores up to about 300 pipelines. */
#define TASKS_PER_SLICE 4

/* Layouts of a layer model for a consumer, sorted by mf_layout_compare; layouts to race come first. */
struct ladder {
    enum mf_consumer consumer;
    struct mf_layout_sum layouts[LAYOUTS_MAX];
    size_t n;
    size_t chosen;  /* index of the chosen layout; 0 while the layouts race */
    const char *by; /* "forecast", "race", "free", "given" or "known" */
    bool pending;   /* the races have not ended */
    double free_us; /* total time if each task chose its own layout */
};

/* ---- from forecasts ---- */

static struct mf_layout_sum *find(struct ladder *l, const char *text)
{
    for (size_t k = 0; k < l->n; k++) {
        if (strcmp(l->layouts[k].text, text) == 0)
            return &l->layouts[k];
    }
    return NULL;
}

static struct mf_layout_sum *find_or_add(struct ladder *l, const char *text)
{
    struct mf_layout_sum *sum = find(l, text);
    if (sum || l->n == LAYOUTS_MAX)
        return sum;
    sum = &l->layouts[l->n++];
    *sum = (struct mf_layout_sum){.n_tasks = 0};
    (void)mf_copy(sum->text, sizeof(sum->text), text);
    return sum;
}

static void list_layouts(struct mf_task **tasks, size_t n_tasks, struct ladder *l)
{
    for (size_t g = 0; g < n_tasks; g++) {
        const struct mf_forecast *fc = tasks[g]->forecasts[l->consumer];
        for (size_t k = 0; k < fc->n_layouts; k++) {
            struct mf_layout_sum *sum = find_or_add(l, fc->layouts[k].text);
            if (!sum)
                continue;
            sum->n_tasks++;
            sum->us += fc->layouts[k].us;
            sum->least_us += fc->layouts[k].least_us;
            sum->most_us += fc->layouts[k].most_us;
        }
    }
    qsort(l->layouts, l->n, sizeof(l->layouts[0]), mf_layout_compare);
}

static void put_first(struct ladder *l, size_t at)
{
    struct mf_layout_sum first = l->layouts[at];
    memmove(l->layouts + 1, l->layouts, at * sizeof(first));
    l->layouts[0] = first;
}

/* Puts a fixed layout first, even if no task has a pipeline in this layout. */
static void pin(const char *layout, const char *by, struct ladder *l)
{
    struct mf_layout_sum *sum = find_or_add(l, layout);
    if (!sum) {
        sum = &l->layouts[LAYOUTS_MAX - 1];
        *sum = (struct mf_layout_sum){.n_tasks = 0};
        (void)mf_copy(sum->text, sizeof(sum->text), layout);
    }
    put_first(l, (size_t)(sum - l->layouts));
    l->by = by;
}

/* Puts the layout of the known rows first, if known rows are kept unless beaten (promote.h) and share one
 * layout. New rows in another layout could not be combined with the kept rows, because production has packed
 * the weights for the kept rows already. */
static int prefer_known(struct mf_farm *f, struct mf_task **tasks, size_t n, struct ladder *l)
{
    char known[MF_PATH_LAYOUT_MAX] = "", one[MF_PATH_LAYOUT_MAX];
    for (size_t i = 0; i < n; i++) {
        int r = mf_promote_layout(f, tasks[i], l->consumer, one);
        if (r < 0)
            return r;
        if (r > 0 && *known && strcmp(known, one) != 0)
            return 0;
        if (r > 0)
            memcpy(known, one, sizeof(known));
    }
    if (*known)
        pin(known, "known", l);
    return 0;
}

/* ---- in the store ---- */

static void explain(const struct ladder *l, size_t i, char ret[MF_REASON_MAX])
{
    bool is_chosen = i == l->chosen;
    if (l->pending)
        mf_format(ret, MF_REASON_MAX, "%s", l->layouts[i].raced ? "is being raced" : "is not raced");
    else if (strcmp(l->by, "free") == 0)
        mf_format(ret, MF_REASON_MAX, "is available: each task chooses its own layout (layout=free)");
    else if (strcmp(l->by, "given") == 0)
        mf_format(ret, MF_REASON_MAX, "is %sthe layout that the batch specifies (layout)",
                  is_chosen ? "" : "not ");
    else if (strcmp(l->by, "known") == 0)
        mf_format(ret, MF_REASON_MAX, "is %sthe layout of the known rows (promote=improved)",
                  is_chosen ? "" : "not ");
    else
        mf_layout_explain(l->layouts, l->n, i, l->chosen, ret);
}

static void add_sum(const struct ladder *l, size_t i, cJSON *list)
{
    const struct mf_layout_sum *sum = &l->layouts[i];
    char reason[MF_REASON_MAX];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "layout", sum->text);
    cJSON_AddNumberToObject(item, "us", sum->us);
    mf_json_add_i64(item, "tasks", sum->n_tasks);
    cJSON_AddBoolToObject(item, "chosen", i == l->chosen && !l->pending && strcmp(l->by, "free") != 0);
    cJSON_AddBoolToObject(item, "raced", sum->raced);
    if (sum->n_raced > 0) {
        cJSON_AddNumberToObject(item, "raced_us", sum->raced_us);
        mf_json_add_i64(item, "raced_tasks", sum->n_raced);
    }
    explain(l, i, reason);
    cJSON_AddStringToObject(item, "reason", reason);
    cJSON_AddItemToArray(list, item);
}

static int record(struct mf_farm *f, const struct mf_task *of, const struct ladder *l)
{
    const struct mf_layout_sum *chosen = &l->layouts[l->chosen];
    bool is_free = strcmp(l->by, "free") == 0;
    double us = chosen->n_raced > 0 ? chosen->raced_us : chosen->us;
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "by", l->by);
    cJSON_AddBoolToObject(json, "pending", l->pending);
    cJSON *list = cJSON_AddArrayToObject(json, "layouts");
    for (size_t i = 0; i < l->n; i++)
        add_sum(l, i, list);
    cJSON_AddNumberToObject(json, "free_us", l->free_us);
    /* fraction of the ladder's time that layout=free saves, or would save */
    cJSON_AddNumberToObject(json, "free_gain", us > 0 ? fmax(0, 1 - l->free_us / us) : 0);
    _cleanup_(mf_freep) char *body = mf_json_print(json);
    if (!body)
        return -ENOMEM;
    struct mf_layout_row row = {.batch = of->batch->id,
                                .class = of->class_id,
                                .consumer = l->consumer,
                                .layer_model = of->layer_model,
                                .layout = is_free ? "free" : chosen->text,
                                .body = body,
                                .us = is_free ? l->free_us : us};
    return mf_store_layout_set(f->store, &row);
}

/* Reads the choice that record() wrote before the races, without `by`. */
static int read_record(struct mf_farm *f, const struct mf_task *of, enum mf_consumer c, struct ladder *ret)
{
    _cleanup_(mf_freep) char *body = NULL;
    const cJSON *item;
    int r = mf_store_layout_body(f->store, of->batch->id, of->class_id, of->layer_model, c, &body);
    if (r <= 0)
        return r < 0 ? r : -ENODATA;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(body, strlen(body), strlen(body));
    if (!json)
        return -ENOMEM;
    *ret = (struct ladder){.consumer = c};
    (void)mf_json_bool(json, "pending", &ret->pending);
    cJSON_ArrayForEach (item, mf_json_array(json, "layouts")) {
        const char *text;
        int64_t n_tasks = 0;
        struct mf_layout_sum *sum = mf_json_text(item, "layout", &text) == 0 ? find_or_add(ret, text) : NULL;
        if (!sum)
            return -EBADMSG;
        (void)mf_json_double(item, "us", &sum->us);
        (void)mf_json_i64(item, "tasks", 0, INT32_MAX, &n_tasks);
        (void)mf_json_bool(item, "raced", &sum->raced);
        sum->n_tasks = (int)n_tasks;
    }
    return 0;
}

/* ---- all are ranked ---- */

/* Loads the tasks in state `ranking`. *ret_n is 0 if a task is not ranked yet. Such tasks are ranked
 * (again: a restart loses the forecasts), and then this ladder is ranked again. */
static int load_tasks(struct mf_farm *f, const struct mf_ids *ids, struct mf_task **tasks, size_t *ret_n)
{
    size_t n = 0, n_unranked = 0;
    for (size_t i = 0; i < ids->n; i++) {
        struct mf_task *g;
        int r = mf_task_get(f, ids->all[i], &g);
        if (r == 0 && !mf_rank_is_complete(g)) {
            n_unranked++;
            r = mf_rank_task(f, g);
        }
        if (r < 0)
            return r;
        tasks[n++] = g;
    }
    *ret_n = n_unranked ? 0 : n;
    return 0;
}

/* Chooses the layouts that race, and stores them. */
static int choose(struct mf_farm *f, struct mf_task **tasks, size_t n, enum mf_consumer c)
{
    const struct mf_batch_options *o = &tasks[0]->batch->options;
    struct ladder l = {.consumer = c, .by = "forecast"};
    size_t n_in = 1;
    int r = 0;
    list_layouts(tasks, n, &l);
    if (o->layout_free)
        l.by = "free";
    else if (*o->layout)
        pin(o->layout, "given", &l);
    else
        r = prefer_known(f, tasks, n, &l);
    if (r < 0)
        return r;
    if (strcmp(l.by, "forecast") == 0)
        n_in = mf_layouts_to_race(l.layouts, l.n);
    l.pending = n_in > 1;
    for (size_t k = 0; k < n_in; k++)
        l.layouts[k].raced = l.pending;
    if (l.pending)
        l.by = "race";
    for (size_t i = 0; i < n; i++) {
        if (o->layout_free || mf_forecast_find(tasks[i]->forecasts[c], l.layouts[0].text))
            l.free_us += mf_forecast_best_us(tasks[i]->forecasts[c]);
    }
    return record(f, tasks[0], &l);
}

/* Keeps a stored choice, because some tasks of the layer model may race already. */
static int choose_once(struct mf_farm *f, struct mf_task **tasks, size_t n, enum mf_consumer c)
{
    _cleanup_(mf_freep) char *body = NULL;
    const struct mf_task *g = tasks[0];
    int r = mf_store_layout_body(f->store, g->batch->id, g->class_id, g->layer_model, c, &body);
    return r == 0 ? choose(f, tasks, n, c) : MF_MIN(r, 0);
}

/* Chooses layouts for each consumer of the tasks. */
static int choose_each(struct mf_farm *f, struct mf_task **tasks, size_t n)
{
    _cleanup_(mf_freep) struct mf_task **of = calloc(n, sizeof(struct mf_task *));
    int r = of ? 0 : -ENOMEM;
    for (enum mf_consumer c = 0; r == 0 && c < MF_CONSUMER_N_; c++) {
        size_t n_of = 0;
        for (size_t i = 0; i < n; i++) {
            if (tasks[i]->forecasts[c])
                of[n_of++] = tasks[i];
        }
        r = n_of > 0 ? choose_once(f, of, n_of, c) : 0;
    }
    return r;
}

/* Lists the tasks for mf_ladder_continue, those with the most tokens first: tasks end in this order, because
 * times are judged against those of more tokens (order.c). */
static int list_tasks(struct mf_farm *f, struct mf_task **tasks, size_t n)
{
    int r = 0;
    for (size_t i = n; r == 0 && i-- > 0;) {
        if (!tasks[i]->to_race)
            r = mf_ids_add(&f->to_race, tasks[i]->id);
        tasks[i]->to_race = true;
    }
    return r;
}

static int start_race(struct mf_farm *f, struct mf_task *g, enum mf_consumer c)
{
    const char *in[MF_LAYOUTS_RACED_MAX];
    struct ladder l;
    size_t n = 1;
    int r = read_record(f, g, c, &l);
    if (r < 0)
        return r;
    in[0] = l.layouts[0].text;
    for (; l.pending && n < MF_LAYOUTS_RACED_MAX && l.layouts[n].raced; n++)
        in[n] = l.layouts[n].text;
    return mf_rank_race(f, g, c, in, g->batch->options.layout_free ? 0 : n);
}

/* Starts the races of all consumers of the task at once, because a task in state `racing` starts no more. */
static int start_races(struct mf_farm *f, struct mf_task *g)
{
    int r = 0;
    for (enum mf_consumer c = 0; r == 0 && c < MF_CONSUMER_N_; c++) {
        if (g->forecasts[c])
            r = start_race(f, g, c);
    }
    return r;
}

int mf_ladder_continue(struct mf_farm *f)
{
    int r = 0;
    for (size_t n = 0; r == 0 && n < TASKS_PER_SLICE && f->to_race_at < f->to_race.n;) {
        struct mf_task *g = mf_map_get(&f->tasks, (uint64_t)f->to_race.all[f->to_race_at++]);
        if (!g || !g->to_race || g->state != MF_TASK_RANKING)
            continue;
        g->to_race = false;
        r = start_races(f, g);
        n++;
    }
    if (f->to_race_at == f->to_race.n)
        f->to_race.n = f->to_race_at = 0;
    return r;
}

int mf_ladder_rank(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model)
{
    struct mf_ids ids = {0};
    int64_t n_pending = 0;
    size_t n = 0;
    /* Prevents recursion, because a task that fails below calls this function again for its layer model */
    if (f->ranking)
        return 0;
    f->ranking = true;
    int r = mf_store_tasks_of_layer(f->store, b->id, class_id, layer_model, &ids, &n_pending);
    if (r == 0 && n_pending == 0 && ids.n > 0) {
        _cleanup_(mf_freep) struct mf_task **tasks = calloc(ids.n, sizeof(struct mf_task *));
        r = tasks ? load_tasks(f, &ids, tasks, &n) : -ENOMEM;
        if (r == 0 && n > 0)
            r = choose_each(f, tasks, n);
        if (r == 0)
            r = list_tasks(f, tasks, n);
        mf_fault_at(MF_FAULT_LAYER_RANKED);
    }
    mf_ids_release(&ids);
    f->ranking = false;
    return r;
}

/* ---- all have raced ---- */

static int keep_win(struct mf_farm *f, const struct mf_task *g, const struct mf_win *w)
{
    struct mf_pipeline p = {0};
    int r = mf_store_pipeline_get(f->store, w->pipeline, &p);
    if (r < 0)
        return r;
    struct mf_layout_race_row row = {.task = g->id,
                                     .pipeline = w->pipeline,
                                     .consumer = w->consumer,
                                     .layout = p.layout,
                                     .ties = w->ties,
                                     .provenance = w->provenance,
                                     .reported = w->reported};
    r = mf_store_layout_race_add(f->store, &row);
    mf_pipeline_release(&p);
    return r;
}

int mf_ladder_raced(struct mf_farm *f, struct mf_task *g, const struct mf_lease *l, const cJSON *race)
{
    int n_won = 0;
    for (int k = 0; k < l->n_groups; k++) {
        struct mf_win w = {0};
        int r = mf_config_win(f, g, l, k, race, &w);
        n_won += r > 0;
        if (r > 0)
            r = keep_win(f, g, &w);
        mf_win_release(&w);
        if (r < 0)
            return r;
    }
    if (n_won == 0)
        return 0;
    int r = mf_ladder_choose_layout(f, g->batch, g->class_id, g->layer_model);
    return r < 0 ? r : 1;
}

struct sums {
    struct ladder *ladder;
    double least_us;
};

static int add_raced(void *context, const struct mf_layout_race_row *row)
{
    struct sums *s = context;
    struct mf_layout_sum *sum = find(s->ladder, row->layout);
    if (!sum)
        return -EBADMSG;
    sum->n_raced++;
    sum->raced_us += row->reported.us;
    s->least_us = fmin(s->least_us, row->reported.us);
    return 0;
}

struct of_layout {
    const char *layout;
    struct mf_win win;
};

static int take_win(void *context, const struct mf_layout_race_row *row)
{
    struct of_layout *o = context;
    if (strcmp(row->layout, o->layout) != 0)
        return 0;
    o->win = (struct mf_win){.pipeline = row->pipeline,
                             .consumer = row->consumer,
                             .reported = row->reported,
                             .unstable = strdup(row->reported.unstable),
                             .ties = strdup(row->ties),
                             .provenance = strdup(row->provenance)};
    o->win.reported.unstable = o->win.unstable;
    return o->win.unstable && o->win.ties && o->win.provenance ? 0 : -ENOMEM;
}

static int end_race(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *layout)
{
    struct of_layout o = {.layout = layout};
    char reason[MF_REASON_MAX];
    int r = mf_store_layout_races_each(f->store, g->id, c, take_win, &o);
    if (r == 0 && !o.win.pipeline) {
        mf_format(reason, sizeof(reason),
                  "no pipeline in %s, the weight layout of its layer model, survived the race; "
                  "see their results",
                  layout);
        r = mf_task_lose(f, g, c, reason);
    } else if (r == 0) {
        r = mf_task_won(f, g, &o.win);
    }
    mf_win_release(&o.win);
    return r;
}

static int settle(struct mf_farm *f, struct mf_task **tasks, size_t n, enum mf_consumer c)
{
    struct ladder l;
    int r = read_record(f, tasks[0], c, &l);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct sums s = {.ladder = &l, .least_us = INFINITY};
        r = mf_store_layout_races_each(f->store, tasks[i]->id, c, add_raced, &s);
        l.free_us += s.least_us;
    }
    if (r < 0)
        return r;
    l.by = "race";
    l.pending = false;
    l.chosen = (size_t)MF_MAX(mf_layouts_fastest(l.layouts, l.n), 0);
    r = record(f, tasks[0], &l);
    mf_fault_at(MF_FAULT_LAYOUT_SETTLED);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = end_race(f, tasks[i], c, l.layouts[l.chosen].text);
    return r;
}

static int choose_raced(struct mf_farm *f, const struct mf_batch *b, int64_t class_id,
                        const char *layer_model, enum mf_consumer c)
{
    struct mf_ids ids = {0};
    int64_t n_pending = 0;
    int r = mf_store_tasks_raced(f->store, b->id, class_id, layer_model, c, &ids, &n_pending);
    if (r == 0 && n_pending == 0 && ids.n > 0) {
        _cleanup_(mf_freep) struct mf_task **tasks = calloc(ids.n, sizeof(struct mf_task *));
        r = tasks ? 0 : -ENOMEM;
        for (size_t i = 0; r == 0 && i < ids.n; i++)
            r = mf_task_get(f, ids.all[i], &tasks[i]);
        if (r == 0)
            r = settle(f, tasks, ids.n, c);
    }
    mf_ids_release(&ids);
    return r;
}

int mf_ladder_choose_layout(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model)
{
    const mf_consumers consumers = mf_batch_consumers(&b->options);
    int r = 0;
    /* Prevents recursion, because a task that fails below, or during ranking, calls this function again */
    if (f->ranking)
        return 0;
    f->ranking = true;
    for (enum mf_consumer c = 0; r == 0 && c < MF_CONSUMER_N_; c++) {
        if (consumers & MF_CONSUMER_BIT(c))
            r = choose_raced(f, b, class_id, layer_model, c);
    }
    f->ranking = false;
    return r;
}
