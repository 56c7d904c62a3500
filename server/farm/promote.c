#include "server/farm/promote.h"

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/moe/pipeline_text.h"
#include "server/store/store_family.h"
#include "server/store/store_promote.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MIN 24
#define ROUNDS_MAX 200
/* maximum time of a comparison, as a multiple of a race's time. It is above 1 because the result decides
 * about a row in production. */
#define RACE_TIMES 2.5

/* ---- the known row ---- */

static int find_known(struct mf_farm *f, const struct mf_task *g, enum mf_consumer c, struct mf_known *ret)
{
    const struct mf_batch *b = g->batch;
    return b->options.has_baseline
               ? mf_store_known_from_baseline(f->store, b->id, g->shape_id, g->class_id, ret)
               : mf_store_known_from_config(f->store,
                                            &(struct mf_known_key){.batch = b->id,
                                                                   .shape = g->shape_id,
                                                                   .class = g->class_id,
                                                                   .model = g->model,
                                                                   .consumer = c},
                                            ret);
}

/* The known row as a pipeline of the task. */
struct resolved {
    struct mf_path path;
    int64_t ids[MF_PATH_STEPS_MAX]; /* ids of the steps that the path's indices refer to */
    char why[MF_REASON_MAX];        /* reason why the row is not a pipeline */
};

struct parts {
    enum mf_consumer consumer;
    struct mf_step steps[MF_PATH_STEPS_MAX];
    struct mf_path_step timed[MF_PATH_STEPS_MAX];
    int64_t ids[MF_PATH_STEPS_MAX];
    size_t n;
};

/* Explains why a step that the task did not measure cannot run. Returns 0 and fills in ret_why, or -errno. */
static int explain_missing_step(struct mf_farm *f, const struct mf_task *g, const char *family,
                                const char *name, char ret_why[MF_REASON_MAX])
{
    char reason[MF_REASON_MAX] = "no family offers it for this shape";
    int r = mf_store_step_rejection(f->store, g->id, family, name, reason);
    mf_format(ret_why, MF_REASON_MAX, "its step %.90s:%.120s cannot run: %s", family, name, reason);
    return r < 0 ? r : 0;
}

/* Adds a step of the known row to the parts. Returns 1 if the task measured the step and the step runs; 0 if
 * not, with the reason in why. */
static int add_part(struct mf_farm *f, const struct mf_task *g, const char *text, size_t len, struct parts *p,
                    char why[MF_REASON_MAX])
{
    char family[MF_FAMILY_NAME_MAX], name[MF_STEP_NAME_MAX];
    struct mf_measured_row row;
    if (p->n == MF_PATH_STEPS_MAX || mf_step_name_split(text, len, family, name) < 0) {
        mf_format(why, MF_REASON_MAX,
                  "invalid pipeline: expected up to %d steps as family:step, separated by |",
                  MF_PATH_STEPS_MAX);
        return 0;
    }
    int r = mf_store_step_find(f->store, g->id, family, name, &p->ids[p->n]);
    if (r > 0)
        r = mf_store_measured_get(f->store, g->id, p->ids[p->n], &row, &p->steps[p->n]);
    else if (r == 0)
        r = -ENOENT;
    if (r == -ENOENT)
        return explain_missing_step(f, g, family, name, why);
    if (r < 0)
        return r;
    /* A step with an implausible time is accepted, because only the pipeline's time is judged. */
    if (row.status != MF_STATUS_OK && row.status != MF_STATUS_SLOW && row.status != MF_STATUS_IMPLAUSIBLE) {
        mf_format(why, MF_REASON_MAX, "its step %s:%s is now %s; see its result", family, name,
                  mf_status_name(row.status));
        return 0;
    }
    p->timed[p->n].us = row.us > 0 ? row.us : 1;
    p->n++;
    return 1;
}

/* Returns 1 if the consumer dispatches the parts; 0 if not, with the reason in why. */
static int check_consumer(const struct parts *p, char why[MF_REASON_MAX])
{
    struct mf_consumer_step steps[MF_PATH_STEPS_MAX];
    char reason[MF_CONSUMER_WHY_MAX];
    for (size_t i = 0; i < p->n; i++)
        steps[i] = mf_consumer_step(&p->steps[i]);
    if (mf_consumer_takes_pipeline(p->consumer, steps, p->n, reason))
        return 1;
    mf_format(why, MF_REASON_MAX, "%s", reason);
    return 0;
}

/* Returns 1 if the steps form a pipeline of the task; 0 if not, with the reason in ret->why. */
static int resolve(struct mf_farm *f, const struct mf_task *g, enum mf_consumer c, const char *names,
                   struct resolved *ret)
{
    _cleanup_(mf_freep) struct parts *p = calloc(1, sizeof(*p));
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    const char *name;
    size_t n_paths = 0, len;
    int r = p ? 1 : -ENOMEM;
    if (p)
        p->consumer = c;
    while (r > 0 && mf_pipeline_text_next(&names, &name, &len))
        r = add_part(f, g, name, len, p, ret->why);
    if (r > 0)
        r = check_consumer(p, ret->why);
    if (r <= 0)
        return r;
    for (size_t i = 0; i < p->n; i++)
        p->timed[i].step = &p->steps[i];
    struct mf_path_problem problem = {
        .ops = mf_layer_ops(&g->shape),
        .format = g->shape.dtype == MF_DTYPE_FP16 ? MF_FORMAT_FP16 : MF_FORMAT_BF16,
        .steps = p->timed,
        .n_steps = p->n,
        .keep = MF_PATH_KEEP_MAX,
    };
    r = mf_path_find(&problem, &paths, &n_paths);
    if (r < 0 && r != -E2BIG)
        return r;
    for (size_t i = 0; r == 0 && i < n_paths; i++) {
        if (paths[i].n != (int)p->n)
            continue;
        ret->path = paths[i];
        memcpy(ret->ids, p->ids, sizeof(ret->ids));
        return 1;
    }
    mf_format(ret->why, sizeof(ret->why),
              "its %zu steps are not a pipeline of this layer: they do not cover each op once, or their "
              "tensor specs,"
              " block_m or weight layouts do not match",
              p->n);
    return 0;
}

int mf_promote_layout(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, char ret[MF_PATH_LAYOUT_MAX])
{
    struct mf_known known;
    struct resolved old = {0};
    if (g->batch->options.promote != MF_PROMOTE_IMPROVED)
        return 0;
    int r = find_known(f, g, c, &known);
    if (r <= 0)
        return r;
    r = *known.pipeline ? resolve(f, g, c, known.pipeline, &old) : 0;
    free(known.pipeline);
    if (r > 0)
        mf_path_layout(&old.path, ret);
    return r;
}

/* Returns the id of the known row among the consumer's pipelines. Adds the pipeline if it is missing. */
static int store_pipeline(struct mf_farm *f, const struct mf_task *g, enum mf_consumer c,
                          const struct resolved *old, int64_t *ret)
{
    char structure[MF_PATH_STRUCTURE_MAX], layout[MF_PATH_LAYOUT_MAX];
    struct mf_buf steps;
    mf_buf_init(&steps, 4096);
    for (int i = 0; i < old->path.n; i++)
        (void)mf_buf_addf(&steps, "%s%" PRId64, i ? "," : "[", old->ids[old->path.steps[i]]);
    int r = mf_buf_adds(&steps, "]");
    if (r == 0)
        r = mf_store_pipeline_find(f->store, g->id, c, steps.data, ret);
    if (r == 0) {
        mf_path_structure(old->path.structure, structure);
        mf_path_layout(&old->path, layout);
        struct mf_pipeline_row row = {.task = g->id,
                                      .consumer = c,
                                      .place = MF_KNOWN_PLACE,
                                      .steps = steps.data,
                                      .structure = structure,
                                      .block_m = old->path.block_m,
                                      .layout = layout,
                                      .sum_us = old->path.us,
                                      .forecast_us = old->path.us};
        r = mf_store_pipeline_add(f->store, &row, ret);
    }
    mf_buf_release(&steps);
    return r < 0 ? r : 0;
}

/* ---- deciding ---- */

static cJSON *decision_event(int64_t batch, int64_t task, enum mf_decision decision, const char *reason)
{
    cJSON *body = cJSON_CreateObject();
    mf_json_add_i64(body, "batch", batch);
    mf_json_add_i64(body, "task", task);
    cJSON_AddStringToObject(body, "decision", mf_decision_name(decision));
    cJSON_AddStringToObject(body, "reason", reason);
    return body;
}

static int report_decision(struct mf_farm *f, const struct mf_task *g, enum mf_decision decision,
                           const char *reason)
{
    return mf_event_add(f, g->batch->id, "promotion", decision_event(g->batch->id, g->id, decision, reason));
}

static int decide(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, enum mf_decision decision,
                  const char *reason)
{
    int r = mf_store_promotion_decide(f->store, g->id, c, decision, reason, f->wall_ms);
    return r < 0 ? r : report_decision(f, g, decision, reason);
}

/* ---- rows that name no pipeline ---- */

static const char reason_unnamed[] =
    "the known row names no pipeline, so no candidate can race against it and it "
    "stays; use promote=always to replace it";

/* Adds the events of a task that ended without a measurement. */
static int report_skipped(struct mf_farm *f, int64_t batch, int64_t task)
{
    cJSON *body = decision_event(batch, task, MF_DECISION_UNDECIDED, reason_unnamed);
    int r = mf_event_add(f, batch, "promotion", body);
    return r < 0 ? r : mf_event_task_ended(f, batch, task, MF_TASK_DONE);
}

/* Ends the tasks whose known row names no pipeline, in one transaction, without loading them into memory. */
int mf_promote_skip_unnamed(struct mf_farm *f, int64_t batch)
{
    struct mf_ids ids = {0};
    struct mf_batch *b;
    int r = mf_store_skip_unnamed(f->store, batch, reason_unnamed, f->wall_ms, &ids);
    int n = 0;
    for (size_t i = 0; r == 0 && i < ids.n; i++) {
        if (i > 0 && ids.all[i] == ids.all[i - 1])
            continue;
        r = report_skipped(f, batch, ids.all[i]);
        n++;
    }
    mf_ids_release(&ids);
    if (r < 0 || n == 0)
        return r;
    r = mf_batch_get(f, batch, &b);
    if (r < 0)
        return r;
    b->open_tasks = 0; /* forces a new count, because the count in memory still includes the ended tasks */
    r = mf_batch_check(f, b);
    if (r < 0)
        return r;
    mf_batch_unload(f, b);
    return n;
}

int mf_promote_skip_for_class(struct mf_farm *f, int64_t class_id)
{
    struct mf_ids batches = {0};
    int r = mf_store_batches_unnamed(f->store, class_id, &batches);
    for (size_t i = 0; r >= 0 && i < batches.n; i++)
        r = mf_promote_skip_unnamed(f, batches.all[i]);
    mf_ids_release(&batches);
    return r < 0 ? r : 0;
}

/* ---- comparing ---- */

static int add_unit(struct mf_farm *f, struct mf_task *g, const struct mf_promotion *p, double pair_us,
                    int64_t avoid_worker)
{
    struct mf_buf body;
    double fit = RACE_TIMES * f->options.race_s * 1e6 / pair_us;
    int rounds = (int)fmin(ROUNDS_MAX, fmax(ROUNDS_MIN, fit));
    mf_buf_init(&body, 1024);
    (void)mf_buf_addf(&body, "{\"consumer\":\"%s\",\"pipelines\":[%" PRId64 ",%" PRId64 "]",
                      mf_consumer_name(p->consumer), p->old, p->new);
    if (avoid_worker)
        (void)mf_buf_addf(&body, ",\"first_worker\":%" PRId64, avoid_worker);
    int r =
        mf_buf_addf(&body,
                    ",\"plan\":{\"rounds\":[{\"rounds\":%d,\"keep\":2}],\"fresh\":0,\"alpha\":0.05,\"all\":"
                    "true}}",
                    rounds);
    if (r == 0)
        r = mf_task_compare(f, g, body.data, avoid_worker);
    mf_buf_release(&body);
    return r;
}

/* Returns 1 if workers offer the families of both rows, but no worker offers all of them, otherwise 0. */
static int are_apart(struct mf_farm *f, const struct mf_task *g, const struct mf_promotion *p)
{
    struct mf_ids ids = {0};
    bool apart = true;
    int r = mf_store_pipelines_families(f->store, p->old, p->new, &ids);
    for (size_t i = 0; i < ids.n && apart; i++)
        apart = mf_families_are_offered(f, g->class_id, g->model, &ids.all[i], 1);
    apart = apart && !mf_families_are_offered(f, g->class_id, g->model, ids.all, ids.n);
    mf_ids_release(&ids);
    return r < 0 ? r : apart;
}

/* Examines the known row. Returns 1 if the rows must be compared, or 0 with the decision in p and the reason
 * in why. */
static int examine_known(struct mf_farm *f, struct mf_task *g, const struct mf_known *known,
                         struct mf_promotion *p, struct resolved *old, char why[MF_REASON_MAX])
{
    struct mf_pipeline new = {0};
    char layout[MF_PATH_LAYOUT_MAX];
    p->decision = MF_DECISION_UNDECIDED;
    mf_format(why, MF_REASON_MAX, "%s", reason_unnamed);
    if (!*known->pipeline) /* happens only for a task that an earlier version of moefarmd created */
        return 0;
    int r = resolve(f, g, p->consumer, known->pipeline, old);
    p->decision = MF_DECISION_PROMOTED;
    mf_format(why, MF_REASON_MAX, "the known row does not run: %s", old->why);
    if (r <= 0)
        return r;
    r = store_pipeline(f, g, p->consumer, old, &p->old);
    if (r < 0)
        return r;
    p->decision = MF_DECISION_KEPT;
    mf_format(why, MF_REASON_MAX, "the known row won the race");
    if (p->old == p->new)
        return 0;
    r = mf_store_pipeline_get(f->store, p->new, &new);
    if (r < 0)
        return r;
    mf_path_layout(&old->path, layout);
    bool other = !g->batch->options.layout_free && strcmp(layout, new.layout) != 0;
    p->decision = MF_DECISION_PROMOTED;
    if (other) {
        mf_format(why, MF_REASON_MAX,
                  "the known row has layout %s, but its layer model has %s, and one table cannot mix them",
                  layout, new.layout);
    } else if ((r = are_apart(f, g, p)) > 0) {
        p->decision = MF_DECISION_UNDECIDED;
        mf_format(why, MF_REASON_MAX,
                  "no connected worker offers the kernel families of both rows, so they cannot be compared");
    }
    mf_pipeline_release(&new);
    return r < 0 ? r : !other && r == 0;
}

int mf_promote_start(struct mf_farm *f, struct mf_task *g, enum mf_consumer c)
{
    struct mf_known known = {.us = (double)NAN};
    struct resolved old = {0};
    char why[MF_REASON_MAX] = "no known row for this key";
    struct mf_promotion p = {.task = g->id,
                             .consumer = c,
                             .least = g->batch->options.min_effect,
                             .decision = MF_DECISION_PROMOTED};
    if (g->batch->options.promote != MF_PROMOTE_IMPROVED)
        return mf_task_decided(f, g, c);
    int r = mf_store_config_get(f->store, g->id, c, &p.new, &p.new_us);
    if (r == 0)
        r = find_known(f, g, c, &known);
    bool is_known = r > 0;
    if (is_known)
        r = examine_known(f, g, &known, &p, &old, why);
    bool compare = is_known && r > 0;
    if (compare)
        p.decision = MF_DECISION_PENDING;
    p.known = is_known ? known.pipeline : "";
    p.source = known.source;
    p.known_us = known.us;
    p.reason = compare ? "comparison in progress" : why;
    if (r >= 0)
        r = mf_store_promotion_add(f->store, &p, f->wall_ms);
    free(known.pipeline);
    if (r == 0 && compare)
        return add_unit(f, g, &p, 2 * p.new_us, 0);
    if (r == 0 && is_known)
        r = report_decision(f, g, p.decision, p.reason);
    return r < 0 ? r : mf_task_decided(f, g, c);
}

/* Text of a decision: "compared with the known row it is FASTER on w0, -12.3% (-13.5% to -11.0%, 96 rounds)",
 * followed by the results on other devices. */
struct sentence {
    char text[MF_REASON_MAX];
    int n;
    enum mf_paired_verdict last;
    bool is_tie; /* the last interval contains zero, so the rows are statistically tied */
};

static int add_device(void *context, const struct mf_comparison *c)
{
    struct sentence *s = context;
    size_t len = strlen(s->text);
    const struct mf_interval *i = &c->p.change;
    if (!c->judged)
        return 0;
    mf_format(s->text + len, sizeof(s->text) - len, "%s%s on %.40s, %+.1f%% (%+.1f%% to %+.1f%%, %zu rounds)",
              s->n ? "; " : "compared with the known row it is ", mf_paired_verdict_name(c->p.verdict),
              c->worker_name, 100 * i->mid, 100 * i->low, 100 * i->high, c->n);
    s->n++;
    s->last = c->p.verdict;
    s->is_tie = i->low <= 0 && i->high >= 0;
    return 0;
}

/* Makes the known row the config, with its time in the comparison. */
static int keep_known(struct mf_farm *f, struct mf_task *g, const struct mf_promotion *p,
                      const struct mf_lease *l, const struct mf_race_result *old, bool is_tie)
{
    const struct mf_reported time = {
        .us = old->us, .mad = old->mad, .n = (int64_t)old->n, .tries = 1, .unstable = ""};
    return mf_config_set_known_row(f, g, l, p->old, &time, is_tie ? p->new : 0);
}

/* Makes the decision after the last comparison. Unless the verdict is FASTER, l must be the lease of the last
 * comparison, and `old` the known row's result in that comparison. */
static int conclude(struct mf_farm *f, struct mf_task *g, const struct mf_promotion *p,
                    const struct mf_lease *l, const struct mf_race_result *old)
{
    struct sentence s = {.text = ""};
    int r = mf_store_comparisons_each(f->store, g->id, p->consumer, add_device, &s);
    if (r < 0)
        return r;
    size_t len = strlen(s.text);
    if (s.last == MF_PAIRED_FASTER) {
        mf_format(s.text + len, sizeof(s.text) - len, "%s",
                  s.n == 1 ? "; no other device of this class and model is connected" : "");
        r = decide(f, g, p->consumer, MF_DECISION_PROMOTED, s.text);
        return r < 0 ? r : mf_task_decided(f, g, p->consumer);
    }
    assert(l && old);
    mf_format(s.text + len, sizeof(s.text) - len, "; required: %.3g%% less on each device", 100 * p->least);
    r = keep_known(f, g, p, l, old, s.is_tie);
    if (r == 0)
        r = decide(f, g, p->consumer, MF_DECISION_KEPT, s.text);
    return r < 0 ? r : mf_task_decided(f, g, p->consumer);
}

/* Returns true if a second device may confirm the verdict. Shortly after a start of moefarmd always returns
 * true, because devices may not have reconnected yet. */
static bool may_use_second_device(struct mf_farm *f, const struct mf_lease *l)
{
    return f->reconnect_deadline_ms > 0 ||
           mf_store_has_other_worker(f->store, l->families, l->task->model, l->worker) > 0;
}

/* Makes the decision after a comparison in which one row, or both, got no time. */
static int conclude_failed(struct mf_farm *f, struct mf_task *g, const struct mf_promotion *p,
                           const struct mf_lease *l, const struct mf_race_result *old,
                           const struct mf_race_result *new)
{
    char reason[MF_REASON_MAX];
    enum mf_decision decision = MF_DECISION_UNDECIDED;
    int r = 0;
    if (new->status == MF_STATUS_OK) {
        decision = MF_DECISION_PROMOTED;
        mf_format(reason, sizeof(reason), "the known row %s: %s",
                  old->status == MF_STATUS_WRONG ? "is wrong" : "does not run", old->reason);
    } else if (old->status == MF_STATUS_OK) {
        decision = MF_DECISION_KEPT;
        mf_format(reason, sizeof(reason), "in the comparison the new row was %s: %s",
                  mf_status_name(new->status), new->reason);
        r = keep_known(f, g, p, l, old, false);
    } else {
        mf_format(reason, sizeof(reason), "the comparison gave no time: the known row was %s, the new row %s",
                  mf_status_name(old->status), mf_status_name(new->status));
    }
    if (r == 0)
        r = decide(f, g, p->consumer, decision, reason);
    return r < 0 ? r : mf_task_decided(f, g, p->consumer);
}

static int judge(struct mf_farm *f, struct mf_task *g, const struct mf_promotion *p, const struct mf_lease *l,
                 const struct mf_race_result *old, const struct mf_race_result *new)
{
    const struct mf_paired_rule rule = {.least_effect = p->least, .confidence = MF_PAIRED_CONFIDENCE};
    struct mf_comparison c = {.unit = l->unit,
                              .task = g->id,
                              .consumer = p->consumer,
                              .worker = l->worker,
                              .n = MF_MIN(old->n, new->n),
                              .old_us = old->us,
                              .new_us = new->us,
                              .old_status = old->status,
                              .new_status = new->status,
                              .old_reason = old->reason,
                              .new_reason = new->reason};
    _cleanup_(mf_freep) double *scratch = calloc(c.n + 1, sizeof(*scratch));
    if (!scratch)
        return -ENOMEM;
    int r = 0;
    if (old->status == MF_STATUS_OK && new->status == MF_STATUS_OK)
        r = mf_paired_judge(old->samples, new->samples, c.n, &rule, scratch, &c.p);
    c.judged = r == 0 && old->status == MF_STATUS_OK && new->status == MF_STATUS_OK;
    r = mf_store_comparison_add(f->store, &c, f->wall_ms);
    if (r < 0)
        return r;
    if (!c.judged)
        return old->status == MF_STATUS_OK && new->status == MF_STATUS_OK
                   ? mf_promote_not_compared(f, g, p->consumer, "the comparison gave no paired samples")
                   : conclude_failed(f, g, p, l, old, new);
    if (c.p.verdict == MF_PAIRED_FASTER && !l->first_worker && may_use_second_device(f, l))
        return add_unit(f, g, p, old->us + new->us, l->worker);
    return conclude(f, g, p, l, old);
}

/* Loads the promotion of a consumer that is being compared. Returns -ENODATA if it has no promotion. */
static int find_promotion(struct mf_farm *f, const struct mf_task *g, enum mf_consumer c,
                          struct mf_promotion *ret)
{
    int r = mf_store_promotion_get(f->store, g->id, c, ret);
    return r == 0 ? -ENODATA : r;
}

int mf_promote_compared(struct mf_farm *f, struct mf_task *g, const struct mf_lease *l)
{
    struct mf_promotion p;
    struct mf_race_result old = {0}, new = {0};
    int r = find_promotion(f, g, l->consumer, &p);
    if (r < 0)
        return r;
    r = mf_store_race_result_get(f->store, l->unit, l->attempt, p.old, &old);
    if (r == 0)
        r = mf_store_race_result_get(f->store, l->unit, l->attempt, p.new, &new);
    if (r == -ENOENT)
        r = mf_promote_not_compared(f, g, l->consumer,
                                    "the worker reported no result for one of the two rows");
    else if (r == 0)
        r = judge(f, g, &p, l, &old, &new);
    mf_race_result_release(&old);
    mf_race_result_release(&new);
    return r;
}

int mf_promote_without_second(struct mf_farm *f, struct mf_task *g, enum mf_consumer c)
{
    struct mf_promotion p;
    int r = find_promotion(f, g, c, &p);
    return r < 0 ? r : conclude(f, g, &p, NULL, NULL);
}

int mf_promote_not_compared(struct mf_farm *f, struct mf_task *g, enum mf_consumer c, const char *reason)
{
    char text[MF_REASON_MAX];
    mf_format(text, sizeof(text), "the new row was not compared with the known row: %s", reason);
    int r = decide(f, g, c, MF_DECISION_UNDECIDED, text);
    return r < 0 ? r : mf_task_decided(f, g, c);
}

int mf_promote_cancel(struct mf_farm *f, struct mf_task *g)
{
    int r = 0;
    for (enum mf_consumer c = 0; r >= 0 && c < MF_CONSUMER_N_; c++) {
        struct mf_promotion p;
        r = g->consumers & MF_CONSUMER_BIT(c) ? mf_store_promotion_get(f->store, g->id, c, &p) : 0;
        if (r > 0 && p.decision == MF_DECISION_PENDING)
            r = decide(f, g, c, MF_DECISION_UNDECIDED,
                       "cancelled before the new row was compared with the known row");
    }
    return MF_MIN(r, 0);
}
