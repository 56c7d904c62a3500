/* Ranking: from a goal's measured steps to its pipelines, from a layer model's pipelines to one weight layout, and from
 * there to finalists and their races.
 *
 * Production stores a layer's weights once, so the layout is chosen over the whole ladder: no goal of a layer model goes on
 * before the last of them is probed. With layout=free each takes its own, and what that gains is recorded. */
#include "server/farm_private.h"

#include "common/fault.h"
#include "common/json.h"
#include "common/log.h"
#include "common/text.h"
#include "server/promote.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Pipelines kept for people, beside the finalists: of the chosen layout, and of each other one. */
#define KEPT_OF_LAYOUT 64
#define KEPT_OF_OTHERS 3
#define LAYOUTS_MAX    64
#define STRUCTURES_MAX 64

/* ---- a goal's pipelines ---- */

struct measured {
    struct mf_path_step *timed;
    struct mf_step *steps;
    int64_t *ids;
    size_t n, cap;
    int counts[MF_STATUS_N_];
};

static void measured_release(struct measured *m)
{
    free(m->timed);
    free(m->steps);
    free(m->ids);
}

static int measured_grow(struct measured *m)
{
    size_t cap = m->cap ? m->cap * 2 : 256;
    struct mf_path_step *timed = reallocarray(m->timed, cap, sizeof(*timed));
    if (!timed)
        return -ENOMEM;
    m->timed = timed;
    struct mf_step *steps = reallocarray(m->steps, cap, sizeof(*steps));
    if (!steps)
        return -ENOMEM;
    m->steps = steps;
    int64_t *ids = reallocarray(m->ids, cap, sizeof(*ids));
    if (!ids)
        return -ENOMEM;
    m->ids = ids;
    m->cap = cap;
    return 0;
}

/* Only what is right by every gate can be in a pipeline. */
static int take_measured(void *context, const struct mf_measured_row *row)
{
    struct measured *m = context;
    const char *field;
    m->counts[row->status]++;
    if (row->status != MF_STATUS_OK || row->verified != 2 || !(row->us > 0))
        return 0;
    int r = m->n == m->cap ? measured_grow(m) : 0;
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(row->body, strlen(row->body), 1u << 16);
    if (!json)
        return -ENOMEM;
    r = mf_step_from_json(json, &m->steps[m->n], &field);
    if (r < 0)
        return r;
    m->timed[m->n].us = row->us;
    m->ids[m->n++] = row->step;
    return 0;
}

/* "no legal pipeline: no right step covers gemm2; of 40 steps 30 are ok, 5 wrong, 5 crash" */
static int fail_without(struct mf_farm *f, struct mf_goal *g, const struct measured *m,
                        const struct mf_path_problem *p)
{
    char reason[MF_REASON_MAX], ops[MF_OPS_TEXT_MAX];
    struct mf_buf counts;
    mf_buf_init(&counts, 256);
    int total = 0;
    for (int i = 0; i < MF_STATUS_N_; i++) {
        total += m->counts[i];
        if (m->counts[i])
            (void)mf_buf_addf(&counts, "%s%d %s", counts.len ? ", " : "", m->counts[i],
                              mf_status_name((enum mf_status)i));
    }
    mf_ops uncovered = mf_path_uncovered(p);
    mf_ops_print(uncovered, ops);
    if (uncovered)
        mf_say(reason, sizeof(reason), "no legal pipeline: no right step covers %s; of %d steps: %s", ops,
               total, counts.len ? counts.data : "none offered, see the rejections");
    else
        mf_say(
            reason, sizeof(reason),
            "no legal pipeline: each op is covered, but no steps fit together by their artifacts, block_m and"
            " weight layouts; of %d steps: %s",
            total, counts.data);
    mf_buf_release(&counts);
    return mf_goal_fail(f, g, reason);
}

static double launch_gap_us(struct mf_farm *f, const struct mf_goal *g)
{
    _cleanup_(mf_freep) char *body = NULL;
    double gap_us = 0;
    if (!g->model || mf_store_model_body(f->store, g->model, &body) < 0)
        return 0;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(body, strlen(body), 1u << 16);
    (void)mf_json_double(json, "gap_us", &gap_us);
    return gap_us > 0 && isfinite(gap_us) ? gap_us : 0;
}

/* What each structure took in earlier batches against its forecasts. */
static int correct(struct mf_farm *f, const struct mf_goal *g, struct mf_forecast *fc)
{
    struct {
        uint64_t structure;
        double log_ratio, log_spread;
    } known[STRUCTURES_MAX];
    int n = 0;
    for (size_t i = 0; i < fc->n_paths; i++) {
        int k = 0;
        while (k < n && known[k].structure != fc->paths[i].structure)
            k++;
        if (k == n) {
            char structure[MF_PATH_STRUCTURE_MAX];
            if (n == STRUCTURES_MAX)
                k = --n;
            known[k].structure = fc->paths[i].structure;
            known[k].log_ratio = known[k].log_spread = 0;
            mf_path_structure(fc->paths[i].structure, structure);
            int r = mf_store_ratio_get(f->store, g->class_id, structure, g->batch->created_ms,
                                       &known[k].log_ratio, &known[k].log_spread);
            if (r < 0)
                return r;
            n++;
        }
        fc->corrected_us[i] = fc->paths[i].us * exp(known[k].log_ratio);
        fc->log_spread[i] = known[k].log_spread;
    }
    return 0;
}

static int keep_forecast(struct mf_farm *f, struct mf_goal *g, struct measured *m, struct mf_path *paths,
                         size_t n)
{
    struct mf_forecast *fc = calloc(1, sizeof(*fc));
    if (!fc) {
        free(paths);
        return -ENOMEM;
    }
    mf_goal_drop_forecast(g);
    g->forecast = fc;
    fc->paths = paths;
    fc->n_paths = n;
    fc->step_ids = MF_TAKE(m->ids);
    fc->corrected_us = calloc(n, sizeof(double));
    fc->log_spread = calloc(n, sizeof(double));
    return fc->corrected_us && fc->log_spread ? correct(f, g, fc) : -ENOMEM;
}

int mf_rank_goal(struct mf_farm *f, struct mf_goal *g)
{
    struct measured m = {0};
    struct mf_path *paths = NULL;
    size_t n_paths = 0;
    int r = mf_store_measured_each(f->store, g->id, take_measured, &m);
    /* Only now do the steps stay where they are */
    for (size_t i = 0; i < m.n; i++)
        m.timed[i].step = &m.steps[i];
    struct mf_path_problem p = {
        .ops = mf_layer_ops(&g->shape),
        .format = g->shape.dtype == MF_DTYPE_FP16 ? MF_FORMAT_FP16 : MF_FORMAT_BF16,
        .steps = m.timed,
        .n_steps = m.n,
        .gap_us = launch_gap_us(f, g),
        .keep = MF_PATH_KEEP_MAX,
    };
    if (r == 0)
        r = mf_path_find(&p, &paths, &n_paths);
    if (r == -E2BIG) {
        r = mf_goal_fail(f, g, "its steps combine in too many ways to rank them");
    } else if (r == 0 && n_paths == 0) {
        free(paths);
        r = fail_without(f, g, &m, &p);
    } else if (r == 0) {
        r = keep_forecast(f, g, &m, paths, n_paths);
        r = r < 0 ? r : 1;
    }
    measured_release(&m);
    return r;
}

/* ---- one layout for a layer model ---- */

struct layout {
    char text[MF_PATH_LAYOUT_MAX];
    int n_goals; /* that have a pipeline in it */
    double us;   /* sum of their best forecasts */
};

static double best_in(const struct mf_forecast *fc, const char *layout)
{
    double best = INFINITY;
    for (size_t i = 0; i < fc->n_paths; i++) {
        char text[MF_PATH_LAYOUT_MAX];
        mf_path_layout(&fc->paths[i], text);
        if (!layout || strcmp(text, layout) == 0)
            best = fmin(best, fc->corrected_us[i]);
    }
    return best;
}

static size_t list_layouts(struct mf_goal **goals, size_t n_goals, struct layout *layouts)
{
    size_t n = 0;
    for (size_t g = 0; g < n_goals; g++) {
        for (size_t i = 0; i < goals[g]->forecast->n_paths; i++) {
            char text[MF_PATH_LAYOUT_MAX];
            size_t k = 0;
            mf_path_layout(&goals[g]->forecast->paths[i], text);
            while (k < n && strcmp(layouts[k].text, text) != 0)
                k++;
            if (k < n || n == LAYOUTS_MAX)
                continue;
            layouts[n] = (struct layout){.n_goals = 0};
            memcpy(layouts[n++].text, text, sizeof(text));
        }
    }
    for (size_t k = 0; k < n; k++) {
        for (size_t g = 0; g < n_goals; g++) {
            double us = best_in(goals[g]->forecast, layouts[k].text);
            layouts[k].n_goals += isfinite(us) ? 1 : 0;
            layouts[k].us += isfinite(us) ? us : 0;
        }
    }
    return n;
}

/* Most goals first: a goal that the layout leaves out has no config. Then the least time over the ladder, then by name. */
static int compare_layouts(const void *va, const void *vb)
{
    const struct layout *a = va, *b = vb;
    if (a->n_goals != b->n_goals)
        return b->n_goals - a->n_goals;
    if (a->us != b->us)
        return a->us < b->us ? -1 : 1;
    return strcmp(a->text, b->text);
}

static int record_layouts(struct mf_farm *f, const struct mf_goal *of, const struct layout *layouts, size_t n,
                          double free_us, bool is_free)
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(json, "layouts");
    for (size_t i = 0; i < n; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "layout", layouts[i].text);
        cJSON_AddNumberToObject(item, "us", layouts[i].us);
        mf_json_add_i64(item, "goals", layouts[i].n_goals);
        cJSON_AddItemToArray(list, item);
    }
    cJSON_AddNumberToObject(json, "free_us", free_us);
    /* The share of the ladder's time that a layout for each goal would save, or saves */
    cJSON_AddNumberToObject(json, "free_gain", layouts[0].us > 0 ? fmax(0, 1 - free_us / layouts[0].us) : 0);
    _cleanup_(mf_freep) char *body = mf_json_print(json);
    if (!body)
        return -ENOMEM;
    struct mf_layout_row row = {.batch = of->batch->id,
                                .class = of->class_id,
                                .layer_model = of->layer_model,
                                .layout = is_free ? "free" : layouts[0].text,
                                .body = body,
                                .us = is_free ? free_us : layouts[0].us};
    return mf_store_layout_add(f->store, &row);
}

/* ---- finalists and the race ---- */

static int add_pipeline(struct mf_farm *f, const struct mf_goal *g, const struct mf_ranked *ranked, int place,
                        int64_t *ret)
{
    char structure[MF_PATH_STRUCTURE_MAX], layout[MF_PATH_LAYOUT_MAX];
    struct mf_buf steps;
    mf_buf_init(&steps, 4096);
    mf_path_structure(ranked->path->structure, structure);
    mf_path_layout(ranked->path, layout);
    (void)mf_buf_adds(&steps, "[");
    for (int i = 0; i < ranked->path->n; i++)
        (void)mf_buf_addf(&steps, "%s%" PRId64, i ? "," : "", g->forecast->step_ids[ranked->path->steps[i]]);
    int r = mf_buf_adds(&steps, "]");
    struct mf_pipeline_row row = {.goal = g->id,
                                  .place = place,
                                  .steps = steps.data,
                                  .structure = structure,
                                  .block_m = ranked->path->block_m,
                                  .layout = layout,
                                  .sum_us = ranked->path->us,
                                  .forecast_us = ranked->forecast_us,
                                  .finalist = ranked->finalist};
    if (r == 0)
        r = mf_store_pipeline_add(f->store, &row, ret);
    mf_buf_release(&steps);
    return r;
}

/* The goal's paths of a layout (NULL: of all), ranked by forecast. */
static size_t rank_layout(const struct mf_goal *g, const char *layout, struct mf_ranked *ret)
{
    const struct mf_forecast *fc = g->forecast;
    size_t n = 0;
    for (size_t i = 0; i < fc->n_paths; i++) {
        char text[MF_PATH_LAYOUT_MAX];
        mf_path_layout(&fc->paths[i], text);
        if (!layout || strcmp(text, layout) == 0)
            ret[n++] = (struct mf_ranked){&fc->paths[i], fc->corrected_us[i], fc->log_spread[i], false};
    }
    (void)mf_race_finalists(ret, n, g->batch->options.topk);
    return n;
}

/* What other layouts would bring, for people. */
static int store_others(struct mf_farm *f, const struct mf_goal *g, const char *chosen,
                        struct mf_ranked *ranked)
{
    struct layout layouts[LAYOUTS_MAX];
    struct mf_goal *self = (struct mf_goal *)g;
    size_t n = list_layouts(&self, 1, layouts);
    for (size_t k = 0; k < n; k++) {
        if (strcmp(layouts[k].text, chosen) == 0)
            continue;
        size_t n_ranked = rank_layout(g, layouts[k].text, ranked);
        for (size_t i = 0; i < n_ranked && i < KEPT_OF_OTHERS; i++) {
            int64_t id;
            ranked[i].finalist = false;
            int r = add_pipeline(f, g, &ranked[i], (int)i + 1, &id);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

static int start_race(struct mf_farm *f, struct mf_goal *g, const int64_t *ids, const double *forecast_us,
                      size_t n)
{
    struct mf_race_schedule schedule;
    struct mf_buf body;
    mf_buf_init(&body, 16u << 10);
    mf_race_schedule(forecast_us, n, f->options.race_s, &schedule);
    if (g->batch->options.iters > 0)
        schedule.fresh = g->batch->options.iters;
    (void)mf_buf_adds(&body, "{\"pipelines\":[");
    for (size_t i = 0; i < n; i++)
        (void)mf_buf_addf(&body, "%s%" PRId64, i ? "," : "", ids[i]);
    (void)mf_buf_adds(&body, "],\"plan\":");
    (void)mf_race_schedule_print(&schedule, &body);
    int r = mf_buf_adds(&body, "}");
    if (r == 0)
        r = mf_goal_race(f, g, body.data);
    mf_buf_release(&body);
    return r;
}

/* Stores the goal's pipelines and races its finalists. layout NULL: any. */
static int finish(struct mf_farm *f, struct mf_goal *g, const char *layout)
{
    int64_t ids[MF_FINALISTS_MAX];
    double forecast_us[MF_FINALISTS_MAX];
    size_t n_finalists = 0;
    _cleanup_(mf_freep) struct mf_ranked *ranked = calloc(g->forecast->n_paths + 1, sizeof(*ranked));
    if (!ranked)
        return -ENOMEM;
    size_t n = rank_layout(g, layout, ranked);
    if (n == 0) {
        char reason[MF_REASON_MAX];
        mf_say(reason, sizeof(reason),
               "no legal pipeline in %s, the layout that its layer model stores its weights in", layout);
        return mf_goal_fail(f, g, reason);
    }
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!ranked[i].finalist && i >= KEPT_OF_LAYOUT)
            continue;
        int r = add_pipeline(f, g, &ranked[i], (int)i + 1, &id);
        if (r < 0)
            return r;
        if (ranked[i].finalist) {
            ids[n_finalists] = id;
            forecast_us[n_finalists++] = ranked[i].forecast_us;
        }
    }
    int r = layout ? store_others(f, g, layout, ranked) : 0;
    return r < 0 ? r : start_race(f, g, ids, forecast_us, n_finalists);
}

/* ---- the barrier ---- */

/* Their forecasts, made again if a restart has forgotten them. */
static int load_goals(struct mf_farm *f, const struct mf_ids *ids, struct mf_goal **goals, size_t *ret_n)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++) {
        struct mf_goal *g;
        int r = mf_goal_get(f, ids->all[i], &g);
        if (r == 0)
            r = g->state != MF_GOAL_RANKING ? 0 : g->forecast ? 1 : mf_rank_goal(f, g);
        if (r < 0)
            return r;
        if (r > 0)
            goals[n++] = g;
    }
    *ret_n = n;
    return 0;
}

/* Where known rows stand unless they are beaten one by one (promote.h), the layout of all of them goes first, if it serves as many
 * goals as any: another one could not stand beside those that are kept. */
static int prefer_known(struct mf_farm *f, struct mf_goal **goals, size_t n, struct layout *layouts,
                        size_t n_layouts)
{
    char known[MF_PATH_LAYOUT_MAX] = "", one[MF_PATH_LAYOUT_MAX];
    for (size_t i = 0; i < n; i++) {
        int r = mf_promote_layout(f, goals[i], one);
        if (r < 0)
            return r;
        if (r > 0 && *known && strcmp(known, one) != 0)
            return 0;
        if (r > 0)
            memcpy(known, one, sizeof(known));
    }
    for (size_t k = 1; *known && k < n_layouts; k++) {
        if (strcmp(layouts[k].text, known) != 0 || layouts[k].n_goals < layouts[0].n_goals)
            continue;
        struct layout first = layouts[k];
        memmove(layouts + 1, layouts, k * sizeof(layouts[0]));
        layouts[0] = first;
        break;
    }
    return 0;
}

/* The layout that the weights lie in already is the only one, whether a goal has a pipeline in it or not. */
static size_t pin(const char *layout, struct layout *layouts, size_t n)
{
    size_t at = 0;
    while (at < n && strcmp(layouts[at].text, layout) != 0)
        at++;
    struct layout pinned = at < n ? layouts[at] : (struct layout){.n_goals = 0};
    (void)mf_copy(pinned.text, sizeof(pinned.text), layout);
    at = MF_MIN(at, (size_t)LAYOUTS_MAX - 1);
    memmove(layouts + 1, layouts, at * sizeof(layouts[0]));
    layouts[0] = pinned;
    return MF_MAX(n, at + 1);
}

static int choose(struct mf_farm *f, struct mf_goal **goals, size_t n, bool is_free)
{
    const char *pinned = goals[0]->batch->options.layout;
    struct layout layouts[LAYOUTS_MAX];
    double free_us = 0;
    size_t n_layouts = list_layouts(goals, n, layouts);
    qsort(layouts, n_layouts, sizeof(layouts[0]), compare_layouts);
    int r = is_free || *pinned ? 0 : prefer_known(f, goals, n, layouts, n_layouts);
    if (*pinned)
        n_layouts = pin(pinned, layouts, n_layouts);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        if (is_free || isfinite(best_in(goals[i]->forecast, layouts[0].text)))
            free_us += best_in(goals[i]->forecast, NULL);
    }
    r = record_layouts(f, goals[0], layouts, n_layouts, free_us, is_free);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = finish(f, goals[i], is_free ? NULL : layouts[0].text);
    return r;
}

int mf_rank_layer(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model)
{
    struct mf_ids ids = {0};
    int64_t n_behind = 0;
    size_t n = 0;
    /* A goal that fails here asks for its layer model to be ranked again, while that is being done */
    if (f->ranking)
        return 0;
    f->ranking = true;
    int r = mf_store_goals_of_layer(f->store, b->id, class_id, layer_model, &ids, &n_behind);
    if (r == 0 && n_behind == 0 && ids.n > 0) {
        _cleanup_(mf_freep) struct mf_goal **goals = calloc(ids.n, sizeof(struct mf_goal *));
        r = goals ? load_goals(f, &ids, goals, &n) : -ENOMEM;
        if (r == 0 && n > 0)
            r = choose(f, goals, n, b->options.layout_free);
        mf_fault_at(MF_FAULT_LAYER_RANKED);
    }
    mf_ids_release(&ids);
    f->ranking = false;
    return r;
}
