/* Makes the config of a task for a consumer from the winner of its race. */
#include "server/farm/farm_private.h"

#include "common/base/json.h"
#include "common/base/text.h"
#include "server/choose/race_times.h"
#include "server/store/store_family.h"
#include "server/store/store_promote.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums of step times, by which a pipeline's time is split between the CSV's columns us1 and us2. us1 is the
 * share of the steps up to and including stage 1. */
struct split {
    double first_us, all_us;
    double err1, err2;
    struct mf_buf names; /* "family:step + …" */
};

static int split_pipeline(struct mf_farm *f, const struct mf_task *g, const char *steps, struct split *ret)
{
    const cJSON *id;
    bool first = true;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(steps, strlen(steps), 1u << 16);
    if (!json)
        return -ENOMEM;
    cJSON_ArrayForEach (id, json) {
        struct mf_measured_row row;
        struct mf_step step;
        int r = mf_store_measured_get(f->store, g->id, (int64_t)id->valuedouble, &row, &step);
        if (r < 0)
            return r;
        ret->all_us += row.us;
        if (first)
            ret->first_us += row.us;
        if (step.stage == MF_STAGE_STAGE1 || step.stage == MF_STAGE_ONE)
            ret->err1 = isnan(row.err) ? 0 : row.err;
        if (step.stage == MF_STAGE_STAGE2)
            ret->err2 = isnan(row.err) ? 0 : row.err;
        /* A pipeline with a one-stage kernel has no stage 1, so all its steps belong to us1 */
        if (step.stage == MF_STAGE_STAGE1)
            first = false;
        (void)mf_buf_addf(&ret->names, "%s%s:%s", ret->names.len ? " + " : "", step.family, step.name);
    }
    return mf_buf_error(&ret->names);
}

/* Divides the time between us1 and us2. */
static void divide_time(const struct split *split, struct mf_config_row *row)
{
    double us = row->reported.us;
    row->us1 = split->all_us > 0 ? us * split->first_us / split->all_us : us;
    row->us2 = us - row->us1;
}

/* Returns the pipelines of the group that are statistically tied with the winner. */
static cJSON *read_ties(const struct mf_lease *l, int group, int64_t winner, const cJSON *race)
{
    const cJSON *tie;
    cJSON *ties = cJSON_CreateArray();
    cJSON_ArrayForEach (tie, mf_json_array(race, "ties")) {
        for (size_t i = 0; cJSON_IsNumber(tie) && i < l->n; i++) {
            if ((double)l->items[i].id == tie->valuedouble && l->items[i].id != winner &&
                l->items[i].group == group)
                cJSON_AddItemToArray(ties, cJSON_CreateNumber(tie->valuedouble));
        }
    }
    return ties;
}

static char *print_provenance(struct mf_farm *f, const struct mf_task *g, const struct mf_lease *lease,
                              const char *method)
{
    const struct mf_slot *slot = mf_slots_by_id(&f->slots, lease->worker);
    const struct mf_batch_options *o = &g->batch->options;
    char routing[MF_ROUTING_TEXT_MAX];
    _cleanup_(cJSON_Deletep) cJSON *json = slot ? cJSON_Parse(slot->provenance) : cJSON_CreateObject();
    mf_routing_print(&o->routing, routing);
    mf_json_add_i64(json, "seed", o->seed);
    cJSON_AddStringToObject(json, "routing", routing);
    cJSON_AddStringToObject(json, "search", mf_search_name(o->search));
    if (o->time_budget > 0) {
        mf_json_add_i64(json, "candidates", g->counts.candidates);
        mf_json_add_i64(json, "measured", g->counts.measured);
    }
    cJSON_AddStringToObject(json, "layout", mf_batch_layout(o));
    cJSON_AddStringToObject(json, "method", method);
    cJSON_AddStringToObject(json, "consumer", mf_consumer_name(lease->consumer));
    mf_json_add_i64(json, "batch", g->batch->id);
    return mf_json_print(json);
}

/* Adds the families of the pipeline's steps with their revisions, and all revisions in one text: the revision
 * if all families have the same one, otherwise "family=revision+family=revision". */
static int add_revisions(struct mf_farm *f, const char *steps, cJSON *provenance)
{
    struct mf_ids ids = {0};
    struct mf_family_row row, first = {.name = ""};
    cJSON *families = cJSON_AddObjectToObject(provenance, "families");
    bool differ = false;
    _cleanup_(mf_buf_release) struct mf_buf all;
    mf_buf_init(&all, 16u << 10);
    int r = mf_store_steps_families(f->store, steps, &ids);
    for (size_t i = 0; r == 0 && i < ids.n; i++) {
        r = mf_store_family_get(f->store, ids.all[i], &row);
        if (r < 0)
            break;
        if (i == 0)
            first = row;
        differ = differ || strcmp(row.revision, first.revision) != 0;
        cJSON_AddStringToObject(families, row.name, row.revision);
        (void)mf_buf_addf(&all, "%s%s=%s", i > 0 ? "+" : "", row.name, row.revision);
    }
    mf_ids_release(&ids);
    if (r == 0)
        r = mf_buf_error(&all);
    if (r == 0 && *first.name) {
        cJSON_DeleteItemFromObjectCaseSensitive(provenance, "revision");
        cJSON_AddStringToObject(provenance, "revision", differ ? all.data : first.revision);
    }
    return r;
}

/* Completes the provenance with the revisions of the pipeline's families and, if a layout has been chosen for
 * the layer model, with the rule that chose it and the reason. */
static int complete_provenance(struct mf_farm *f, const struct mf_task *g, enum mf_consumer c,
                               const char *provenance, const char *steps, char **ret)
{
    _cleanup_(mf_freep) char *body = NULL;
    const char *by = "", *reason = "";
    const cJSON *item;
    int r = mf_store_layout_body(f->store, g->batch->id, g->class_id, g->layer_model, c, &body);
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(provenance);
    r = add_revisions(f, steps, json);
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *choice = body ? cJSON_Parse(body) : NULL;
    (void)mf_json_text(choice, "by", &by);
    cJSON_ArrayForEach (item, mf_json_array(choice, "layouts")) {
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "chosen")))
            (void)mf_json_text(item, "reason", &reason);
    }
    if (*by) {
        cJSON_AddStringToObject(json, "layout_by", by);
        cJSON_AddStringToObject(json, "layout_why", reason);
    }
    *ret = json ? mf_json_print(json) : NULL;
    return *ret ? 0 : -ENOMEM;
}

static int add_config_event(struct mf_farm *f, const struct mf_task *g, const struct mf_config_row *row,
                            const char *names, int n_ties)
{
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "batch", g->batch->id);
    mf_json_add_i64(body, "task", g->id);
    cJSON_AddStringToObject(body, "consumer", mf_consumer_name(row->consumer));
    cJSON_AddNumberToObject(body, "us", row->reported.us);
    cJSON_AddStringToObject(body, "winner", names);
    mf_json_add_i64(body, "pipeline", row->pipeline);
    mf_json_add_i64(body, "ties", n_ties);
    cJSON_AddStringToObject(body, "unstable", row->reported.unstable);
    return mf_event_add(f, g->batch->id, "config", body);
}

void mf_win_release(struct mf_win *w)
{
    free(w->unstable);
    free(w->ties);
    free(w->provenance);
    *w = (struct mf_win){0};
}

/* Finds the outcome of a group in a race's result. A worker that does not support groups reports one outcome,
 * which then applies to all groups. */
static const cJSON *find_outcome(const cJSON *race, int group)
{
    const cJSON *item, *groups = mf_json_array(race, "groups");
    int64_t k;
    cJSON_ArrayForEach (item, groups) {
        if (mf_json_i64(item, "group", 0, INT32_MAX, &k) == 0 && k == group)
            return item;
    }
    return groups ? NULL : race;
}

/* Uses the time of the winner's rerun if it is valid. */
static int use_rerun(const cJSON *outcome, size_t n_fresh, struct mf_win *w)
{
    struct mf_reported *t = &w->reported;
    const char *unstable;
    double us, mad = NAN;
    if (mf_json_double(outcome, "us", &us) < 0 || !isfinite(us) || !(us > 0))
        return 0;
    (void)mf_json_double(outcome, "mad", &mad);
    t->us = us;
    t->mad = mad;
    t->n = n_fresh > 0 ? (int64_t)n_fresh : t->n;
    (void)mf_json_i64(outcome, "tries", 1, INT32_MAX, &t->tries);
    if (mf_json_text(outcome, "unstable", &unstable) < 0)
        return 0;
    char reason[MF_REASON_MAX];
    mf_format(reason, sizeof(reason), "%s", unstable);
    w->unstable = strdup(reason);
    t->unstable = w->unstable;
    return w->unstable ? 0 : -ENOMEM;
}

/* Lists the lease's pipelines of a group as racers; group -1: all. Returns their number. */
static size_t list_racers(const struct mf_lease *lease, int group,
                          struct mf_racer_result ret[MF_FINALISTS_MAX],
                          const struct mf_lease_item *ret_items[MF_FINALISTS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < lease->n; i++) {
        const struct mf_lease_item *item = &lease->items[i];
        if (group >= 0 && item->group != group)
            continue;
        ret_items[n] = item;
        ret[n++] = (struct mf_racer_result){.pipeline = item->id,
                                            .status = item->status,
                                            .us = item->us,
                                            .mad = item->mad,
                                            .verified = item->verified,
                                            .reported = item->seq > 0};
    }
    return n;
}

/* Stores the time of a racer, paired with the winner. */
static int pair_racer(struct mf_farm *f, const struct mf_lease *lease, int64_t pipeline,
                      const struct mf_race_result *winner, bool is_winner, double *scratch)
{
    struct mf_race_result own = {0};
    struct mf_race_time time;
    int r = mf_store_race_result_get(f->store, lease->unit, lease->attempt, pipeline, &own);
    if (r < 0)
        return r;
    const double *samples = is_winner ? winner->samples : own.samples;
    int paired = own.status == MF_STATUS_OK
                     ? mf_race_time_pair(winner->samples, winner->n, samples, own.n, scratch, &time)
                     : -EINVAL;
    /* Without samples, the racer's own median is the best that is known */
    if (paired < 0)
        time = (struct mf_race_time){own.us, own.mad};
    if (own.status == MF_STATUS_OK)
        r = mf_store_pipeline_set_race(f->store, pipeline, time.us, time.mad);
    mf_race_result_release(&own);
    return r;
}

int mf_config_race_times(struct mf_farm *f, const struct mf_lease *lease, const cJSON *race)
{
    struct mf_racer_result racers[MF_FINALISTS_MAX];
    const struct mf_lease_item *items[MF_FINALISTS_MAX];
    struct mf_race_result winner = {0};
    int64_t named = 0;
    size_t n = list_racers(lease, -1, racers, items);
    (void)mf_json_i64(race, "winner", 1, INT64_MAX, &named);
    int i = mf_race_pick(racers, n, named);
    if (i < 0)
        return 0;
    int r = mf_store_race_result_get(f->store, lease->unit, lease->attempt, racers[i].pipeline, &winner);
    if (r < 0)
        return r;
    _cleanup_(mf_freep) double *scratch = calloc(winner.n + 1, sizeof(*scratch));
    r = scratch ? 0 : -ENOMEM;
    for (size_t k = 0; r == 0 && k < n; k++) {
        if (racers[k].reported)
            r = pair_racer(f, lease, racers[k].pipeline, &winner, (int)k == i, scratch);
    }
    mf_race_result_release(&winner);
    return r;
}

int mf_config_win(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease, int group,
                  const cJSON *race, struct mf_win *ret)
{
    struct mf_racer_result racers[MF_FINALISTS_MAX];
    const struct mf_lease_item *items[MF_FINALISTS_MAX];
    const cJSON *outcome = find_outcome(race, group);
    int64_t named = 0;
    size_t n = list_racers(lease, group, racers, items);
    (void)mf_json_i64(outcome, "winner", 1, INT64_MAX, &named);
    int i = mf_race_pick(racers, n, named);
    if (i < 0)
        return 0;
    bool is_named = named == racers[i].pipeline;
    struct mf_win w = {
        .pipeline = racers[i].pipeline,
        .consumer = lease->consumer,
        .reported = {
            .us = items[i]->us, .mad = items[i]->mad, .n = (int64_t)items[i]->n, .tries = 1, .unstable = ""}};
    int r = is_named ? use_rerun(outcome, items[i]->n_fresh, &w) : 0;
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *ties = read_ties(lease, group, w.pipeline, is_named ? outcome : NULL);
    w.ties = ties ? mf_json_print(ties) : NULL;
    w.provenance = print_provenance(f, g, lease, "race");
    if (!w.ties || !w.provenance) {
        mf_win_release(&w);
        return -ENOMEM;
    }
    *ret = w;
    return 1;
}

int mf_config_write(struct mf_farm *f, struct mf_task *g, const struct mf_win *w)
{
    struct mf_pipeline p = {0};
    struct split split = {0};
    mf_buf_init(&split.names, 16u << 10);
    _cleanup_(cJSON_Deletep) cJSON *ties = cJSON_Parse(w->ties);
    _cleanup_(mf_freep) char *provenance = NULL;
    int r = mf_store_pipeline_get(f->store, w->pipeline, &p);
    if (r == 0)
        r = complete_provenance(f, g, w->consumer, w->provenance, p.steps, &provenance);
    if (r == 0)
        r = split_pipeline(f, g, p.steps, &split);
    struct mf_config_row row = {.task = g->id,
                                .consumer = w->consumer,
                                .shape = g->shape_id,
                                .class = g->class_id,
                                .model = g->model,
                                .pipeline = w->pipeline,
                                .reported = w->reported,
                                .err1 = split.err1,
                                .err2 = split.err2,
                                .ties = w->ties,
                                .provenance = provenance};
    divide_time(&split, &row);
    if (r == 0)
        r = mf_store_config_add(f->store, &row, f->wall_ms);
    if (r == 0)
        r = add_config_event(f, g, &row, split.names.data, cJSON_GetArraySize(ties));
    mf_buf_release(&split.names);
    mf_pipeline_release(&p);
    return r;
}

int mf_config_set_known_row(struct mf_farm *f, struct mf_task *g, const struct mf_lease *lease,
                            int64_t pipeline, const struct mf_reported *time, int64_t tie)
{
    struct mf_pipeline p = {0};
    struct split split = {0};
    char ties[32] = "[]";
    mf_buf_init(&split.names, 16u << 10);
    if (tie)
        mf_format(ties, sizeof(ties), "[%" PRId64 "]", tie);
    _cleanup_(mf_freep) char *compared = print_provenance(f, g, lease, "compare");
    _cleanup_(mf_freep) char *provenance = NULL;
    int r = compared ? mf_store_pipeline_get(f->store, pipeline, &p) : -ENOMEM;
    if (r == 0)
        r = complete_provenance(f, g, lease->consumer, compared, p.steps, &provenance);
    if (r == 0)
        r = split_pipeline(f, g, p.steps, &split);
    struct mf_config_row row = {.task = g->id,
                                .consumer = lease->consumer,
                                .pipeline = pipeline,
                                .reported = *time,
                                .err1 = split.err1,
                                .err2 = split.err2,
                                .ties = ties,
                                .provenance = provenance};
    divide_time(&split, &row);
    if (r == 0)
        r = mf_store_config_replace(f->store, &row);
    if (r == 0)
        r = add_config_event(f, g, &row, split.names.data, tie != 0);
    mf_buf_release(&split.names);
    mf_pipeline_release(&p);
    return r;
}

int mf_config_set_time(struct mf_farm *f, struct mf_task *g, const struct mf_win *w)
{
    struct mf_pipeline p = {0};
    struct split split = {0};
    mf_buf_init(&split.names, 16u << 10);
    int r = mf_store_pipeline_get(f->store, w->pipeline, &p);
    if (r == 0)
        r = split_pipeline(f, g, p.steps, &split);
    struct mf_config_row row = {
        .task = g->id, .consumer = w->consumer, .pipeline = w->pipeline, .reported = w->reported};
    int64_t n_ties = 0;
    divide_time(&split, &row);
    if (r == 0)
        r = mf_store_config_set_time(f->store, &row, &n_ties);
    if (r == 0)
        r = add_config_event(f, g, &row, split.names.data, (int)n_ties);
    mf_buf_release(&split.names);
    mf_pipeline_release(&p);
    return r;
}
