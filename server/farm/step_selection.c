#include "server/farm/step_selection.h"

#include "common/base/array.h"
#include "common/base/text.h"
#include "server/farm/step_policy.h"
#include "server/store/store_family.h"

#include <stdlib.h>

/* A step that is not measured, because its kernel is quarantined, the task's device model lacks its family,
 * the batch's options exclude it, or no consumer of the task dispatches it. */
struct excluded_step {
    struct mf_step_row step;
    const char *rule;
    char reason[MF_REASON_MAX];
};

struct selecting {
    struct mf_farm *f;
    struct mf_task *g;
    const struct mf_ids *families;  /* of the batch */
    int64_t judged_family;          /* family for which other_model holds; 0: none */
    bool other_model;               /* no worker of the task's device model offers it */
    struct excluded_step *excluded; /* written as rejections after the query */
    size_t n_excluded, cap_excluded, cap_steps;
    struct mf_step_selection *selected;
};

/* Returns 1 if no worker of the task's device model offers the step's family, otherwise 0. */
static int is_of_other_model(struct selecting *o, const struct mf_step_row *row, char reason[MF_REASON_MAX])
{
    if (!o->g->model)
        return 0;
    if (row->offered_by != o->judged_family) {
        int r = mf_store_model_offers(o->f->store, o->g->model, row->offered_by);
        if (r < 0)
            return r;
        o->judged_family = row->offered_by;
        o->other_model = r == 0;
    }
    mf_format(reason, MF_REASON_MAX,
              "workers of the device model on which the task is measured do not offer family %s; times of two"
              " models are never compared",
              row->family);
    return o->other_model;
}

/* Returns the step's group for mf_plan_cut. Steps come ordered by family, so most have the previous one's. */
static int64_t group_of(const struct selecting *o, int64_t family)
{
    const struct mf_step_selection *s = o->selected;
    const struct mf_step_row *last = s->n > 0 ? &s->steps[s->n - 1] : NULL;
    return last && last->offered_by == family
               ? last->group
               : mf_families_group(o->f, o->g->class_id, o->g->model, o->families, family);
}

/* Counts the step for each consumer that dispatches it. Returns true, and a reason, if none does. */
static bool is_without_consumer(struct selecting *o, const struct mf_step_row *row,
                                char reason[MF_REASON_MAX])
{
    const struct mf_consumer_step step = {row->family, row->name, row->covers, row->aiter, row->foreign};
    struct mf_step_selection *s = o->selected;
    bool found = false;
    for (enum mf_consumer c = 0; c < MF_CONSUMER_N_; c++) {
        if (!(mf_task_live_consumers(o->g) & MF_CONSUMER_BIT(c)))
            continue;
        bool takes = mf_consumer_takes_step(c, &step, s->why_not[c]);
        s->n_of[c] += takes;
        found |= takes;
        if (!takes)
            mf_format(reason, MF_REASON_MAX, "%s", s->why_not[c]);
    }
    return !found;
}

static int select_step(void *context, const struct mf_step_row *row, const char *quarantined)
{
    struct selecting *o = context;
    struct mf_step_selection *s = o->selected;
    const char *rule = NULL;
    int r = mf_array_grow(&s->steps, s->n, &o->cap_steps, sizeof(*s->steps));
    if (r == 0)
        r = mf_array_grow(&o->excluded, o->n_excluded, &o->cap_excluded, sizeof(*o->excluded));
    if (r < 0)
        return r;
    struct excluded_step *b = &o->excluded[o->n_excluded];
    char *reason = b->reason;
    if (quarantined) {
        mf_format(reason, MF_REASON_MAX, "quarantined: %s", quarantined);
        rule = "quarantine";
    } else if ((r = is_of_other_model(o, row, reason)) != 0) {
        rule = "model";
    } else if (mf_step_policy_no_fuse(o->g->batch, row->covers, reason)) {
        rule = "no_fuse";
    } else {
        r = mf_step_policy_excludes(o->f, o->g->batch, row, reason);
        rule = r > 0 ? "policy" : is_without_consumer(o, row, reason) ? "consumer" : NULL;
    }
    if (r < 0)
        return r;
    if (rule) {
        b->step = *row;
        b->rule = rule;
        o->n_excluded++;
    } else {
        s->steps[s->n] = *row;
        s->steps[s->n].group = group_of(o, row->offered_by);
        s->n++;
    }
    return 0;
}

int mf_steps_select(struct mf_farm *f, struct mf_task *g, struct mf_step_selection *ret)
{
    struct selecting o = {.f = f, .g = g, .selected = ret};
    int r = mf_families_of_batch(f, g->batch, g->class_id, &o.families);
    if (r == 0)
        r = mf_store_steps_each(f->store, g->id, g->class_id, g->batch->created_ms, select_step, &o);
    for (size_t i = 0; r == 0 && i < o.n_excluded; i++) {
        const struct excluded_step *b = &o.excluded[i];
        r = mf_store_rejection_add(f->store, g->enumeration, g->batch->id, b->step.family, b->step.name,
                                   b->rule, b->reason);
    }
    free(o.excluded);
    return r;
}
