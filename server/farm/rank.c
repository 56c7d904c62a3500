/* Ranks the pipelines of a task from its measured steps, selects finalists for the layouts that ladder.c
 * allows, and starts their race. */
#include "server/farm/farm_private.h"

#include "common/base/array.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/moe/pipeline_gap.h"
#include "server/choose/foreign_layers.h"
#include "server/choose/layout_choice.h"
#include "server/farm/trust.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Number of pipelines stored for display besides the finalists, per racing layout and per other layout. */
#define KEPT_OF_LAYOUT 64
#define KEPT_OF_OTHERS 3
#define STRUCTURES_MAX 64
#define SEARCH_WORK    50000 /* units of the path search between two looks at the clock: about 1 ms */

/* ---- a task's pipelines ---- */

/* A step that passed all gates. */
struct valid_step {
    struct mf_step step;
    double us;
    int64_t id;
};

struct measured {
    enum mf_consumer consumer;
    const struct mf_family_offer *offer; /* only steps of these families; NULL: of all families */
    struct valid_step *valid_step;
    size_t n, cap;
    int counts[MF_STATUS_N_];
    int n_eager; /* correct steps that cannot be captured */
};

/* Only steps that the consumer dispatches can be in its pipelines. */
static bool may_dispatch(const struct measured *m, const struct mf_step *step, double err)
{
    const struct mf_consumer_step s = mf_consumer_step(step);
    char why[MF_CONSUMER_WHY_MAX];
    return mf_consumer_takes_step(m->consumer, &s, why) &&
           (step->stage == MF_STAGE_MOVE || mf_consumer_takes_error(m->consumer, err, why));
}

/* Collects the steps that passed all gates; only these can be in a pipeline. Eager times include the gaps
 * between launches, so they are not ranked with those of graphs. */
static int take_measured(void *context, const struct mf_measured_row *row)
{
    struct measured *m = context;
    const char *bad_field;
    bool offered = !m->offer || mf_family_offer_contains(m->offer, row->family);
    m->counts[row->status]++;
    if (row->status != MF_STATUS_OK || row->verified != 2 || !(row->us > 0) || !offered)
        return 0;
    if (row->is_eager) {
        m->n_eager++;
        return 0;
    }
    int r = mf_array_grow(&m->valid_step, m->n, &m->cap, sizeof(*m->valid_step));
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(row->body, strlen(row->body), 1u << 16);
    if (!json)
        return -ENOMEM;
    struct valid_step *valid_step = &m->valid_step[m->n];
    r = mf_step_from_json(json, &valid_step->step, &bad_field);
    if (r < 0)
        return r;
    if (!may_dispatch(m, &valid_step->step, row->err))
        return 0;
    valid_step->us = row->us;
    valid_step->id = row->step;
    m->n++;
    return 0;
}

/* The consumer loses the task with a reason such as "no legal pipeline: no correct step covers gemm2; of 40
 * steps: 30 ok, 5 wrong, 5 crash". */
static int fail_no_pipeline(struct mf_farm *f, struct mf_task *g, const struct measured *m,
                            const struct mf_path_problem *p)
{
    char reason[MF_REASON_MAX], gap[MF_REASON_MAX / 2];
    struct mf_buf counts;
    mf_buf_init(&counts, 256);
    int total = 0;
    for (int i = 0; i < MF_STATUS_N_; i++) {
        total += m->counts[i];
        if (m->counts[i])
            (void)mf_buf_addf(&counts, "%s%d %s", counts.len ? ", " : "", m->counts[i],
                              mf_status_name((enum mf_status)i));
    }
    if (m->n_eager > 0)
        (void)mf_buf_addf(&counts, "; %d ok steps are not ranked, because they cannot be captured",
                          m->n_eager);
    int r = mf_pipeline_gap(p, gap, sizeof(gap));
    mf_format(reason, sizeof(reason), "no legal pipeline: %s; of %d steps: %s", gap, total,
              counts.len ? counts.data : "none offered, see the rejections");
    mf_buf_release(&counts);
    return r < 0 ? r : mf_task_lose(f, g, m->consumer, reason);
}

/* Corrects each forecast by the ratio of measured time to forecast of its structure in earlier batches. */
static int correct(struct mf_farm *f, const struct mf_task *g, struct mf_forecast *fc)
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
            int r = mf_trust_ratio(f, g->model, structure, g->batch->created_ms, &known[k].log_ratio,
                                   &known[k].log_spread);
            if (r < 0)
                return r;
            n++;
        }
        fc->corrected_us[i] = fc->paths[i].us * exp(known[k].log_ratio);
        fc->log_spread[i] = known[k].log_spread;
    }
    return 0;
}

/* The search for a consumer's pipelines of a task, done in slices. A pipeline uses only families that one
 * worker offers together. If there are several such offers, the search runs once for each, and the offer with
 * the best pipeline is used. */
struct mf_ranking {
    struct mf_family_offer offers[MF_FAMILY_SETS_MAX];
    size_t n_offers, at;
    const struct mf_family_offer *best; /* offer of the consumer's forecast */
    enum mf_consumer consumer;
    struct measured measured;
    struct mf_path_step *steps;
    struct mf_path_problem problem;
    struct mf_path_search *search;
};

/* Frees the search for one offer. */
static void release_search(struct mf_ranking *k)
{
    k->search = mf_path_search_free(k->search);
    free(k->steps);
    free(k->measured.valid_step);
    k->steps = NULL;
    k->measured = (struct measured){.offer = NULL};
}

struct mf_ranking *mf_ranking_free(struct mf_ranking *k)
{
    if (k)
        release_search(k);
    free(k);
    return NULL;
}

static int keep_forecast(struct mf_farm *f, struct mf_task *g, struct mf_path *paths, size_t n)
{
    const struct measured *m = &g->ranking->measured;
    int64_t *ids = calloc(m->n, sizeof(*ids));
    if (!ids) {
        free(paths);
        return -ENOMEM;
    }
    for (size_t i = 0; i < m->n; i++)
        ids[i] = m->valid_step[i].id;
    struct mf_forecast *fc = NULL;
    int r = mf_forecast_new(paths, n, ids, &fc);
    for (size_t i = 0; r == 0 && i < n; i++)
        fc->foreign[i] = mf_foreign_layer(&g->ranking->problem, m->consumer, &paths[i]);
    if (r == 0)
        r = correct(f, g, fc);
    if (r == 0)
        r = mf_forecast_group_layouts(fc);
    if (r < 0 || (g->forecasts[m->consumer] &&
                  mf_forecast_best_us(g->forecasts[m->consumer]) <= mf_forecast_best_us(fc))) {
        mf_forecast_free(fc);
        return r;
    }
    mf_task_drop_forecast(g, m->consumer);
    g->ranking->best = g->ranking->measured.offer;
    g->forecasts[m->consumer] = fc;
    return 0;
}

/* Starts the search for the consumer's pipelines of the offer number `at`. */
static int start_search(struct mf_farm *f, struct mf_task *g)
{
    struct mf_ranking *k = g->ranking;
    struct measured *m = &k->measured;
    double gap_us;
    m->offer = k->n_offers > 0 ? &k->offers[k->at] : NULL;
    m->consumer = k->consumer;
    int r = mf_store_measured_each(f->store, g->id, take_measured, m);
    if (r == 0)
        r = mf_trust_gap_us(f, g->model, &gap_us);
    if (r < 0)
        return r;
    k->steps = calloc(m->n + 1, sizeof(*k->steps));
    if (!k->steps)
        return -ENOMEM;
    for (size_t i = 0; i < m->n; i++)
        k->steps[i] = (struct mf_path_step){&m->valid_step[i].step, m->valid_step[i].us};
    k->problem = (struct mf_path_problem){
        .ops = mf_layer_ops(&g->shape),
        .format = g->shape.dtype == MF_DTYPE_FP16 ? MF_FORMAT_FP16 : MF_FORMAT_BF16,
        .steps = k->steps,
        .n_steps = m->n,
        .gap_us = gap_us,
        .keep = MF_PATH_KEEP_MAX,
    };
    return mf_path_search_new(&k->problem, &k->search);
}

static int start_ranking(struct mf_farm *f, struct mf_task *g, enum mf_consumer c)
{
    const struct mf_ids *families;
    g->ranking = calloc(1, sizeof(*g->ranking));
    int r = g->ranking ? mf_families_of_batch(f, g->batch, g->class_id, &families) : -ENOMEM;
    if (r < 0)
        return r;
    g->ranking->consumer = c;
    g->ranking->n_offers = mf_families_offers(f, g->class_id, g->model, families, g->ranking->offers);
    return start_search(f, g);
}

/* Records with the task's rejections that the search was cut. */
static int report_cut(struct mf_farm *f, const struct mf_task *g, size_t n_steps)
{
    char reason[MF_REASON_MAX];
    mf_format(reason, sizeof(reason),
              "the search for pipelines of %zu steps was cut, because they have too many combinations; "
              "cheaper pipelines may exist",
              n_steps);
    log_warn("task %" PRId64 ": %s", g->id, reason);
    return mf_store_rejection_add(f->store, g->enumeration, g->batch->id, "pipeline", "*", "search_budget",
                                  reason);
}

/* Returns 1 if the search for the next offer has started. */
static int finish_search(struct mf_farm *f, struct mf_task *g)
{
    struct mf_ranking *k = g->ranking;
    struct mf_path *paths = NULL;
    size_t n_paths = 0;
    int r = mf_path_search_take(k->search, &paths, &n_paths);
    if (r > 0)
        r = report_cut(f, g, k->measured.n);
    if (r == 0)
        r = mf_foreign_layers_add(&k->problem, k->consumer, &paths, &n_paths);
    if (r == 0 && n_paths > 0)
        r = keep_forecast(f, g, paths, n_paths);
    else
        free(paths);
    if (r == 0 && ++k->at < k->n_offers) {
        release_search(k);
        r = start_search(f, g);
        return r < 0 ? r : 1;
    }
    if (r == 0 && k->best)
        r = mf_families_reject_others(f, g, k->best);
    return r < 0 || g->forecasts[k->consumer] ? r : fail_no_pipeline(f, g, &k->measured, &k->problem);
}

/* Returns the first consumer without a forecast, or MF_CONSUMER_N_ if all consumers have one. */
static enum mf_consumer find_unranked(const struct mf_task *g)
{
    enum mf_consumer c = 0;
    if (g->ranking)
        return g->ranking->consumer;
    while (c < MF_CONSUMER_N_ && (!(mf_task_live_consumers(g) & MF_CONSUMER_BIT(c)) || g->forecasts[c]))
        c++;
    return c;
}

bool mf_rank_is_complete(const struct mf_task *g)
{
    return find_unranked(g) == MF_CONSUMER_N_;
}

/* Runs the search for a consumer until end_ns. Returns 1 once the consumer is ranked or lost, else 0. */
static int search_consumer(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, uint64_t end_ns)
{
    int r = g->ranking ? 0 : start_ranking(f, g, c);
    while (r == 0 && mf_now_ns() < end_ns)
        r = mf_path_search_run(g->ranking->search, SEARCH_WORK);
    if (r == -E2BIG)
        r = mf_task_lose(f, g, c, "too many different tensor specs or weight layouts to rank");
    else if (r > 0)
        r = finish_search(f, g);
    else
        return r;
    if (r > 0)
        return 0;
    g->ranking = mf_ranking_free(g->ranking);
    return r < 0 ? r : 1;
}

/* Runs the task's searches until end_ns. Returns 1 once the task is ranked or has failed, else 0. */
static int search(struct mf_farm *f, struct mf_task *g, uint64_t end_ns)
{
    int r = 1;
    while (r > 0 && !mf_rank_is_complete(g))
        r = search_consumer(f, g, find_unranked(g), end_ns);
    if (r <= 0)
        return r;
    g->to_rank = false;
    if (g->state == MF_TASK_RANKING)
        r = mf_ladder_rank(f, g->batch, g->class_id, g->layer_model);
    return r < 0 ? r : 1;
}

int mf_rank_task(struct mf_farm *f, struct mf_task *g)
{
    if (g->to_rank)
        return 0;
    g->to_rank = true;
    return mf_ids_add(&f->to_rank, g->id);
}

int mf_rank_continue(struct mf_farm *f)
{
    uint64_t end_ns = mf_now_ns() + MF_SLICE_NS;
    int r = 0;
    while (r >= 0 && f->to_rank_at < f->to_rank.n && mf_now_ns() < end_ns) {
        struct mf_task *g = mf_map_get(&f->tasks, (uint64_t)f->to_rank.all[f->to_rank_at]);
        r = g && g->to_rank && g->state == MF_TASK_RANKING ? search(f, g, end_ns) : 1;
        if (r > 0)
            f->to_rank_at++;
    }
    if (f->to_rank_at == f->to_rank.n)
        f->to_rank.n = f->to_rank_at = 0;
    return r < 0 ? r : 0;
}

/* ---- finalists and the race ---- */

/* A consumer's part in a task. */
struct contest {
    struct mf_task *task;
    enum mf_consumer consumer;
    const struct mf_forecast *forecast;
};

static size_t layout_of(const struct mf_forecast *fc, const struct mf_ranked *ranked)
{
    return fc->layout_of[ranked->path - fc->paths];
}

/* True for a pipeline that is stored whatever its rank. */
static bool is_shown(const struct mf_forecast *fc, const struct mf_ranked *ranked)
{
    return fc->foreign[ranked->path - fc->paths] != MF_LAYER_OTHER;
}

static int add_pipeline(struct mf_farm *f, const struct contest *k, const struct mf_ranked *ranked, int place,
                        int64_t *ret)
{
    char structure[MF_PATH_STRUCTURE_MAX];
    struct mf_buf steps;
    mf_buf_init(&steps, 4096);
    mf_path_structure(ranked->path->structure, structure);
    (void)mf_buf_adds(&steps, "[");
    for (int i = 0; i < ranked->path->n; i++)
        (void)mf_buf_addf(&steps, "%s%" PRId64, i ? "," : "", k->forecast->step_ids[ranked->path->steps[i]]);
    int r = mf_buf_adds(&steps, "]");
    struct mf_pipeline_row row = {.task = k->task->id,
                                  .consumer = k->consumer,
                                  .place = place,
                                  .steps = steps.data,
                                  .structure = structure,
                                  .block_m = ranked->path->block_m,
                                  .layout = k->forecast->layouts[layout_of(k->forecast, ranked)].text,
                                  .sum_us = ranked->path->us,
                                  .forecast_us = ranked->forecast_us,
                                  .finalist = ranked->finalist};
    if (r == 0)
        r = mf_store_pipeline_add(f->store, &row, ret);
    mf_buf_release(&steps);
    return r;
}

/* Ranks the consumer's paths of a layout (NULL: of all layouts) by forecast, and marks the finalists. Returns
 * the number of finalists. */
static size_t rank_layout(const struct contest *k, const char *layout, size_t max_finalists,
                          struct mf_ranked *ret)
{
    const struct mf_forecast *fc = k->forecast;
    const struct mf_forecast_layout *in = layout ? mf_forecast_find(fc, layout) : NULL;
    size_t n = 0;
    for (size_t i = 0; i < fc->n_paths && (in || !layout); i++) {
        if (!in || &fc->layouts[fc->layout_of[i]] == in)
            ret[n++] = (struct mf_ranked){&fc->paths[i], fc->corrected_us[i], fc->log_spread[i],
                                          fc->foreign[i] == MF_LAYER_RACES, false};
    }
    (void)mf_race_finalists(ret, n, (int)k->task->batch->options.topk, max_finalists);
    return n;
}

/* The pipelines that race, grouped by layout. */
struct entrants {
    int64_t ids[MF_FINALISTS_MAX];
    double forecast_us[MF_FINALISTS_MAX];
    size_t n;
    /* number of entrants per layout; layouts without entrants are left out */
    size_t n_of[MF_LAYOUTS_RACED_MAX];
    size_t n_groups;
};

/* Stores the pipelines of a layout and adds its finalists to the entrants. */
static int add_layout(struct mf_farm *f, const struct contest *k, const char *layout, size_t max_finalists,
                      struct mf_ranked *ranked, struct entrants *entrants)
{
    size_t n = rank_layout(k, layout, max_finalists, ranked), before = entrants->n;
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!ranked[i].finalist && i >= KEPT_OF_LAYOUT && !is_shown(k->forecast, &ranked[i]))
            continue;
        int r = add_pipeline(f, k, &ranked[i], (int)i + 1, &id);
        if (r < 0)
            return r;
        if (ranked[i].finalist) {
            entrants->ids[entrants->n] = id;
            entrants->forecast_us[entrants->n++] = ranked[i].forecast_us;
        }
    }
    if (entrants->n > before)
        entrants->n_of[entrants->n_groups++] = entrants->n - before;
    return 0;
}

/* Stores the best pipelines of each layout that does not race, and the best layer of each other program, for
 * display. */
static int add_others(struct mf_farm *f, const struct contest *contest, const char *const *layouts, size_t n,
                      struct mf_ranked *ranked)
{
    const struct mf_forecast *fc = contest->forecast;
    size_t n_left = 0;
    int r = 0;
    /* Number of pipelines stored per layout. It starts at KEPT_OF_OTHERS for racing layouts, so that no
     * pipeline of a racing layout is added. */
    _cleanup_(mf_freep) int *n_kept = calloc(fc->n_layouts, sizeof(int));
    if (!n_kept)
        return -ENOMEM;
    for (size_t k = 0; k < n; k++) {
        const struct mf_forecast_layout *racing = mf_forecast_find(fc, layouts[k]);
        if (racing)
            n_kept[racing - fc->layouts] = KEPT_OF_OTHERS;
    }
    for (size_t i = 0; i < fc->n_paths; i++) {
        if (n_kept[fc->layout_of[i]] < KEPT_OF_OTHERS)
            ranked[n_left++] = (struct mf_ranked){&fc->paths[i], fc->corrected_us[i], 0, false, false};
    }
    (void)mf_race_finalists(ranked, n_left, 1, 0);
    for (size_t i = 0; r == 0 && i < n_left; i++) {
        int *kept = &n_kept[layout_of(fc, &ranked[i])];
        int64_t id;
        if (*kept < KEPT_OF_OTHERS || is_shown(fc, &ranked[i]))
            r = add_pipeline(f, contest, &ranked[i], ++*kept, &id);
    }
    return r;
}

static int start_race(struct mf_farm *f, const struct contest *contest, const char *const *layouts, size_t n,
                      const struct entrants *entrants)
{
    struct mf_race_schedule schedule;
    struct mf_buf body;
    int iters = (int)contest->task->batch->options.iters;
    mf_buf_init(&body, 16u << 10);
    mf_race_schedule(entrants->forecast_us, entrants->n_of, entrants->n_groups,
                     &(struct mf_race_budget){f->options.race_s, iters > 0 ? iters : MF_RACE_FRESH_MAX},
                     &schedule);
    if (iters > 0) /* the batch specifies the number of samples, whatever time they take */
        schedule.fresh = iters;
    (void)mf_buf_addf(&body, "{\"consumer\":\"%s\",\"pipelines\":[", mf_consumer_name(contest->consumer));
    for (size_t i = 0; i < entrants->n; i++)
        (void)mf_buf_addf(&body, "%s%" PRId64, i ? "," : "", entrants->ids[i]);
    for (size_t k = 0; n > 1 && k < n; k++)
        (void)mf_buf_addf(&body, "%s\"%s\"", k ? "," : "],\"layouts\":[", layouts[k]);
    (void)mf_buf_adds(&body, "],\"plan\":");
    (void)mf_race_schedule_print(&schedule, &body);
    int r = mf_buf_adds(&body, "}");
    if (r == 0)
        r = mf_task_race(f, contest->task, contest->consumer, body.data);
    mf_buf_release(&body);
    return r;
}

int mf_rank_race(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *const *layouts,
                 size_t n)
{
    static const char *const any[] = {NULL};
    const struct contest contest = {g, c, g->forecasts[c]};
    struct entrants entrants = {.n = 0};
    size_t n_groups = MF_MAX(n, (size_t)1);
    size_t max_finalists = mf_race_finalist_limit(mf_forecast_best_us(contest.forecast), f->options.race_s,
                                                  (int)g->batch->options.topk);
    int r = 0;
    _cleanup_(mf_freep) struct mf_ranked *ranked = calloc(contest.forecast->n_paths + 1, sizeof(*ranked));
    if (!ranked)
        return -ENOMEM;
    for (size_t k = 0; r == 0 && k < n_groups; k++)
        r = add_layout(f, &contest, n ? layouts[k] : any[k], max_finalists / n_groups, ranked, &entrants);
    if (r == 0 && entrants.n == 0) {
        char reason[MF_REASON_MAX];
        mf_format(reason, sizeof(reason), "no legal pipeline in %s, the weight layout of its layer model",
                  layouts[0]);
        return mf_task_lose(f, g, c, reason);
    }
    if (r == 0 && n > 0)
        r = add_others(f, &contest, layouts, n, ranked);
    return r < 0 ? r : start_race(f, &contest, layouts, n, &entrants);
}
