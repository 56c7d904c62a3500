#include "server/choose/regret.h"

#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define COST_SHARE     0.25 /* of the race, for all profiles together */
#define RIVALS_MAX     3
#define ENTRANTS_LEAST 2 /* the winner and one rival */

/* ---- who races ---- */

struct entrant {
    int64_t pipeline;
    double us;
    int block_m;
};

static int compare(const void *va, const void *vb)
{
    const struct entrant *a = va, *b = vb;
    if (a->us != b->us)
        return a->us < b->us ? -1 : 1;
    return a->pipeline < b->pipeline ? -1 : a->pipeline > b->pipeline;
}

static bool has_block(const struct entrant *e, size_t n, int block_m)
{
    for (size_t i = 0; i < n; i++) {
        if (e[i].block_m == block_m)
            return true;
    }
    return false;
}

struct rivals {
    struct entrant of[MF_FINALISTS_MAX];
    size_t n;
    int64_t winner;
};

static int take_survivor(void *context, int64_t pipeline, double us, int block_m)
{
    struct rivals *r = context;
    if (pipeline != r->winner && r->n < MF_ARRAY_LEN(r->of))
        r->of[r->n++] = (struct entrant){pipeline, us, block_m};
    return 0;
}

/* The config's pipeline first; then, of those of its layout unless the weights may lie in any, the fastest of each other block_m, since that is what a routing changes most; then by
 * time. */
static int choose(struct mf_farm *f, int64_t task, bool of_any, struct entrant *ret, size_t *ret_n)
{
    char layout[MF_PATH_LAYOUT_MAX];
    struct rivals rivals = {.n = 0};
    struct mf_pipeline p;
    size_t n = 1;
    int r = mf_store_config_get(f->store, task, &ret[0].pipeline, &ret[0].us);
    if (r == 0)
        r = mf_store_pipeline_get(f->store, ret[0].pipeline, &p);
    if (r < 0)
        return r;
    ret[0].block_m = p.block_m;
    (void)mf_copy(layout, sizeof(layout), p.layout);
    mf_pipeline_release(&p);
    rivals.winner = ret[0].pipeline;
    r = mf_store_survivors_each(f->store, task, of_any ? NULL : layout, take_survivor, &rivals);
    if (r < 0)
        return r;
    qsort(rivals.of, rivals.n, sizeof(rivals.of[0]), compare);
    for (int rest = 0; rest < 2; rest++) {
        for (size_t i = 0; i < rivals.n && n <= RIVALS_MAX; i++) {
            bool taken = false;
            for (size_t j = 0; j < n; j++)
                taken |= ret[j].pipeline == rivals.of[i].pipeline;
            if (!taken && (rest || !has_block(ret, n, rivals.of[i].block_m)))
                ret[n++] = rivals.of[i];
        }
    }
    *ret_n = n;
    return 0;
}

/* As many as run their least rounds in that time, the winner and one rival at least. */
static size_t affordable(const struct entrant *e, size_t n, double budget_s)
{
    double spent_s = 0;
    size_t in = 0;
    while (in < n && (in < ENTRANTS_LEAST || spent_s + e[in].us * 1e-6 * MF_RACE_ROUNDS_MIN <= budget_s))
        spent_s += e[in++].us * 1e-6 * MF_RACE_ROUNDS_MIN;
    return in;
}

/* ---- starting ---- */

static int add_unit(struct mf_farm *f, struct mf_task *g, const struct entrant *e, size_t n,
                    const char *routing, double budget_s)
{
    double us[RIVALS_MAX + 1];
    struct mf_race_schedule schedule;
    struct mf_buf body;
    mf_buf_init(&body, 32u << 10);
    (void)mf_buf_addf(&body, "{\"routing\":\"%s\",\"pipelines\":[", routing);
    for (size_t i = 0; i < n; i++) {
        us[i] = e[i].us;
        (void)mf_buf_addf(&body, "%s%" PRId64, i ? "," : "", e[i].pipeline);
    }
    /* The samples of its rounds are paired; nothing here is a row's number */
    mf_race_schedule(us, &n, 1, &(struct mf_race_budget){.s = budget_s, .fresh = 0}, &schedule);
    (void)mf_buf_adds(&body, "],\"plan\":");
    (void)mf_race_schedule_print(&schedule, &body);
    int r = mf_buf_adds(&body, "}");
    if (r == 0)
        r = mf_unit_add(f, g, MF_UNIT_RACE, body.data, 0);
    mf_buf_release(&body);
    return r;
}

int mf_regret_start(struct mf_farm *f, struct mf_task *g)
{
    const struct mf_batch_options *o = &g->batch->options;
    struct entrant entrants[RIVALS_MAX + 1];
    size_t n = 0;
    int r = o->n_regret > 0 ? choose(f, g->id, o->layout_free, entrants, &n) : 0;
    if (r < 0 || o->n_regret == 0)
        return r;
    double budget_s = COST_SHARE * f->options.race_s / o->n_regret;
    for (int i = 0; r == 0 && i < o->n_regret; i++) {
        char routing[MF_ROUTING_TEXT_MAX], why[MF_REASON_MAX];
        if (mf_routing_equal(&o->regret[i], &o->routing))
            continue;
        mf_routing_print(&o->regret[i], routing);
        if (mf_routing_fits(&o->regret[i], &g->shape, why, sizeof(why)) < 0)
            r = mf_regret_miss(f, g, routing, why);
        else if (n < ENTRANTS_LEAST)
            r = mf_regret_miss(f, g, routing, "no other pipeline survived the race");
        else
            r = add_unit(f, g, entrants, affordable(entrants, n, budget_s), routing, budget_s);
    }
    return r;
}

/* ---- ending ---- */

static cJSON *number_or_null(double value)
{
    return isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull();
}

static bool ties(const cJSON *race, int64_t pipeline)
{
    const cJSON *tie;
    cJSON_ArrayForEach (tie, mf_json_array(race, "ties")) {
        if (cJSON_IsNumber(tie) && tie->valuedouble == (double)pipeline)
            return true;
    }
    return false;
}

struct outcome {
    const char *routing, *status, *reason;
    double us, best_us, regret;
    int64_t best; /* 0: none */
    bool tie;
};

static int write_outcome(struct mf_farm *f, int64_t task, const struct outcome *o)
{
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "routing", o->routing);
    cJSON_AddItemToObject(json, "us", number_or_null(o->us));
    cJSON_AddItemToObject(json, "best_us", number_or_null(o->best_us));
    cJSON_AddItemToObject(json, "regret", number_or_null(o->regret));
    cJSON_AddItemToObject(json, "best", o->best ? cJSON_CreateNumber((double)o->best) : cJSON_CreateNull());
    cJSON_AddBoolToObject(json, "tie", o->tie);
    cJSON_AddStringToObject(json, "status", o->status);
    cJSON_AddStringToObject(json, "reason", o->reason);
    _cleanup_(mf_freep) char *text = mf_json_print(json);
    return text ? mf_store_config_regret(f->store, task, text) : -ENOMEM;
}

int mf_regret_miss(struct mf_farm *f, const struct mf_task *g, const char *routing, const char *reason)
{
    return write_outcome(f, g->id,
                         &(struct outcome){.routing = routing,
                                           .status = mf_status_name(MF_STATUS_UNSUPPORTED),
                                           .reason = reason,
                                           .us = (double)NAN,
                                           .best_us = (double)NAN,
                                           .regret = (double)NAN});
}

int mf_regret_take(struct mf_farm *f, const struct mf_lease *l, const cJSON *race)
{
    struct mf_racer_result racers[MF_FINALISTS_MAX];
    const struct mf_lease_item *own = &l->items[0]; /* the config's winner, as add_unit wrote them */
    int64_t named = 0;
    for (size_t i = 0; i < l->n; i++)
        racers[i] = (struct mf_racer_result){.pipeline = l->items[i].id,
                                             .status = l->items[i].status,
                                             .us = l->items[i].us,
                                             .verified = l->items[i].verified,
                                             .reported = l->items[i].seq > 0};
    (void)mf_json_i64(race, "winner", 1, INT64_MAX, &named);
    int best = mf_race_pick(racers, l->n, named);
    struct outcome o = {.routing = l->routing,
                        .status = mf_status_name(own->status),
                        .reason = "",
                        .us = own->seq && own->status == MF_STATUS_OK ? own->us : (double)NAN,
                        .best_us = best >= 0 ? racers[best].us : (double)NAN,
                        .best = best >= 0 ? racers[best].pipeline : 0};
    o.tie = best == 0 || (isfinite(o.us) && ties(race, own->id));
    o.regret = o.tie ? 0 : fmax(0, o.us / o.best_us - 1);
    if (!isfinite(o.us)) {
        o.regret = (double)NAN;
        o.reason = "the winner gave no time under this profile; its results say why";
    }
    return write_outcome(f, l->task->id, &o);
}
