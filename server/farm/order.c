/* Ends the tasks of a token ladder after judging the order of their times (common/moe/token_order.h).
 *
 * A time is judged against the times of more tokens, so the tasks of a layer model end in the order of
 * falling token counts. A task whose time breaks the order is measured again: its pipeline alone, in a unit
 * of kind `race`. So is a task whose samples scatter, for example those of a comparison. After
 * MF_RERUN_TRIES_MAX measurements its config is stored as unstable. A config whose rerun the worker has not
 * accepted is unstable already and is not measured again. */
#include "server/farm/farm_private.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/paired.h"
#include "common/base/text.h"
#include "common/moe/token_order.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* rounds with which a rerun is compared; enough for a confidence interval */
#define RERUN_ROUNDS 10

/* The configs of a layer model for a consumer. */
struct ladder {
    enum mf_consumer consumer;
    struct mf_rung *rungs;
    size_t n, cap;
    int64_t task; /* the judged task; its rung is not in rungs[] */
    struct mf_rung own;
    struct mf_reported reported; /* of the judged task; without its reason */
    bool unstable;
};

static int take_rung(void *context, const struct mf_rung_row *row)
{
    struct ladder *l = context;
    const struct mf_rung rung = {row->token, row->reported.us, row->reported.mad};
    if (row->task == l->task) {
        l->own = rung;
        l->reported = row->reported;
        l->unstable = *row->reported.unstable;
        return 0;
    }
    int r = mf_array_grow(&l->rungs, l->n, &l->cap, sizeof(*l->rungs));
    if (r == 0)
        l->rungs[l->n++] = rung;
    return r;
}

static int add_rerun(struct mf_farm *f, struct mf_task *g, enum mf_consumer c)
{
    int64_t pipeline;
    double us;
    char body[192];
    int fresh = g->batch->options.iters > 0 ? (int)g->batch->options.iters : MF_RACE_FRESH_MAX;
    int r = mf_store_config_get(f->store, g->id, c, &pipeline, &us);
    if (r < 0)
        return r;
    mf_format(body, sizeof(body),
              "{\"rerun\":true,\"consumer\":\"%s\",\"pipelines\":[%" PRId64
              "],\"plan\":{\"rounds\":[{\"rounds\":%d,\"keep\":1}],\"fresh\":%d,\"alpha\":0.05}}",
              mf_consumer_name(c), pipeline, RERUN_ROUNDS, fresh);
    return mf_task_rerun(f, g, body);
}

/* Returns true, and the reason, if the time of the ladder's task cannot be accepted. */
static bool is_suspect(const struct ladder *l, char why[MF_REASON_MAX])
{
    const struct mf_rung *faster = mf_token_order_breach(&l->own, l->rungs, l->n);
    if (faster)
        mf_token_order_explain(&l->own, faster, why);
    else
        mf_format(
            why, MF_REASON_MAX,
            "the samples scatter: their median absolute deviation is %.0f%% of the median (limit %.0f%%)",
            100 * l->own.mad / l->own.us, 100 * MF_SCATTER_MAX);
    return faster || l->own.mad > MF_SCATTER_MAX * l->own.us;
}

/* Stores that no measurement of the task was accepted. */
static int set_unstable(struct mf_farm *f, struct mf_task *g, const struct ladder *l, int64_t tries,
                        const char *reason)
{
    struct mf_win w = {.consumer = l->consumer, .reported = l->reported};
    double us;
    int r = mf_store_config_get(f->store, g->id, w.consumer, &w.pipeline, &us);
    w.reported.tries = tries;
    w.reported.unstable = reason;
    return r < 0 ? r : mf_config_set_time(f, g, &w);
}

/* Returns 1 if the consumer's config is final, or 0 if it is measured again. */
static int judge_config(struct mf_farm *f, struct mf_task *g, enum mf_consumer c)
{
    struct ladder l = {.consumer = c, .task = g->id};
    char reason[MF_REASON_MAX], why[MF_REASON_MAX];
    int r = mf_store_rungs_each(f->store, g->batch->id, g->class_id, g->layer_model, c, take_rung, &l);
    bool suspect = r == 0 && !l.unstable && is_suspect(&l, why);
    if (suspect && l.reported.tries < MF_RERUN_TRIES_MAX) {
        r = add_rerun(f, g, c);
    } else if (suspect) {
        mf_format(reason, sizeof(reason), "after %" PRId64 " reruns: %.280s", l.reported.tries, why);
        r = set_unstable(f, g, &l, l.reported.tries, reason);
        r = r < 0 ? r : 1;
    } else if (r == 0) {
        r = 1;
    }
    free(l.rungs);
    return r;
}

/* Returns 1 if the task may end, or 0 if a config is measured again. */
static int judge(struct mf_farm *f, struct mf_task *g)
{
    int r = 1, final = 1;
    for (enum mf_consumer c = 0; r >= 0 && c < MF_CONSUMER_N_; c++) {
        if (!(mf_task_live_consumers(g) & MF_CONSUMER_BIT(c)))
            continue;
        r = judge_config(f, g, c);
        final &= r > 0;
    }
    return r < 0 ? r : final;
}

/* Returns 1 if the task has its configs and no open unit, otherwise 0. */
static int may_end(struct mf_farm *f, const struct mf_task *g)
{
    if (g->open_units > 0 || (g->state != MF_TASK_RACING && g->state != MF_TASK_COMPARING))
        return 0;
    return mf_store_configs_decided(f->store, g->id);
}

int mf_order_end_tasks(struct mf_farm *f, struct mf_batch *b, int64_t class_id, const char *layer_model)
{
    char layer[MF_SHAPE_TEXT_MAX]; /* layer_model may belong to a task that is freed */
    int64_t id;
    int r;
    mf_format(layer, sizeof(layer), "%s", layer_model);
    while ((r = mf_store_task_of_most_tokens(f->store, b->id, class_id, layer, &id)) > 0) {
        struct mf_task *g;
        r = mf_task_get(f, id, &g);
        if (r == 0)
            r = may_end(f, g);
        if (r > 0)
            r = judge(f, g);
        if (r <= 0)
            return r;
        r = mf_task_end(f, g);
        if (r < 0)
            return r;
    }
    return r;
}

int mf_order_rerun_done(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, const cJSON *race,
                        const char *reason)
{
    struct ladder l = {.consumer = lease->consumer, .task = g->id};
    struct mf_win w = {0};
    int r =
        mf_store_rungs_each(f->store, g->batch->id, g->class_id, g->layer_model, l.consumer, take_rung, &l);
    free(l.rungs);
    if (r < 0)
        return r;
    r = race ? mf_config_win(f, g, lease, 0, race, &w) : 0;
    if (r > 0) {
        w.reported.tries = MF_MIN(w.reported.tries + l.reported.tries, (int64_t)MF_RERUN_TRIES_MAX);
        r = mf_config_set_time(f, g, &w);
    } else if (r == 0) {
        char why[MF_REASON_MAX];
        mf_format(why, sizeof(why), "the time was not accepted and a rerun gave no time: %.200s", reason);
        r = set_unstable(f, g, &l, MF_RERUN_TRIES_MAX, why);
    }
    mf_win_release(&w);
    return r;
}
