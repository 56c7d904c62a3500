#include "server/farm/regret.h"
#include "server/choose/rivals.h"

#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* maximum total time of a task's regret races, as a fraction of the time of a race */
#define COST_SHARE 0.25

/* ---- starting ---- */

struct survivors {
    struct mf_entrant of[MF_FINALISTS_MAX];
    size_t n;
    int64_t winner;
};

static int add_survivor(void *context, int64_t pipeline, double us, int block_m)
{
    struct survivors *s = context;
    if (pipeline != s->winner && s->n < MF_ARRAY_LEN(s->of))
        s->of[s->n++] = (struct mf_entrant){pipeline, us, block_m};
    return 0;
}

/* Finds the config's pipeline and its rivals (rivals.h). Rivals must have the config's weight layout, unless
 * each task chooses its own layout. */
static int find_entrants(struct mf_farm *f, const struct mf_task *g, enum mf_consumer c,
                         struct mf_entrant *ret, size_t *ret_n)
{
    char layout[MF_PATH_LAYOUT_MAX];
    struct survivors survivors = {.n = 0};
    struct mf_pipeline p;
    int r = mf_store_config_get(f->store, g->id, c, &ret[0].pipeline, &ret[0].us);
    if (r == 0)
        r = mf_store_pipeline_get(f->store, ret[0].pipeline, &p);
    if (r < 0)
        return r;
    ret[0].block_m = p.block_m;
    (void)mf_copy(layout, sizeof(layout), p.layout);
    mf_pipeline_release(&p);
    survivors.winner = ret[0].pipeline;
    r = mf_store_survivors_each(f->store, g->id, c, g->batch->options.layout_free ? NULL : layout,
                                add_survivor, &survivors);
    if (r == 0)
        *ret_n = mf_rivals_pick(survivors.of, survivors.n, ret);
    return r;
}

/* A regret race to start. */
struct regret_race {
    enum mf_consumer consumer;
    const char *routing;
    const struct mf_entrant *entrants;
    size_t n;
    double budget_s;
};

static int add_unit(struct mf_farm *f, struct mf_task *g, const struct regret_race *race)
{
    double us[MF_RIVALS_MAX + 1];
    struct mf_race_schedule schedule;
    struct mf_buf body;
    mf_buf_init(&body, 32u << 10);
    (void)mf_buf_addf(&body, "{\"routing\":\"%s\",\"consumer\":\"%s\",\"pipelines\":[", race->routing,
                      mf_consumer_name(race->consumer));
    for (size_t i = 0; i < race->n; i++) {
        us[i] = race->entrants[i].us;
        (void)mf_buf_addf(&body, "%s%" PRId64, i ? "," : "", race->entrants[i].pipeline);
    }
    /* no rerun, because only the paired samples of the rounds are used and no time is exported */
    mf_race_schedule(us, &race->n, 1, &(struct mf_race_budget){.s = race->budget_s, .fresh = 0}, &schedule);
    (void)mf_buf_adds(&body, "],\"plan\":");
    (void)mf_race_schedule_print(&schedule, &body);
    int r = mf_buf_adds(&body, "}");
    if (r == 0)
        r = mf_unit_add(f, g, MF_UNIT_RACE, body.data, 0);
    mf_buf_release(&body);
    return r;
}

int mf_regret_start(struct mf_farm *f, struct mf_task *g, enum mf_consumer c)
{
    const struct mf_batch_options *o = &g->batch->options;
    struct mf_entrant entrants[MF_RIVALS_MAX + 1];
    size_t n = 0;
    int r = o->n_regret > 0 ? find_entrants(f, g, c, entrants, &n) : 0;
    if (r < 0 || o->n_regret == 0)
        return r;
    double budget_s = COST_SHARE * f->options.race_s / o->n_regret;
    for (int i = 0; r == 0 && i < o->n_regret; i++) {
        char routing[MF_ROUTING_TEXT_MAX], why[MF_REASON_MAX];
        if (mf_routing_equal(&o->regret[i], &o->routing))
            continue;
        mf_routing_print(&o->regret[i], routing);
        if (mf_routing_fits(&o->regret[i], &g->shape, why, sizeof(why)) < 0)
            r = mf_regret_skip(f, g, c, routing, why);
        else if (n < MF_ENTRANTS_MIN)
            r = mf_regret_skip(f, g, c, routing, "no other pipeline finished the race");
        else
            r = add_unit(f, g,
                         &(struct regret_race){.consumer = c,
                                               .routing = routing,
                                               .entrants = entrants,
                                               .n = mf_rivals_affordable(entrants, n, budget_s),
                                               .budget_s = budget_s});
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
    int64_t best; /* fastest pipeline; 0: none */
    bool tie;
};

static int write_outcome(struct mf_farm *f, int64_t task, enum mf_consumer c, const struct outcome *o)
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
    return text ? mf_store_config_regret(f->store, task, c, text) : -ENOMEM;
}

int mf_regret_skip(struct mf_farm *f, const struct mf_task *g, enum mf_consumer c, const char *routing,
                   const char *reason)
{
    return write_outcome(f, g->id, c,
                         &(struct outcome){.routing = routing,
                                           .status = mf_status_name(MF_STATUS_UNSUPPORTED),
                                           .reason = reason,
                                           .us = (double)NAN,
                                           .best_us = (double)NAN,
                                           .regret = (double)NAN});
}

int mf_regret_finish(struct mf_farm *f, const struct mf_lease *l, const cJSON *race)
{
    struct mf_racer_result racers[MF_FINALISTS_MAX];
    const struct mf_lease_item *own = &l->items[0]; /* the config's pipeline, which add_unit lists first */
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
        o.reason = "the winner has no time under this profile; see its result";
    }
    return write_outcome(f, l->task->id, l->consumer, &o);
}
